"""TDC216: a training that waits for its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.machine_history import MachineUse
from tdcore.rules.measures.step_halves import (
    FURTHER,
    Half,
    half_finding,
    judged_halves,
    require_step_counts,
    step_need,
    use_unless_gpu_busy,
)
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.step_times import Steps
from tdcore.rules.window import Window

__all__ = ["InputBound"]

Ints = npt.NDArray[np.int64]

_OCTAVES = 40  # of the wait of a step, in nanoseconds
_LONGEST = 0.05  # share of the steps, those with the longest waits


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBound:
    """A training that spends much of its time waiting for the next batch.

    What it does:
        Judges the time that the training waits for a batch of its DataLoader, and the use of the machine in
        that time. The rule reports whether more DataLoader workers help, and otherwise which resource limits
        the loading of data.

    Why it matters:
        While a training waits for data, it does not train. A faster GPU, or a faster model, does not help.

    Decides by:
        At each scan the rule judges the newest half of the steps of a worker and mode. Scans take place eight
        times while the number of steps doubles, for example after 64, 72, 80, ..., 128, 144, ... steps. The
        rule fires if the waits are at least `threshold` percent of the time, and at least `min_wait_ms` per
        step. It does not fire if a GPU is busy for 70 % of the time, because the training then has enough
        data.

        The cause is the first of these that is true:

        - Bursts: the 5 % of the steps with the longest waits have more than 60 % of the whole wait.
        - Disk: the cores wait for a disk for more than 15 % of the time.
        - CPU: all cores together are busy for more than 85 % of the time.
        - Workers: none of these is true. The cores are idle, so more workers help.

        The use of the machine is that of its newest 15 minutes. Without system samples, the cause is not
        known, unless the waits are bursts.

    Parameters:
        threshold: share of the time above which the rule fires, in percent.
        min_wait_ms: smallest mean wait of a step, in milliseconds.
        patience: number of steps at the start of each mode that are not judged.
        min_steps: smallest number of judged steps.
        min_seconds: smallest duration of the judged steps, in seconds.

    False alarms:
        - A small model on a fast machine, for which no input is fast enough.
        - Data that arrive at a limited rate, such as a simulation or a stream.

    Do:
        Workers: raise num_workers of the DataLoader, step by step. CPU: make the transforms cheaper, do them
        once before the training, or on the GPU. Disk: read fewer and larger files, and store the data on a
        faster or local disk. Bursts: keep the workers between epochs with persistent_workers=True, and raise
        prefetch_factor.

    Source:
        J. Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, VLDB 2021.
    """

    code: ClassVar[str] = "TDC216"
    judged_by: ClassVar[JudgedBy] = "run"
    step_time_columns: ClassVar[tuple[str, ...]] = ("data_ns",)
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent", "iowait_percent")
    samples_optional: ClassVar[bool] = True

    threshold: float = 30.0
    min_wait_ms: float = 5.0
    patience: int = 20
    min_steps: int = 32
    min_seconds: float = 10.0

    def __post_init__(self) -> None:
        require(0 < self.threshold <= 100, self, "threshold", self.threshold, "a percentage, above 0 to 100")
        require(0 <= self.min_wait_ms < np.inf, self, "min_wait_ms", self.min_wait_ms, "0 or more")
        require_step_counts(self)

    def needs(self) -> Need:
        """Times of steps with waits for data."""
        return step_need(self)

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per worker, mode and scan."""
        for half in judged_halves(window, self, _waits):
            share, wait = half.share("data_ns"), half.ms_per_step("data_ns")
            if share < self.threshold or wait < self.min_wait_ms:
                continue
            use = use_unless_gpu_busy(window, half)
            if use is not None:
                yield self._finding(half, share, wait, use)

    def _finding(self, half: Half, share: float, wait: float, use: MachineUse) -> Finding:
        longest = 100 * _longest_share(half)
        if longest > 60:
            cause = "bursts"
        elif use.iowait_percent > 15:
            cause = "disk"
        elif use.cpu_percent > 85:
            cause = "cpu"
        else:
            cause = "workers" if np.isfinite(use.cpu_percent) else "unknown"
        machine = f"; meanwhile {use.text}" if use.text else ""
        return half_finding(
            self,
            half,
            numbers={
                "kind": cause,
                "wait_percent": share,
                "threshold": self.threshold,
                "wait_ms_per_step": wait,
                "longest_waits_percent": longest,
                **use.numbers,
            },
            why=f"the training waits for data for {share:.0f} % of the time (limit {self.threshold:g} %), "
            f"{wait:.1f} ms per step over {half.span}; the 5 % longest waits are {longest:.0f} % of the "
            f"wait{machine}{_CAUSES[cause]}",
            do=_DO[cause],
        )


_CAUSES = {
    "bursts": ". Few batches are very late, and the others are in time",
    "disk": ". The disk limits the loading of data, so more workers do not help",
    "cpu": ". All cores are busy, with this training or with other programs, so more workers do not help",
    "workers": ". There are idle cores, so more workers help",
    "unknown": "",
}
_DO = {
    "bursts": "keep the DataLoader workers between epochs (persistent_workers=True), raise "
    "prefetch_factor, and look for samples or files that are much larger than the others",
    "disk": "read fewer and larger files, compress the data, or copy the data to a faster local disk",
    "cpu": "look for other programs on the machine; make the transforms cheaper, do them once before the "
    "training or on the GPU, or use a machine with more cores",
    "workers": "raise num_workers of the DataLoader, step by step, and set pin_memory=True for a GPU",
    "unknown": "raise num_workers of the DataLoader if the machine has idle cores; otherwise make the "
    "transforms cheaper. System samples show which of the two helps",
}


def _waits(steps: Steps) -> Ints:
    """Histogram of the waits: number and sum of the waits in each octave, one row per step."""
    wait = steps.of("data_ns")
    octave = np.frexp(wait.astype(np.float64))[1].clip(0, _OCTAVES - 1)
    found = np.zeros((len(wait), 2, _OCTAVES), dtype=np.int64)
    at = np.arange(len(wait))
    found[at, 0, octave], found[at, 1, octave] = 1, wait
    return found.reshape(len(wait), -1)


def _longest_share(half: Half) -> float:
    """Share of the wait in the 5 % of the steps with the longest waits."""
    counts, sums = half.sums[FURTHER:].reshape(2, _OCTAVES)[:, ::-1].astype(np.float64)
    left = np.maximum(_LONGEST * half.steps - (np.cumsum(counts) - counts), 0.0)
    taken = np.minimum(left, counts)
    return float((taken * sums / np.maximum(counts, 1)).sum() / max(sums.sum(), 1.0))
