"""TDC215: a rank that is slower than the others, so that they wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.step_halves import (
    Half,
    half_finding,
    halves,
    require_step_counts,
    skip_steps,
    step_need,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["Straggler"]

Floats = npt.NDArray[np.float64]

_OWN = ("rest", "data", "loss", "checkpoint", "compile", "gc", "forward")  # no rank waits here, as a rule
_SHARED = ("backward", "optimizer", "compute")  # ranks exchange gradients and wait for each other here
_MATCH = 0.5  # smallest wait of the others, as a share of the lag


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that is slower than the other ranks, which wait for it in each step.

    What it does:
        Compares the times of the ranks of a distributed training, phase by phase. The rule names the slow
        rank, and the phase in which the rank loses its time.

    Why it matters:
        In a data-parallel training, all ranks exchange their gradients in each step. One slow rank makes all
        ranks as slow as itself, and the step times of all ranks look the same.

    Decides by:
        Ranks wait for each other where they exchange gradients: in the backward pass or in the optimizer. So
        the slow rank has the shortest backward pass, and the longest time in the phases before it.

        At each scan the rule judges the newest half of the steps of all ranks. Scans take place eight times
        while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The lag of
        a rank is its time per step in its own phases (rest, data, loss, checkpoint, compile, garbage
        collection, and also forward), minus the median of the other ranks. The rule fires if the lag is at
        least `threshold` percent of a step and `min_lag_ms`, and if the other ranks wait in the shared phases
        for at least half of the lag. If ranks do not wait for each other, the rule does not fire.

    Parameters:
        threshold: lag above which the rule fires, in percent of a step.
        min_lag_ms: smallest lag per step, in milliseconds.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.

    False alarms:
        - Pipeline or tensor parallelism, where ranks have different work by design.
        - Ranks that share cores with other programs.

    Do:
        Data: give the rank the same number of samples of the same size, and look at its disk and its CPU.
        Rest: move logging, evaluation and checkpoints away from this rank, or do them less often. Forward:
        look at the clocks and the temperature of its GPU, and at other programs on its machine.

    Source:
        Z. Jiang et al., MegaScale: Scaling Large Language Model Training to More Than 10,000 GPUs, NSDI 2024,
        section on stragglers.
    """

    code: ClassVar[str] = "TDC215"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("duration_ns",)

    threshold: float = 20.0
    min_lag_ms: float = 2.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        require(0 < self.threshold <= 100, self, "threshold", self.threshold, "a percentage, above 0 to 100")
        require(0 <= self.min_lag_ms < np.inf, self, "min_lag_ms", self.min_lag_ms, "0 or more")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps of all ranks."""
        ranks = " of all of two or more ranks, which Hook(include_workers='all') records"
        return step_need(self, more=ranks, workers=2)

    def check(self, window: Window) -> Iterator[Finding]:
        """At most one finding per mode and scan."""
        if window.step_times is None or window.world_size < 2:
            return
        for every in window.step_times.steps(window.memory):
            steps = skip_steps(window.memory, every, self.patience)
            if steps is None:
                continue
            for half in halves(window.memory, steps, min_steps=self.min_steps, min_seconds=0.0):
                yield from self._add(window, half)

    def _add(self, window: Window, half: Half) -> Iterator[Finding]:
        """Store the scan of one rank; judge it if it is the last rank of this scan."""
        scans = window.memory.setdefault(("ranks", half.place.attempt, half.place.mode), {})
        ranks: dict[str, list[int]] = scans.setdefault(half.count, {})
        ranks[half.place.worker] = [
            half.mode_step,
            half.step,
            half.start_ns,
            half.end_ns,
            *half.sums.tolist(),
        ]
        if len(ranks) < window.world_size:
            return
        del scans[half.count]
        if len({saved[0] for saved in ranks.values()}) > 1:
            window.missing("the ranks have different numbers for the same step", 1)
            return
        rows = [_half_of(half, worker, saved) for worker, saved in sorted(ranks.items())]
        if max(each.seconds for each in rows) < self.min_seconds:
            return
        window.judged(1)
        found = _slowest(rows)
        if found is not None and found[1] >= max(
            self.min_lag_ms, self.threshold / 100 * found[0].ms_per_step("duration_ns")
        ):
            yield self._finding(*found, len(rows))

    def _finding(self, half: Half, lag: float, waited: float, phase: str, more: float, ranks: int) -> Finding:
        step = half.ms_per_step("duration_ns")
        others = "the other rank waits" if ranks == 2 else f"the other {ranks - 1} ranks wait"
        return half_finding(
            self,
            half,
            numbers={
                "kind": phase,
                "lag_ms": lag,
                "lag_percent": 100 * lag / step,
                "threshold": self.threshold,
                "others_wait_ms": waited,
                "phase_lag_ms": more,
                "step_ms": step,
                "ranks": ranks,
            },
            why=f"{half.place.worker} is slower than the other ranks: it needs {lag:.1f} ms more per step "
            f"before the ranks exchange their gradients, which is {100 * lag / step:.0f} % of a step of "
            f"{step:.1f} ms (limit {self.threshold:g} %); {others} {waited:.1f} ms per step for it, over "
            f"{half.span}. It loses {more:.1f} ms in the phase {phase!r}: {_PHASES[phase]}",
            do=_DO.get(phase, _DO["rest"]),
        )


def _half_of(half: Half, worker: str, saved: list[int]) -> Half:
    mode_step, step, start_ns, end_ns, *sums = saved
    return Half(
        place=half.place._replace(worker=worker),
        at=0,
        count=half.count,
        steps=half.steps,
        sums=np.array(sums, dtype=np.int64),
        step=step,
        mode_step=mode_step,
        start_ns=start_ns,
        end_ns=end_ns,
    )


def _slowest(rows: list[Half]) -> tuple[Half, float, float, str, float] | None:
    """The slowest rank, its lag, the wait of the others, its slowest phase and the lag there, all in ms.

    Ranks can also wait in the forward pass, for example for the weights of FSDP, so both assignments of the
    forward pass are tried. None if the others do not wait for any rank.
    """
    best = None
    for own, shared in ((_OWN, _SHARED), (_OWN[:-1], ("forward", *_SHARED))):
        own_ms, shared_ms = _ms(rows, own), _ms(rows, shared).sum(axis=1)
        lags = own_ms.sum(axis=1) - _median_of_others(own_ms.sum(axis=1))
        waits = _median_of_others(shared_ms) - shared_ms
        at = int(np.argmax(lags))
        lag, waited = float(lags[at]), float(waits[at])
        if lag <= 0 or waited < _MATCH * lag or (best is not None and lag <= best[1]):
            continue
        more = [float(part[at] - _median_of_others(part)[at]) for part in own_ms.T]
        phase = int(np.argmax(more))
        best = (rows[at], lag, waited, own[phase], more[phase])
    return best


def _ms(rows: list[Half], phases: tuple[str, ...]) -> Floats:
    return np.array([[half.ms_per_step(f"{phase}_ns") for phase in phases] for half in rows])


def _median_of_others(values: Floats) -> Floats:
    """For each rank, the median of the other ranks."""
    return np.array([float(np.median(np.delete(values, at))) for at in range(len(values))])


_PHASES: dict[str, str] = {
    "rest": "its script does more between the steps, such as logging or evaluation",
    "data": "it waits longer for its data",
    "loss": "it computes the loss longer",
    "checkpoint": "it writes checkpoints",
    "compile": "it compiles more often",
    "gc": "Python's garbage collector stops it longer",
    "forward": "its forward pass takes longer",
}
_DO: dict[str, Any] = {
    "data": "give this rank samples of the same number and size, and look at the disk and the CPU of its "
    "machine",
    "forward": "look at the clocks and the temperature of its GPU, at other programs on its machine, and at "
    "batches that are larger than those of the other ranks",
    "rest": "move logging, evaluation and checkpoints away from this rank, or do them less often",
}
