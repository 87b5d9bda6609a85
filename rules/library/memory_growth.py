"""TDC213: memory of the trainer or of a GPU that grows steadily."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Columns
from tdcore.rules.measures.scans import (
    SCAN_INTERVAL_US,
    Scan,
    duration_text,
    require_counts,
    scans,
    time_text,
)
from tdcore.rules.measures.trend import Floor, Growth, growth
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, Samples, Series, sample_finding
from tdcore.rules.window import Window

__all__ = ["MemoryGrowth"]

Floats = npt.NDArray[np.float64]
_MIB = float(1 << 20)
_NOTE_NS = 60 * 10**9  # a note about the memory of a host per minute
_KEPT_NOTES = 16  # of a host, between two windows


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """Host memory of the trainer, or memory of a GPU, that grows steadily: a leak.

    What it does:
        Judges two kinds of memory in the system samples: the resident memory of the trainer and its child
        processes, and the used memory of each GPU. The rule computes the slope of the memory with a
        confidence bound, and the time until the limit is reached.

    Why it matters:
        A training that leaks memory runs well for hours, and is then killed by the system, or fails with an
        out-of-memory error. Everything after the last checkpoint is lost.

    Decides by:
        The first `patience` samples are not judged, because caches and allocators grow at the start. Later
        samples are reduced to the minimum memory in each of at most 128 time intervals of equal duration, so
        that short peaks and collected garbage do not count. At each scan the rule judges the newest half of
        the intervals. It fires if all of these conditions hold:

        - The lower confidence bound of the Theil-Sen slope is above 0.
        - The memory grows in each of eight successive parts of the judged time. A single jump, or memory
          that stays at a level, is not a leak.
        - The memory has grown by at least `min_growth` percent and `min_bytes` in the judged time.

        The limit of the host is the tightest memory limit of the container, or the memory of the machine. The
        time until the limit is the free memory, divided by the slope.

    Parameters:
        min_growth: smallest growth in the judged time, in percent of the memory at its start.
        min_bytes: smallest growth in the judged time, in bytes.
        confidence: confidence of the interval of the slope, between 0.5 and 1.
        patience: number of samples at the start that are not judged.
        min_points: number of samples after these that are needed for a judgement.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - A data set that is cached in memory during a long first epoch.
        - Other processes whose memory grows on the same GPU.
        - Memory that processes share counts once for each process, so workers that touch more and more shared
          pages appear to grow.

    Do:
        Host: do not store tensors that are attached to a graph; append loss.item() or loss.detach(). Look for
        lists, caches and logs that grow with each step. With DataLoader workers, store the samples of a
        Dataset in arrays in place of Python lists. GPU: delete outputs that are not needed, and look at
        torch.cuda.memory_summary().

    Source:
        P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 1968. PyTorch FAQ, "My
        model reports cuda runtime error(2): out of memory".
    """

    code: ClassVar[str] = "TDC213"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("trainer_memory",)

    min_growth: float = 5.0
    min_bytes: int = 64 << 20
    confidence: float = 0.99
    patience: int = 240
    min_points: int = 240
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        require(0 <= self.min_growth < np.inf, self, "min_growth", self.min_growth, "a percentage from 0 on")
        require(self.min_bytes >= 0, self, "min_bytes", self.min_bytes, "0 or more")
        require(0.5 < self.confidence < 1, self, "confidence", self.confidence, "between 0.5 and 1")
        require_counts(self, "patience", "min_points", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of the trainer's memory."""
        return Need(
            what=f"more than {self.patience + self.min_points:,} system samples of the trainer's memory, and "
            "a scan after them"
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per trainer or GPU, and scan."""
        samples = window.samples
        if samples is None:
            return
        _note_hosts(samples, window.memory)
        for series in samples.series(lambda columns: columns.floats("trainer_memory")[:, None]):
            for scan, grown in self._growing(window, series, "host"):
                limit, free, age = _host_at(window.memory, series.place, scan.time_ns)
                yield from self._finding(series.place, scan, grown, "host", limit, free - grown.slope * age)
        for series in samples.gpu_series(_gpu_memory):
            for scan, grown in self._growing(window, series, "gpu"):
                limit = float(series.values[scan.at, 1])
                free = max(limit - float(series.values[scan.at, 0]), 0.0)
                yield from self._finding(series.place, scan, grown, "gpu", limit, free)
        _forget_old_notes(window.memory)

    def _growing(self, window: Window, series: Series, kind: str) -> Iterator[tuple[Scan, Growth]]:
        """The scans at which the memory grows enough."""
        state = window.memory.setdefault(("floor", *series.place), _State())
        done = 0
        for scan in scans(window.memory, series, scan_interval_us=self.scan_interval_us, keep=1):
            state.add(series, done, scan.at + 1, self.patience)
            done = scan.at + 1
            if state.points < self.min_points:
                continue
            window.judged(1)
            grown = growth(state.floor, self.confidence)
            if grown is not None and grown.end - grown.start >= max(
                self.min_bytes, self.min_growth / 100 * grown.start
            ):
                yield scan, grown
        state.add(series, done, len(series.sample), self.patience)

    def _finding(
        self, place: Place, scan: Scan, grown: Growth, kind: str, limit: float, free: float
    ) -> Iterator[Finding]:
        left = max(free, 0.0) / grown.slope if limit > 0 else np.inf
        name = (
            "the memory of the trainer and its child processes" if kind == "host" else "the memory of the GPU"
        )
        hour = 3600 / _MIB
        until = (
            f"the limit of {limit / _MIB:,.0f} MiB is reached in {duration_text(left)}, at "
            f"{time_text(scan.time_ns + int(left * 1e9))}"
            if left < 1e8
            else "the limit is not known"
            if limit <= 0
            else "the limit is years away"
        )
        yield sample_finding(
            self,
            place,
            scan.sample,
            numbers={
                "kind": kind,
                "bytes_per_second": grown.slope,
                "bytes_per_second_low": grown.low,
                "bytes_per_second_high": grown.high,
                "bytes_at_start": grown.start,
                "bytes": grown.end,
                "limit_bytes": limit,
                "seconds_to_limit": left,
                "judged_seconds": grown.seconds,
                "time_ns": scan.time_ns,
            },
            why=f"{name} grows by {grown.slope * hour:,.0f} MiB per hour "
            f"({100 * self.confidence:g}% interval {grown.low * hour:,.0f} to {grown.high * hour:,.0f}): "
            f"from {grown.start / _MIB:,.0f} to "
            f"{grown.end / _MIB:,.0f} MiB in {duration_text(grown.seconds)} until {scan.until}; {until}",
            do=_DO[kind],
        )


_DO = {
    "host": "look for objects that each step adds to: append loss.item() in place of the loss, clear lists "
    "and caches, and store the samples of a Dataset in arrays if DataLoader workers are used",
    "gpu": "do not store outputs or losses that are attached to a graph (use detach() or item()), delete "
    "tensors that are not needed, and look at torch.cuda.memory_summary()",
}


@dataclass(slots=True, kw_only=True)
class _State:
    """The memory of one trainer or GPU so far. seen, points: numbers of all and of judged samples."""

    seen: int = 0
    points: int = 0
    first_ns: int = 0
    floor: Floor = field(default_factory=Floor)

    def add(self, series: Series, first: int, end: int, patience: int) -> None:
        """Add the points `first` to `end` of a series."""
        skipped = min(max(patience - self.seen, 0), end - first)
        self.seen += end - first
        first += skipped
        if first >= end:
            return
        if not self.points:
            self.first_ns = int(series.time_ns[first])
        self.points += end - first
        seconds = np.maximum((series.time_ns[first:end] - self.first_ns) / 1e9, 0.0)
        self.floor.add(seconds, series.values[first:end, 0])


def _gpu_memory(gpus: Columns) -> Floats:
    return np.column_stack([gpus.floats("memory_used"), gpus.floats("memory_total")])


def _note_hosts(samples: Samples, memory: MutableMapping[Any, Any]) -> None:
    """Store the memory limit and the free memory of each host, once per minute of its samples."""
    for series in samples.series(_host_memory):
        noted = memory.setdefault(("host", series.place.attempt, series.place.host), [])
        newest = noted[-1][0] // _NOTE_NS if noted else -1
        minutes = np.maximum.accumulate(series.time_ns // _NOTE_NS)
        for at in np.flatnonzero(np.diff(minutes, prepend=newest) > 0).tolist():
            total, available, limit, used = series.values[at].tolist()
            limited = (min(total, limit), min(available, limit - used)) if limit > 0 else (total, available)
            noted.append((int(series.time_ns[at]), limited[0], max(limited[1], 0.0)))


def _host_at(memory: MutableMapping[Any, Any], place: Place, time_ns: int) -> tuple[float, float, float]:
    """Limit and free memory of a host before a time, and seconds since this note; zeros without a note.

    If the worker itself has samples of the machine, the result does not depend on later samples, so it is the
    same whether a run is judged while it is written or later. Notes of another worker may all be later than
    this time; the earliest note is then used.
    """
    noted = memory.get(("host", place.attempt, place.host), [])
    if not noted:
        return 0.0, 0.0, 0.0
    at, limit, free = next((each for each in reversed(noted) if each[0] <= time_ns), noted[0])
    return limit, free, max(time_ns - at, 0) / 1e9


def _forget_old_notes(memory: MutableMapping[Any, Any]) -> None:
    for key, noted in memory.items():
        if key[0] == "host":
            del noted[:-_KEPT_NOTES]


def _host_memory(columns: Columns) -> Floats:
    """Columns: total, available, limit of the container (-1: none) and its usage."""
    known = [columns.floats(name) for name in ("memory_total", "memory_available")]
    limits = [columns.floats(name) for name in ("memory_limit", "memory_limit_used")]
    has_limit = ~np.isnan(limits[0]) & ~np.isnan(limits[1])
    return np.column_stack([*known, *(np.where(has_limit, each, -1.0) for each in limits)])
