"""Epochs: which epoch a saved step belongs to, as the script has set it with Hook.set_epoch().

The first saved step of each epoch has a row with the number, so the newest row at or before a saved step of
the same worker and attempt applies. Threads: as the index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from tdcore.format.layout import EPOCH_SCALAR, TensorKind

if TYPE_CHECKING:
    from tdcore.trial.index import Index

__all__ = ["Epochs"]


class Epochs:
    """Epochs of the steps of a run. Reads each row of the index once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read = 0  # rows of the index
        self._begun: dict[tuple[int, str], dict[int, int]] = {}  # by attempt and worker: step -> epoch
        self._steps: dict[tuple[int, str], list[int]] = {}  # the same steps, sorted

    def of(self, attempt: int, worker: str, step: int) -> int | None:
        """The epoch of a saved step; None if the script has not set one.

        Args:
            attempt, worker: Whose step it is.
            step: Global step, as in the column `step` of the index.
        """
        self._read_rows()
        steps = self._steps.get((attempt, worker), [])
        at = bisect_right(steps, step)
        return self._begun[attempt, worker][steps[at - 1]] if at else None

    def saved(self) -> dict[tuple[int, str], dict[int, int]]:
        """The epochs that were read, in plain values, for a reader that skips their rows."""
        self._read_rows()
        return {home: dict(begun) for home, begun in self._begun.items()}

    def restore(self, saved: Mapping[tuple[int, str], Mapping[int, int]]) -> None:
        """Take over what saved() has returned. Before the first call of `of`."""
        self._begun = {home: dict(begun) for home, begun in saved.items()}
        self._steps = {home: sorted(begun) for home, begun in self._begun.items()}

    def _read_rows(self) -> None:
        index, first = self._index, self._read
        self._read = len(index)
        name = index.dictionaries["name"].code(EPOCH_SCALAR)
        kind = index.dictionaries["kind"].code(TensorKind.SCALAR.label)
        if name < 0 or kind < 0 or first == self._read:
            return
        chosen = (index.column("name")[first:] == name) & (index.column("kind")[first:] == kind)
        rows = np.flatnonzero(chosen) + first
        for row, epoch in zip(rows.tolist(), index.wide("mean", rows).to_pylist(), strict=True):
            if epoch is not None and epoch >= 0 and float(epoch).is_integer():
                home = (int(index.column("attempt")[row]), index.text("worker", row) or "")
                self._begun.setdefault(home, {})[int(index.column("step")[row])] = int(epoch)
        self._steps = {home: sorted(begun) for home, begun in self._begun.items()}
