"""Histograms: the magnitudes of many tensors, counted by powers of two, from the index.

Bin e counts non-zero finite elements with 2^e <= |x| < 2^(e+1). The first and the last bin that the index can
hold (-40 and 23) also count all smaller and all larger elements. Plain values; any thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["FIRST_BIN", "LAST_BIN", "Histograms"]

FIRST_BIN, LAST_BIN = -40, 23

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histograms:
    """Histograms of n rows, concatenated.

    exponent, count: arrays with one entry per bin. ends: shape (n,), the end of the bins of each row.
    """

    exponent: Ints
    count: Ints
    ends: Ints

    @classmethod
    def of(cls, table: pa.Table, rows: Ints) -> Histograms:
        """Histograms of `rows` of a table with the columns log2_first and log2_counts, in the given order."""
        low, span = (int(rows.min()), int(np.ptp(rows)) + 1) if rows.size else (0, 0)
        near = table.select(["log2_first", "log2_counts"]).slice(low, span)  # take() copies its whole input
        part = near.take(pa.array(rows - low))
        lists = part.column("log2_counts").combine_chunks()
        if isinstance(lists, pa.ChunkedArray):  # no rows at all
            none = np.empty(0, dtype=np.int64)
            return cls(exponent=none, count=none, ends=none)
        lengths = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
        first = part.column("log2_first").cast(pa.int64()).fill_null(0).to_numpy()
        ends = np.cumsum(lengths)
        within = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
        count = np.asarray(lists.flatten().to_numpy(), dtype=np.int64)
        return cls(exponent=np.repeat(first, lengths) + within, count=count, ends=ends)

    def below(self, exponent: int | Ints) -> Ints:
        """Per row, the number of non-zero elements with a magnitude below 2^exponent.

        exponent: one for all rows, or one per row.
        """
        each = np.repeat(exponent, self._lengths) if np.ndim(exponent) else exponent
        return self._sums(np.where(self.exponent < each, self.count, 0))

    def total(self) -> Ints:
        """Per row, the number of elements that are not zero."""
        return self._sums(self.count)

    def quantile(self, share: float) -> Ints:
        """Per row, the exponent of the bin that contains the share-quantile of the non-zero magnitudes.

        Rows without elements: 0.
        """
        running = np.cumsum(self.count)
        starts = self.ends - self._lengths
        before = np.concatenate([[0], running])[starts]
        wanted = before + np.maximum(1, np.ceil(share * self.total())).astype(np.int64)
        at = np.searchsorted(running, wanted)
        found = np.zeros(self.ends.size, dtype=np.int64)
        some = self.total() > 0
        found[some] = self.exponent[at[some]]
        return found

    @property
    def _lengths(self) -> Ints:
        return np.diff(self.ends, prepend=0)

    def _sums(self, values: Ints) -> Ints:
        running = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])
        sums: Ints = running[self.ends] - running[self.ends - self._lengths]
        return sums
