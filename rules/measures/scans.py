"""Scans: periodic judgements of a series of system samples, over a window of the newest points.

Scan intervals are counted from the first point of the series. A scan takes place at the first point of each
interval except the first interval. So the scans are the same whether a run is judged while it is written or
later. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import require
from tdcore.rules.samples import Place, Series

__all__ = [
    "SCAN_INTERVAL_US",
    "Scan",
    "ScanState",
    "duration_text",
    "forget_series",
    "require_counts",
    "scans",
    "time_text",
]

SCAN_INTERVAL_US = 60_000_000
Floats = npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class ScanState:
    """The state of one series: its number of points, the newest scan interval, and the newest points.

    Attributes:
        first_ns, newest_ns: Times of the first and the newest point.
        interval: Number of the scan interval of the newest point.
        points: Number of points.
        kept: The newest points, shape (points, 1 + n): seconds since the first point, and the values.
    """

    first_ns: int
    newest_ns: int
    interval: int = 0
    points: int = 0
    kept: Floats = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scan:
    """One scan of a series.

    Attributes:
        at: Position in the series of the last point that is judged.
        sample, time_ns: Number and time of this point.
        points: Number of points of the place so far, also of earlier windows.
        values: The newest points, shape (points, n).
        seconds: Time between the first and the last of these points.
    """

    at: int
    sample: int
    time_ns: int
    points: int
    values: Floats
    seconds: float

    @property
    def until(self) -> str:
        """The time of the scan as text."""
        return time_text(self.time_ns)


def scans(
    memory: MutableMapping[Any, Any], series: Series, *, scan_interval_us: int, keep: int
) -> Iterator[Scan]:
    """The scans of a series, in order.

    Args:
        memory: Memory of the rule, which keeps the state of the series.
        series: New points of a place.
        scan_interval_us: Time between two scans, in microseconds.
        keep: Number of newest points that a scan gets, at least 1.
    """
    key = _state_key(series.place)
    state = memory.get(key)
    if state is None:
        first = int(series.time_ns[0])
        state = memory[key] = ScanState(first_ns=first, newest_ns=first)
    times = np.maximum.accumulate(np.maximum(series.time_ns, state.newest_ns))
    intervals = (times - state.first_ns) // (1000 * scan_interval_us)
    begins = np.flatnonzero(np.diff(intervals, prepend=state.interval) > 0)
    new = np.column_stack([(times - state.first_ns) / 1e9, series.values])
    joined = np.concatenate([state.kept, new]) if state.kept.size else new
    before, points = len(joined) - len(new), state.points
    state.points += len(new)
    state.newest_ns, state.interval = int(times[-1]), int(intervals[-1])
    state.kept = joined[max(0, len(joined) - keep) :].copy()
    for at in begins.tolist():
        end = before + at + 1
        part = joined[max(0, end - keep) : end]
        yield Scan(
            at=at,
            sample=int(series.sample[at]),
            time_ns=int(times[at]),
            points=points + at + 1,
            values=part[:, 1:],
            seconds=float(part[-1, 0] - part[0, 0]),
        )


def forget_series(memory: MutableMapping[Any, Any], place: Place) -> None:
    """Begin the series of a place again, at its next point."""
    memory.pop(_state_key(place), None)


def require_counts(rule: Any, *names: str) -> None:
    """Raise ConfigError unless these parameters are whole numbers of at least 1."""
    for name in names:
        value = getattr(rule, name)
        require(value >= 1 and value == int(value), rule, name, value, "a whole number, 1 or more")


def _state_key(place: Place) -> tuple[Any, ...]:
    return ("scans", *place)


def time_text(time_ns: int) -> str:
    """A time in UTC as text, to the second."""
    return f"{datetime.fromtimestamp(time_ns // 10**9, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def duration_text(seconds: float) -> str:
    """A duration as text, in the unit that fits: "45 s", "12 min", "3.5 h", "12 days"."""
    for unit, size, next_size in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < next_size:
            value = seconds / size
            return f"{value:.1f} {unit}" if unit == "h" or value < 10 else f"{value:.0f} {unit}"
    return f"{min(seconds / 86400, 1e6):.0f} days"
