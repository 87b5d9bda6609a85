"""Epochs: the epoch of each saved step, as set by the script with Hook.set_epoch().

The first saved step of each epoch has a row with the number of the epoch. The epoch of a step is the number
in the last such row of the same worker and attempt at or before the step. Threads: see Index.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, TypeAlias

from tdcore.format.layout import EPOCH_SCALAR, TensorKind

if TYPE_CHECKING:
    from tdcore.trial.index import Index

__all__ = ["Epochs"]

Saved: TypeAlias = "dict[tuple[int, str], tuple[list[int], list[int]]]"


class Epochs:
    """Epochs of the steps of a run. Each row of the index is read once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read = 0  # rows of the index
        # By attempt and worker: rows with an epoch, and the epochs.
        self._rows: dict[tuple[int, str], list[tuple[int, int]]] = {}
        # The same of an earlier reader, with steps instead of rows.
        self._restored: Saved = {}
        # By attempt and worker: sorted steps at which epochs begin, and the epochs.
        self._begun: Saved = {}

    def of(self, attempt: int, worker: str, step: int) -> int | None:
        """The epoch of a saved step; None if the script has not set one.

        Args:
            attempt, worker: The attempt and worker of the step.
            step: Global step, as in the column `step` of the index.
        """
        self._update()
        steps, epochs = self._begun.get((attempt, worker), ([], []))
        at = bisect_right(steps, step)
        return epochs[at - 1] if at else None

    def saved(self) -> Saved:
        """The epochs as plain values, for `restore` of a reader that does not read these rows again."""
        self._update()
        return self._begun

    def restore(self, saved: Saved) -> None:
        """Restore the result of saved() of another reader. Call it before the first row is read."""
        self._restored = {
            (int(attempt), str(worker)): ([int(step) for step in steps], [int(epoch) for epoch in epochs])
            for (attempt, worker), (steps, epochs) in saved.items()
        }
        self._number()

    def _update(self) -> None:
        if self._read != len(self._index):
            self._read_rows()
            self._number()

    def _read_rows(self) -> None:
        """Read the new rows of the index."""
        index, first = self._index, self._read
        self._read = len(index)
        name = index.dictionaries["name"].code(EPOCH_SCALAR)
        kind = index.dictionaries["kind"].code(TensorKind.SCALAR.label)
        if name < 0 or kind < 0:
            return
        tests = {"name": index.among("name", [name]), "kind": index.among("kind", [kind])}
        rows = index.find(tests, first=first)
        for row, epoch in zip(rows.tolist(), index.wide("mean", rows).to_pylist(), strict=True):
            if epoch is not None and epoch >= 0 and float(epoch).is_integer():
                home = (int(index.column("attempt")[row]), index.text("worker", row) or "")
                self._rows.setdefault(home, []).append((row, int(epoch)))

    def _number(self) -> None:
        """Sort the epochs by their steps. New rows of another worker can change the numbers of steps."""
        step = self._index.column("step")
        for home in {*self._restored, *self._rows}:
            known = zip(*self._restored.get(home, ([], [])), strict=True)
            begun = [(number, -1, epoch) for number, epoch in known]
            begun = sorted(begun + [(int(step[row]), row, epoch) for row, epoch in self._rows.get(home, [])])
            self._begun[home] = [each[0] for each in begun], [each[2] for each in begun]
