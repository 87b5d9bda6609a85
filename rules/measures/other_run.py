"""OtherRun: a finished run that a rule compares with the current run, row by row.

Only numbers and names are read; nothing of the run is executed. Threads: belongs to one rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import RunNotFound
from tdcore.rules.columns import Columns, Mask
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import COLUMNS, Source
from tdcore.rules.window import Window

__all__ = ["OpenedRuns", "OtherRun", "opened"]

_Ints = npt.NDArray[np.int64]
_TEXTS = ("worker", "mode", "name")
_NUMBERS = ("mode_step", "call")


class OtherRun:
    """All rows of a source.

    Raises RunNotFound if there is no run, RunCorrupt or SinkError if it cannot be read.
    """

    def __init__(self, source: Source) -> None:
        if not source.begun():
            raise RunNotFound(
                f"there is no run at {source.where} to compare with; give the out_dir of a hook"
            )
        self._batches = [source.next(COLUMNS, everything=True)]
        while self._batches[-1].more:
            self._batches.append(source.next(COLUMNS, everything=True))
        tables = [batch.table for batch in self._batches]
        self._ends = np.cumsum([table.num_rows for table in tables])
        self.columns = Columns(pa.concat_tables(tables))
        rows = np.arange(self._ends[-1])
        self._codes = {each: _code_of(self.columns.codes(each)[1]) for each in _TEXTS}
        self._sizes = {each: len(codes) + 1 for each, codes in self._codes.items()}
        self._sizes |= {each: int(self.columns.ints(each).max(initial=0)) + 1 for each in _NUMBERS}
        key = self._key(self.columns, rows)
        self._order = np.argsort(key, kind="stable")
        self._sorted = key[self._order]

    def rows_like(self, window: Window, rows: _Ints) -> _Ints:
        """For each row of the window, the row of this run with equal worker, mode, mode step, name and call.

        -1 if there is none.
        """
        if not self._sorted.size or not rows.size:
            return np.full(rows.size, -1, dtype=np.int64)
        key = self._key(window.columns, rows)
        at = np.minimum(np.searchsorted(self._sorted, key), self._sorted.size - 1)
        return np.where((key >= 0) & (self._sorted[at] == key), self._order[at], -1)

    def payload(self, row: int) -> npt.NDArray[Any]:
        """The values of one row."""
        at = int(np.searchsorted(self._ends, row, side="right"))
        return self._batches[at].payload(row - int(self._ends[at]) + self._batches[at].table.num_rows)

    def ok(self, rows: _Ints) -> Mask:
        """Mask of the rows that have a value."""
        found: Mask = self.columns.where("status", lambda status: status in ("ok", "lost"))[rows]
        return found

    def _key(self, columns: Columns, rows: _Ints) -> _Ints:
        """One number per row for all columns that must be equal; -1 for values that this run lacks."""
        key = np.zeros(rows.size, dtype=np.int64)
        known = np.ones(rows.size, dtype=np.bool_)
        room = 1
        for each in (*_TEXTS, *_NUMBERS):
            size = self._sizes[each]
            room *= size
            if each in _TEXTS:
                codes, texts = columns.codes(each)
                part = np.array([self._codes[each].get(text, -1) for text in texts], dtype=np.int64)[
                    codes[rows]
                ]
            else:
                part = columns.ints(each)[rows]
            known &= (part >= 0) & (part < size)
            key = key * size + np.clip(part, 0, size - 1)
        if room >= 2**63:
            raise ValueError("the other run has too many names and steps to be compared")
        return np.where(known, key, -1)


@dataclass(eq=False)  # no slots, because weak references need __weakref__
class OpenedRuns:
    """Key of a cache of opened runs in a rule's memory. The cache has the key's lifetime and is not saved."""


def opened(place: str, key: OpenedRuns) -> OtherRun:
    """The newest attempt of the run at `place`, a folder or URL, read once for each `key`."""
    runs = _read.setdefault(key, {})
    if place not in runs:
        runs[place] = OtherRun(RunSource(place))
    return runs[place]


_read: WeakKeyDictionary[OpenedRuns, dict[str, OtherRun]] = WeakKeyDictionary()


def _code_of(texts: list[str | None]) -> dict[str | None, int]:
    return {text: code for code, text in enumerate(texts) if text is not None}
