"""Distribution: percentiles of a series of numbers, in bounded memory.

The numbers are counted in bins whose limits grow by 1 %, so a percentile is within 0.5 % of the value of
numpy.percentile. The largest and the smallest number are exact. The counts are whole numbers, so the result
does not depend on the pieces in which the numbers arrive. Belongs to the memory of one rule; one thread.

Source: C. Masson et al., DDSketch: A Fast and Fully-Mergeable Quantile Sketch with Relative-Error Guarantees,
VLDB 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["STATISTICS", "Distribution"]

STATISTICS = ("max", "p99", "p95", "p50", "min")
_PERCENTS = (99, 95, 50)
_LOG_GROWTH = math.log(1.01)
_SMALLEST = 1e-9  # smaller numbers count as 0
_ZERO = -(1 << 31)  # bin of 0 and of smaller numbers


@dataclass(slots=True, kw_only=True)
class Distribution:
    """Counts of numbers that are 0 or more.

    Attributes:
        counts: Number of values by bin.
        smallest, largest: The smallest and the largest value.
    """

    counts: dict[int, int] = field(default_factory=dict)
    smallest: float = math.inf
    largest: float = -math.inf

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add values; NaN and infinities are left out."""
        known = values[np.isfinite(values)]
        if not known.size:
            return
        self.smallest = min(self.smallest, float(known.min()))
        self.largest = max(self.largest, float(known.max()))
        bins = np.full(known.size, _ZERO, dtype=np.int64)
        positive = known >= _SMALLEST
        bins[positive] = np.ceil(np.log(known[positive]) / _LOG_GROWTH)
        for each, number in zip(
            *(part.tolist() for part in np.unique(bins, return_counts=True)), strict=True
        ):
            self.counts[each] = self.counts.get(each, 0) + number

    def statistics(self) -> dict[str, float]:
        """The statistics by their names in STATISTICS; empty without a value."""
        if not self.counts:
            return {}
        bins = sorted(self.counts)
        ends = np.cumsum([self.counts[each] for each in bins])
        centres = [0.0 if each == _ZERO else math.exp((each - 0.5) * _LOG_GROWTH) for each in bins]
        inside = np.clip(centres, self.smallest, self.largest)
        found = [self.largest]
        for percent in _PERCENTS:
            rank = percent / 100 * (int(ends[-1]) - 1)
            low, high = (
                inside[int(np.searchsorted(ends, each, side="right"))]
                for each in (math.floor(rank), math.ceil(rank))
            )
            found.append(float(low + (rank - math.floor(rank)) * (high - low)))
        return dict(zip(STATISTICS, [*found, self.smallest], strict=True))
