"""Details of a catalogue: the entries of each stretch, and totals of each entry.

With them a reader lists the tensors of a file, with their steps, types and bytes, without reading a column.
Files may lack them. Plain values, any thread. See catalogue.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DETAIL_COLUMNS", "DETAIL_LISTS", "Details", "DetailsBuilder"]

Ints: TypeAlias = npt.NDArray[np.int64]

DETAIL_COLUMNS = ("seq", "dtype", "segment", "nbytes")
_TOTALS = ("first", "last", "seq", "nbytes")
DETAIL_LISTS = ("pattern", "sizes", "entries", *_TOTALS, "dtype_entry", "dtype")
_MAX_IN_PATTERNS = 1 << 16  # entries in all patterns together; at least this number is stored
_MAX_KEPT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """Entries of each stretch, and totals of each entry.

    A pattern is a set of entries. A file has a few patterns, such as the tensors of a training step.

    Attributes:
        pattern: The pattern of each stretch.
        sizes: The number of entries of each pattern.
        entries: The entries of each pattern, ascending, one pattern after the other.
        totals: Columns with one element per entry: first and last (numbers of its first and last row in the
            file), seq (`seq` of its first row) and nbytes (bytes of its saved values).
        dtype_entry, dtype: The pairs of an entry and a dtype (position in `dtypes`) that occur.
        dtypes: Names of types.
    """

    pattern: Ints
    sizes: Ints
    entries: Ints
    totals: Mapping[str, Ints]
    dtype_entry: Ints
    dtype: Ints
    dtypes: Sequence[str]

    def lists(self) -> dict[str, Ints]:
        """All columns by name."""
        return {name: self.totals[name] if name in _TOTALS else getattr(self, name) for name in DETAIL_LISTS}

    def stretches_with(self, entries: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Mask of the stretches that have an entry of a mask."""
        of_pattern = np.repeat(np.arange(len(self.sizes)), self.sizes)
        patterns = np.zeros(len(self.sizes), dtype=np.bool_)
        patterns[of_pattern[entries[self.entries]]] = True
        found: npt.NDArray[np.bool_] = patterns[self.pattern]
        return found

    def counted(self, stretches: npt.NDArray[np.bool_], rows: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
        """The stretches that have one row of each of their entries, and the number of rows of each entry.

        Args:
            stretches: Mask of the stretches that are counted.
            rows: The number of rows of each stretch.

        Returns:
            Mask of the counted stretches with one row of each entry, and the rows of each entry in them.
        """
        found = stretches & (rows == self.sizes[self.pattern])
        of_pattern = np.bincount(self.pattern[found], minlength=len(self.sizes))
        counts = np.zeros(len(self.totals["first"]), dtype=np.int64)
        np.add.at(counts, self.entries, np.repeat(of_pattern, self.sizes))
        return found, counts

    @classmethod
    def of_lists(cls, lists: Mapping[str, Ints], dtypes: Sequence[str]) -> Details:
        """Details from the columns that `lists` returned. Raises KeyError if one is missing."""
        rest = {name: lists[name] for name in DETAIL_LISTS if name not in _TOTALS}
        return cls(totals={name: lists[name] for name in _TOTALS}, dtypes=dtypes, **rest)

    def check(self, rows: int, stretches: int, entries: int) -> None:
        """Raise ValueError unless all numbers fit together and fit a file of this size."""
        lengths = {"pattern": stretches, "entries": int(self.sizes.sum()), "dtype_entry": len(self.dtype)}
        lengths |= dict.fromkeys(_TOTALS, entries)
        limits = {
            "pattern": len(self.sizes), "sizes": entries + 1, "entries": entries, "dtype_entry": entries,
            "dtype": len(self.dtypes), "first": rows, "last": rows, "seq": 1 << 31, "nbytes": 1 << 62,
        }  # fmt: skip
        for name, column in self.lists().items():
            if len(column) != lengths.get(name, len(column)):
                raise ValueError("the columns of its catalogue have different lengths")
            if len(column) and (column.min() < 0 or column.max() >= limits[name]):
                raise ValueError(f"its catalogue has an impossible value in {name!r}")
        if not np.bincount(self.entries, minlength=entries).all():
            raise ValueError("its catalogue has an entry that is in no pattern")


class DetailsBuilder:
    """Computes details from rows; see CatalogueBuilder, which calls it."""

    def __init__(self) -> None:
        self.complete = True  # False: a table had no columns for details, or there are too many patterns
        self._pattern: list[int] = []  # of each piece of a stretch
        self._patterns: dict[bytes, int] = {}  # entries, sorted -> number
        self._made_of: dict[bytes, int] = {}  # entries of the rows, in their order -> number
        self._kept_bytes = 0  # of the keys of _made_of
        self._totals: dict[str, list[int]] = {name: [] for name in _TOTALS}
        self._dtypes: dict[str, int] = {}
        self._pairs: dict[tuple[int, int], None] = {}
        self._rows = 0

    def add(self, table: pa.Table, entry: Ints, first: Ints) -> None:
        """Add rows. entry: the entry of each row. first: the first row of each stretch."""
        if not self.complete or not set(DETAIL_COLUMNS) <= set(table.column_names):
            self.complete = False
            return
        self._add_patterns(entry, first)
        self._add_totals(table, entry)
        self._rows += table.num_rows

    def finish(self, joined: Ints) -> Details | None:
        """The details. joined: the first piece of each stretch. None if they are not complete."""
        if not self.complete:
            return None
        pieces = np.array(self._pattern, dtype=np.int64)
        pattern = pieces[joined]
        for at in np.flatnonzero(np.diff(joined, append=len(pieces)) > 1).tolist():
            end = joined[at + 1] if at + 1 < len(joined) else len(pieces)
            texts = list(self._patterns)
            parts = [np.frombuffer(texts[code], dtype=np.int64) for code in pieces[joined[at] : end].tolist()]
            pattern[at] = self._number(np.unique(np.concatenate(parts)))
        texts = list(self._patterns)
        used, pattern = np.unique(pattern, return_inverse=True)  # pieces of stretches are left out
        sets = [np.frombuffer(texts[code], dtype=np.int64) for code in used.tolist()]
        pairs = np.array(list(self._pairs), dtype=np.int64).reshape(-1, 2)
        if sum(map(len, sets)) > max(_MAX_IN_PATTERNS, self._rows // 16):
            return None
        return Details(
            pattern=np.ravel(pattern).astype(np.int64),
            sizes=np.array([len(each) for each in sets], dtype=np.int64),
            entries=np.concatenate([np.empty(0, dtype=np.int64), *sets]),
            totals={name: np.array(values, dtype=np.int64) for name, values in self._totals.items()},
            dtype_entry=pairs[:, 0].copy(),
            dtype=pairs[:, 1].copy(),
            dtypes=list(self._dtypes),
        )

    def _add_patterns(self, entry: Ints, first: Ints) -> None:
        for piece in np.split(entry, first[1:]):
            made_of = piece.tobytes()
            number = self._made_of.get(made_of)
            if number is None:
                number = self._number(np.unique(piece))
                if self._kept_bytes + len(made_of) <= _MAX_KEPT_BYTES:
                    self._made_of[made_of] = number
                    self._kept_bytes += len(made_of)
            self._pattern.append(number)
        if sum(map(len, self._patterns)) > 8 * max(_MAX_IN_PATTERNS, self._rows // 16):
            self.complete = False

    def _number(self, entries: Ints) -> int:
        return self._patterns.setdefault(entries.tobytes(), len(self._patterns))

    def _add_totals(self, table: pa.Table, entry: Ints) -> None:
        used, first, inverse = np.unique(entry, return_index=True, return_inverse=True)
        last = np.zeros(len(used), dtype=np.int64)
        last[inverse] = np.arange(len(entry))
        seq = np.asarray(table.column("seq").to_numpy())
        saved = np.asarray(table.column("segment").is_valid().to_numpy())
        nbytes = np.where(saved, np.asarray(table.column("nbytes").fill_null(0).to_numpy()), 0)
        sums = np.zeros(len(used), dtype=np.int64)
        if nbytes.any():
            np.add.at(sums, inverse, nbytes)
        totals = self._totals
        known = len(totals["first"])
        new = used[used >= known]  # entries are numbered in the order of their first rows
        for name in _TOTALS:
            totals[name] += [0] * len(new)
        for at, number in enumerate(used.tolist()):
            if number >= known:
                totals["first"][number] = self._rows + int(first[at])
                totals["seq"][number] = int(seq[first[at]])
            totals["last"][number] = self._rows + int(last[at])
            totals["nbytes"][number] += int(sums[at])
        self._add_dtypes(table.column("dtype"), entry)

    def _add_dtypes(self, column: pa.ChunkedArray, entry: Ints) -> None:
        begin = 0
        for chunk in column.chunks:
            words = [
                self._dtypes.setdefault(text, len(self._dtypes)) for text in chunk.dictionary.to_pylist()
            ]
            codes = np.asarray(chunk.indices.fill_null(len(words)).to_numpy(zero_copy_only=False))
            places = np.array([*words, -1], dtype=np.int64)[codes]
            key = entry[begin : begin + len(chunk)] * (len(self._dtypes) + 1) + places + 1
            begin += len(chunk)
            for each in np.unique(key).tolist():
                number, dtype = divmod(each, len(self._dtypes) + 1)
                if dtype:
                    self._pairs.setdefault((number, dtype - 1))
