"""Histograms and quantiles of magnitudes over pixel columns, from the stored counts by powers of two.

Pure functions, any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.histogram import FIRST_BIN, LAST_BIN, Histograms
from tdcore.view.answers.buckets import StepColumns, points
from tdcore.view.answers.packing import pack_doubles, pack_floats

if TYPE_CHECKING:
    from tdcore.view.answers.frame import Frame

__all__ = ["QUANTILES", "log_histogram", "quantile_curves"]

Floats = npt.NDArray[np.float64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def log_histogram(frame: Frame, histograms: Histograms, over: StepColumns) -> dict[str, Any] | None:
    """`LogHistogram` of the contract; None without elements.

    Args:
        frame: Rows with statistics, of one tensor.
        histograms: Histogram of each row.
        over: Pixel columns of the rows.
    """
    columns = len(over)
    elements = np.bincount(over.of_row, weights=frame.columns["count"], minlength=columns)
    if not elements.any():
        return None
    some = elements > 0
    first = int(histograms.exponent.min(initial=0)) if histograms.exponent.size else 0
    bins = int(histograms.exponent.max()) - first + 1 if histograms.exponent.size else 0
    column = np.repeat(over.of_row, np.diff(histograms.ends, prepend=0))
    counts = np.bincount(
        column * bins + histograms.exponent - first, weights=histograms.count, minlength=columns * bins
    ).reshape(columns, bins)
    zeros, bad = (
        np.bincount(over.of_row, weights=each, minlength=columns)
        for each in (frame.columns["zero_count"], frame.columns["count"] - frame.finite)
    )
    share = 1.0 / np.where(some, elements, np.nan)
    return {
        "steps": pack_doubles(over.first),
        "first_exponent": first,
        "bins": bins,
        "shares": pack_floats(counts * share[:, np.newaxis]),
        "zero_shares": pack_floats(zeros * share),
        "bad_shares": pack_floats(bad * share),
    }


def quantile_curves(frame: Frame, histograms: Histograms, columns: int) -> list[dict[str, Any]]:
    """`QuantileCurve` of the contract for each of QUANTILES.

    Args:
        frame: Rows with statistics, of one tensor.
        histograms: Histogram of each row.
        columns: Maximum number of pixel columns.
    """
    return [
        {"quantile": each, "points": points(frame.steps, _quantiles(frame, histograms, each), columns)}
        for each in QUANTILES
    ]


def _quantiles(frame: Frame, histograms: Histograms, share: float) -> Floats:
    """A quantile of the magnitudes of the finite elements of each row, zeros included.

    The true quantile is in the same bin, so that the result is within a factor of 2. The first and the last
    bin also count all smaller and all larger elements. There the result is between the edge of the bin and
    the smallest or largest element. NaN without finite elements.
    """
    rank = np.ceil(share * frame.finite) - frame.columns["zero_count"]  # among the elements that are not zero
    running = np.cumsum(histograms.count)
    starts = histograms.ends - np.diff(histograms.ends, prepend=0)
    before = np.concatenate([[0], running])[starts]
    total = histograms.total()
    found = np.where(frame.finite > 0, 0.0, np.nan)
    rows = np.flatnonzero((rank > 0) & (total > 0))
    wanted = before[rows] + np.minimum(rank[rows], total[rows])
    at = np.searchsorted(running, wanted)
    within = (wanted - (running[at] - histograms.count[at]) - 0.5) / histograms.count[at]
    exponent, share_of_bin = histograms.exponent[at], np.clip(within, 0.0, 1.0)
    least, most = frame.columns["abs_min"][rows], frame.columns["abs_max"][rows]
    with np.errstate(all="ignore"):
        low = np.where(exponent == FIRST_BIN, np.log2(least), exponent)
        high = np.where(exponent == LAST_BIN, np.log2(most), exponent + 1)
        low = np.where(exponent == LAST_BIN, np.maximum(low, np.log2(least)), low)
        high = np.where(exponent == FIRST_BIN, np.minimum(high, np.log2(most)), high)
        sizes = np.exp2(low + share_of_bin * (high - low))
    found[rows] = np.clip(sizes, least, most)
    return found
