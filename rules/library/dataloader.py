"""TDC209: too few or too many processes that load data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.machine_history import Loaders, loader_processes
from tdcore.rules.measures.step_halves import (
    Half,
    half_finding,
    judged_halves,
    require_step_counts,
    step_need,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["Dataloader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataloader:
    """A number of DataLoader processes that does not fit the number of cores.

    What it does:
        Compares the number of processes that load data with the number of cores of the machine.

    Why it matters:
        With too few processes, the training waits for data while cores are idle. With too many processes,
        they take the cores from each other and from the training, and need memory.

    Decides by:
        At each scan the rule judges the newest half of the steps of a worker and mode. Scans take place eight
        times while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The
        rule fires if the processes are less than `min_threshold` or more than `max_threshold` percent of the
        cores. Too few processes are a fault only if the training waits for data for at least `min_wait`
        percent of the time. Cores are those of the machine, or the CPU limit of the container.

        The number of processes is not recorded. The rule takes the child processes of the trainer from the
        system samples (`trainer_processes` minus 1): for too few processes their largest number, and for too
        many their mean, in the newest 15 minutes of these steps. So child processes with other tasks are
        counted too. No child process counts as one, because the trainer loads the data itself. If several
        trainers of the training run on the machine, the number is multiplied by the number of trainers.

        With compat=True the rule decides as smdebug does: the number of processes alone decides, and the wait
        does not count.

    Parameters:
        min_threshold: number of processes, in percent of the cores, below which the rule fires.
        max_threshold: number of processes, in percent of the cores, above which the rule fires.
        min_wait: smallest share of the time that waits for data, for too few processes, in percent.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.
        compat: whether to decide as smdebug does.

    False alarms:
        - Child processes that do not load data, such as those of a search or of a compiler.
        - Several trainings on one machine, with a share of the cores for each.

    Do:
        Set num_workers of the DataLoader so that all trainers of the machine together have about as many
        processes as there are cores. With many short samples, larger batches need fewer processes.

    Source:
        The rule Dataloader of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC209"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("trainer_processes", "core_percent")

    min_threshold: float = 70.0
    max_threshold: float = 200.0
    min_wait: float = 10.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0
    compat: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.min_threshold < np.inf, self, "min_threshold", self.min_threshold, "0 or more")
        require(
            self.min_threshold <= self.max_threshold < np.inf,
            self,
            "max_threshold",
            self.max_threshold,
            "at least min_threshold",
        )
        require(0 <= self.min_wait <= 100, self, "min_wait", self.min_wait, "a percentage, 0 to 100")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps, and system samples of processes and cores."""
        return step_need(self, more=", and system samples in that time")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode and scan."""
        for half in judged_halves(window, self):
            place = half.place
            loaders = loader_processes(window.memory, place.attempt, place.worker, half.start_ns, half.end_ns)
            if loaders is None:
                window.judged(-1)
                continue
            percent, most = (
                100 * max(1.0, number) * loaders.trainers / loaders.cores
                for number in (loaders.processes, loaders.most)
            )
            wait = half.share("data_ns")
            if most < self.min_threshold and (self.compat or wait >= self.min_wait):
                yield self._finding(half, loaders, most, wait, "few")
            elif percent > self.max_threshold:
                yield self._finding(half, loaders, percent, wait, "many")

    def _finding(self, half: Half, loaders: Loaders, percent: float, wait: float, kind: str) -> Finding:
        few = kind == "few"
        limit = self.min_threshold if few else self.max_threshold
        trainers = "" if loaders.trainers == 1 else f" for each of {loaders.trainers} trainers"
        children = (
            "the trainer loads the data itself, because it has no child process"
            if not loaders.most
            else f"there are up to {loaders.most:,} child processes, and {loaders.processes:.1f} on average"
        )
        effect = (
            f"the training waits for data for {wait:.0f} % of the time"
            if few or wait >= self.min_wait
            else "they compete for the cores"
        )
        each = max(1, int(loaders.cores / loaders.trainers))
        return half_finding(
            self,
            half,
            numbers={
                "kind": kind,
                "processes": loaders.processes,
                "most_processes": loaders.most,
                "trainers": loaders.trainers,
                "cores": loaders.cores,
                "percent": percent,
                "limit": limit,
                "wait_percent": wait,
            },
            why=f"too {kind} processes load data: {children}{trainers}, which is {percent:.0f} % of "
            f"{loaders.cores:g} cores (limit {limit:g} %), and {effect}",
            do=f"set num_workers={each} of the DataLoader and measure again",
        )
