"""Trend: the growth of a value over a training of any length, with a confidence bound, in bounded memory.

`Floor` keeps the minimum of a value in at most 128 bins of equal duration. The duration of a bin doubles
when the bins are full. The minimum ignores short peaks, such as activations, and garbage that is collected
from time to time. `growth` computes the slope of the newest half of the bins. Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = ["Floor", "Growth", "growth"]

Floats = npt.NDArray[np.float64]

_BINS = 128
_FIRST_WIDTH_SECONDS = 0.25
_PARTS = 8  # of the judged time; each one must grow
_MIN_BINS = 16  # in the judged time
_SHARE_OF_EVEN = 0.25  # smallest growth of a part, as a share of an even growth


@dataclass(slots=True, kw_only=True)
class Floor:
    """The minimum of a value in successive bins.

    Attributes:
        width: Duration of a bin in seconds.
        bins: Minimum of each bin; infinite for bins without a value.
    """

    width: float = _FIRST_WIDTH_SECONDS
    bins: Floats = field(default_factory=lambda: np.full(_BINS, np.inf))

    def add(self, seconds: Floats, values: Floats) -> None:
        """Add values. seconds: times since the start, at least 0."""
        if not len(seconds):
            return
        while seconds.max() >= self.width * _BINS:
            half = self.bins.reshape(-1, 2).min(axis=1)
            self.bins = np.concatenate([half, np.full(_BINS // 2, np.inf)])
            self.width *= 2
        np.minimum.at(self.bins, (seconds / self.width).astype(np.int64), values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A steady growth.

    Attributes:
        slope, low, high: Theil-Sen slope per second, and its confidence interval.
        start, end: Level at the start and at the end of the judged time.
        seconds: Duration of the judged time.
    """

    slope: float
    low: float
    high: float
    start: float
    end: float
    seconds: float


def growth(floor: Floor, confidence: float) -> Growth | None:
    """The growth in the newest half of the time; None if the value does not grow steadily.

    The growth is steady if the lower bound of its slope is above 0, and if each of eight successive parts of
    the judged time is clearly above the part before it. So a single jump, or a value that stays at a level,
    is not a growth. The bound is the one of Sen for the Theil-Sen slope.

    Args:
        floor: The minima of the value.
        confidence: Confidence of the interval of the slope, between 0 and 1.
    """
    filled = np.flatnonzero(np.isfinite(floor.bins))
    if not filled.size:
        return None
    filled = filled[filled >= (filled[0] + filled[-1] + 1) // 2]
    if filled.size < _MIN_BINS:
        return None
    times, values = (filled + 0.5) * floor.width, floor.bins[filled]
    later, earlier = np.tril_indices(filled.size, -1)
    slopes = np.sort((values[later] - values[earlier]) / (times[later] - times[earlier]))
    low, high = _interval(slopes, filled.size, confidence)
    slope = float(np.median(slopes))
    parts = np.array([part.min() for part in np.array_split(values, _PARTS)])
    even = slope * (times[-1] - times[0]) / _PARTS
    if low <= 0 or np.diff(parts).min() < _SHARE_OF_EVEN * even:
        return None
    seconds = float(times[-1] - times[0])
    middle = float(np.median(values - slope * (times - times[0])))
    return Growth(
        slope=slope, low=low, high=high, start=middle, end=middle + slope * seconds, seconds=seconds
    )


def _interval(slopes: Floats, points: int, confidence: float) -> tuple[float, float]:
    """Sen's confidence interval of the slope: two order statistics of the slopes of all pairs of points."""
    deviation = NormalDist().inv_cdf(0.5 + confidence / 2) * np.sqrt(
        points * (points - 1) * (2 * points + 5) / 18
    )
    first = int(max(0, np.floor((slopes.size - deviation) / 2)))
    last = int(min(slopes.size - 1, np.ceil((slopes.size + deviation) / 2)))
    return float(slopes[first]), float(slopes[last])
