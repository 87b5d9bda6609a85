"""Row order of a catalogue: which entry each row of a stretch has, so that a reader locates the rows of a
tensor without reading the names.

The steps of a training usually have their rows in the same order, so a file has a few orders. Files may lack
them, and an order can be unknown for some stretches. Plain values, any thread. See catalogue.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.format.packed import Ints, spans

__all__ = ["ORDER_LISTS", "RowOrder", "RowOrderBuilder"]

Mask: TypeAlias = npt.NDArray[np.bool_]

ORDER_LISTS = ("stretch", "sizes", "entries")
_MIN_STORED = 1 << 14  # entries in all orders together that are stored also in a small file
_ROWS_PER_STORED = 64  # of a large file, one entry is stored for this number of rows
_MAX_KEPT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """The entries of the rows of each stretch, in order.

    Attributes:
        stretch: The order of each stretch; -1 if it is unknown.
        sizes: The number of rows of each order.
        entries: The entry of each row of an order, one order after the other.
    """

    stretch: Ints
    sizes: Ints
    entries: Ints

    def lists(self) -> dict[str, Ints]:
        """All columns by name."""
        return {name: getattr(self, name) for name in ORDER_LISTS}

    def is_known(self, stretches: slice) -> bool:
        """Whether the order of each of these stretches is known."""
        return bool((self.stretch[stretches] >= 0).all())

    def entries_of(self, stretches: Ints, begin: Ints, rows: Ints) -> Ints:
        """The entries of some rows of stretches, whose orders are known, one stretch after the other.

        Args:
            stretches: The stretches.
            begin: For each of them, the first row that is wanted, counted within the stretch.
            rows: The number of wanted rows of each stretch.
        """
        found: Ints = self.entries[spans(self._starts()[self.stretch[stretches]] + begin, rows)]
        return found

    def rows_with(self, entries: Mask, stretches: Mask, first: Ints) -> Ints:
        """The rows of some stretches that have an entry of a mask, ascending.

        Args:
            entries: The entries.
            stretches: The stretches. The rows of a stretch without a known order are left out.
            first: The first row of each stretch.
        """
        chosen = entries[self.entries]
        places = np.flatnonzero(chosen)
        starts = self._starts()
        counts = np.diff(np.searchsorted(places, np.append(starts, len(self.entries))))
        at = np.flatnonzero(stretches & (self.stretch >= 0))
        orders = self.stretch[at]
        of_order = np.cumsum(counts) - counts  # the first of the places of each order
        found: Ints = places[spans(of_order[orders], counts[orders])]
        found += np.repeat(first[at] - starts[orders], counts[orders])
        return found

    def check(self, stretches: Mapping[str, Ints], modes: Ints, totals: Mapping[str, Ints] | None) -> None:
        """Raise ValueError unless all numbers fit together and fit the rest of the catalogue.

        Args:
            stretches: Columns of the catalogue.
            modes: The mode of each entry.
            totals: Columns `first` and `last` of the entries, see Details; None if unknown.
        """
        if len(self.stretch) != len(stretches["rows"]) or len(self.entries) != int(self.sizes.sum()):
            raise ValueError("the columns of its catalogue have different lengths")
        limits = {"stretch": len(self.sizes), "sizes": len(self.entries) + 1, "entries": len(modes)}
        least = {"stretch": -1, "sizes": 1}
        for name, column in self.lists().items():
            if len(column) and (column.min() < least.get(name, 0) or column.max() >= limits[name]):
                raise ValueError(f"its catalogue has an impossible value in the order's {name!r}")
        known = np.flatnonzero(self.stretch >= 0)
        orders, starts = self.stretch[known], self._starts()
        mode = modes[self.entries[starts]]
        fits = (self.sizes[orders] == stretches["rows"][known]) & (mode[orders] == stretches["mode"][known])
        if not fits.all() or not (modes[self.entries] == np.repeat(mode, self.sizes)).all():
            raise ValueError("its catalogue has an order of other rows than those of a stretch")
        if totals is not None:
            self._check_places(stretches["rows"], totals)

    def _check_places(self, rows: Ints, totals: Mapping[str, Ints]) -> None:
        """Raise ValueError unless the first and the last row of each entry are those in `totals`."""
        ends = np.cumsum(rows)
        for name in ("first", "last"):
            places = totals[name]
            stretch = np.searchsorted(ends, places, side="right")
            known = np.flatnonzero(self.stretch[stretch] >= 0)
            within = places[known] - (ends - rows)[stretch[known]]
            found = self.entries[self._starts()[self.stretch[stretch[known]]] + within]
            if not np.array_equal(found, known):
                raise ValueError(f"its catalogue has an order that contradicts the {name} row of an entry")

    def _starts(self) -> Ints:
        starts: Ints = np.cumsum(self.sizes) - self.sizes
        return starts


class RowOrderBuilder:
    """Computes row orders; see CatalogueBuilder, which calls it."""

    def __init__(self) -> None:
        self._pieces: list[int] = []  # the order of each piece of a stretch; -1 if it was not kept
        self._orders: dict[bytes, int] = {}  # entries of the rows -> number
        self._kept_bytes = 0  # of the keys of _orders
        self._rows = 0

    def add(self, entry: Ints, first: Ints) -> None:
        """Add rows. entry: the entry of each row. first: the first row of each stretch."""
        self._pieces += [self._number(piece.tobytes()) for piece in np.split(entry, first[1:])]
        self._rows += len(entry)

    def finish(self, joined: Ints) -> RowOrder:
        """The orders that occur most often. joined: the first piece of each stretch."""
        texts = list(self._orders)
        ends = [*joined.tolist()[1:], len(self._pieces)]
        found = []
        for begin, end in zip(joined.tolist(), ends, strict=True):
            pieces = self._pieces[begin:end]
            if len(pieces) == 1 or min(pieces) < 0:
                found.append(min(pieces))
                continue
            found.append(self._number(b"".join(texts[piece] for piece in pieces)))
        return self._of_most(found)

    def _of_most(self, stretch: Sequence[int]) -> RowOrder:
        """The orders of most stretches, as far as they are stored, in the order of their numbers."""
        texts, left = list(self._orders), max(_MIN_STORED, self._rows // _ROWS_PER_STORED)
        stored = []
        for order, _ in Counter(each for each in stretch if each >= 0).most_common():
            size = len(texts[order]) // 8
            if size <= left:
                stored.append(order)
                left -= size
        stored.sort()
        places = {order: at for at, order in enumerate(stored)}
        sets = [np.frombuffer(texts[order], dtype=np.int64) for order in stored]
        return RowOrder(
            stretch=np.array([places.get(order, -1) for order in stretch], dtype=np.int64),
            sizes=np.array([len(each) for each in sets], dtype=np.int64),
            entries=np.concatenate([np.empty(0, dtype=np.int64), *sets]),
        )

    def _number(self, entries: bytes) -> int:
        """The number of an order; -1 if it is new and there is no room for it."""
        number = self._orders.get(entries)
        if number is None:
            if self._kept_bytes + len(entries) > _MAX_KEPT_BYTES:
                return -1
            number = self._orders[entries] = len(self._orders)
            self._kept_bytes += len(entries)
        return number
