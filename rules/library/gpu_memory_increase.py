"""TDC204: a large increase of the used memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.gpu_memory import memory_percent
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, require_counts, scans, time_text
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Series, sample_finding
from tdcore.rules.window import Window

__all__ = ["GPUMemoryIncrease"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUMemoryIncrease:
    """Used memory of a GPU that increases by a large amount within a few samples.

    What it does:
        Judges the used share of the memory of each GPU. At each sample, the rule compares the mean of the
        newest `window` samples with the mean of the `window` samples before them.

    Why it matters:
        After its first steps, a training usually needs the same memory in each step. A later increase means
        that larger inputs, a new phase of the training or a leak need more memory, and the next increase may
        fail with an out-of-memory error.

    Decides by:
        The rule fires if the difference of the two means is above `increase`, in percentage points, at a
        sample after the first `patience` samples. Each scan reports the largest increase since the last scan.

        The two windows are adjacent and have the same size. The rule of smdebug appears to compare 10 samples
        with 9 samples. Counts are in samples: with the default interval of 500 ms, 10 samples are 5 s. A slow
        growth is found by MemoryGrowth.

    Parameters:
        increase: difference of the means above which the rule fires, in percentage points.
        patience: number of samples at the start that must pass before the first judgement.
        window: number of samples of each of the two means.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - The first validation, or a longer sequence than all before, for which the allocator reserves memory.
        - Another process that starts on the same GPU.

    Do:
        Compare the time of the finding with the steps of the training. Limit the size of the largest batch,
        delete tensors before a new phase, or use a GPU with more memory.

    Source:
        The rule GPUMemoryIncrease of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC204"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.memory_used", "gpus.memory_total")

    increase: float = 5.0
    patience: int = 1000
    window: int = 10
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        require(
            0 < self.increase <= 100, self, "increase", self.increase, "percentage points, above 0 to 100"
        )
        require_counts(self, "patience", "window", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of GPUs."""
        return Need(what=f"more than {self.patience:,} system samples of a GPU, and a scan after them")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per GPU and scan."""
        if window.samples is None:
            return
        for series in window.samples.gpu_series(lambda gpus: memory_percent(gpus)[:, None]):
            state = window.memory.setdefault(("increase", *series.place), _State())
            rises = state.rises(series.values[:, 0], self.window, self.patience)
            done = 0
            for scan in scans(window.memory, series, scan_interval_us=self.scan_interval_us, keep=1):
                state.note(series, rises, done, scan.at + 1)
                done = scan.at + 1
                if scan.points > self.patience:
                    window.judged(1)
                if state.rise > self.increase:
                    yield self._finding(series, scan.sample, state)
                state.rise = 0.0
            state.note(series, rises, done, len(rises))

    def _finding(self, series: Series, sample: int, state: _State) -> Finding:
        return sample_finding(
            self,
            series.place,
            sample,
            numbers={
                "increase": state.rise,
                "from_percent": state.level - state.rise,
                "to_percent": state.level,
                "limit": self.increase,
                "window": self.window,
                "time_ns": state.time_ns,
            },
            why=f"the used memory of the GPU increases by {state.rise:.1f} percentage points (limit "
            f"{self.increase:g}), from {state.level - state.rise:.1f} % to {state.level:.1f} %, within "
            f"{2 * self.window:,} samples until {time_text(state.time_ns)}",
            do="compare this time with the steps of the training; limit the size of the largest batch, "
            "delete tensors before a new phase, or use a GPU with more memory",
        )


@dataclass(slots=True, kw_only=True)
class _State:
    """The newest values of one GPU, and the largest increase since the last scan.

    Attributes:
        points: Number of values so far.
        kept: The newest values, one less than two windows.
        rise, level, time_ns: The largest increase, the mean after it, and its time.
    """

    points: int = 0
    kept: Floats = field(default_factory=lambda: np.empty(0))
    rise: float = 0.0
    level: float = 0.0
    time_ns: int = 0

    def rises(self, values: Floats, window: int, patience: int) -> npt.NDArray[Any]:
        """(mean, increase) at each value, shape (values, 2); zeros where there is no judgement."""
        joined = np.concatenate([self.kept, values])
        found = np.zeros((len(values), 2))
        if len(joined) >= 2 * window:
            parts = np.lib.stride_tricks.sliding_window_view(joined, 2 * window)
            later, earlier = (
                np.ascontiguousarray(part).mean(axis=1) for part in (parts[:, window:], parts[:, :window])
            )
            rows = np.column_stack([later, later - earlier])[-len(values) :]
            found[len(values) - len(rows) :] = rows
        early = max(0, min(len(values), patience - self.points))
        found[:early] = 0.0
        self.points += len(values)
        self.kept = joined[max(0, len(joined) - 2 * window + 1) :].copy()
        return found

    def note(self, series: Series, rises: npt.NDArray[Any], first: int, end: int) -> None:
        """Store the largest increase of the values `first` to `end`, if it is the largest so far."""
        if first >= end:
            return
        at = first + int(np.argmax(rises[first:end, 1]))
        if rises[at, 1] > self.rise:
            self.level, self.rise = (float(each) for each in rises[at])
            self.time_ns = int(series.time_ns[at])
