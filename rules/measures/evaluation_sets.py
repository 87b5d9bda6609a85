"""Evaluation sets: losses of a training set and of validation sets that are saved at the same steps.

Gradient boosting evaluates several sets after each round and names the losses "<set>-<metric>". Blocks of ten
rounds replace the phases of other trainings. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tdcore.rules.measures.phases import Phase
from tdcore.rules.measures.series import Points, series
from tdcore.rules.window import Window

__all__ = ["SetPairs"]

_ROUNDS = 10  # rounds in one block
_Key = tuple[int, str, str]  # attempt, worker, metric


@dataclass(slots=True, kw_only=True)
class SetPairs:
    """Collects the losses of evaluation sets of one run.

    training_sets: names of sets with training data.
    """

    training_sets: tuple[str, ...]
    open: dict[_Key, dict[str, Phase]] = field(default_factory=dict)  # metric -> set -> open block
    metrics: set[str] = field(default_factory=set)  # those of training sets

    def chosen(self, names: Iterable[str]) -> set[str]:
        """The names that are losses of evaluation sets whose metric a training set has too."""
        parts = {name: name.partition("-") for name in names}
        self.metrics.update(metric for owner, _, metric in parts.values() if owner in self.training_sets)
        return {name for name, (_, dash, metric) in parts.items() if dash and metric in self.metrics}

    def take(
        self, window: Window, rows: Iterable[int]
    ) -> Iterator[tuple[tuple[int, str, str], Phase, Phase]]:
        """Add the losses in these rows, and yield the blocks that have ended.

        Yields:
            (attempt, worker, name of the validation loss), block of the training loss, block of the
            validation loss.
        """
        wanted = np.fromiter(rows, dtype=np.int64)
        found: dict[_Key, dict[str, Points]] = {}
        for (attempt, worker, name, _), points in series(window, wanted, merge=True):
            set_name, dash, metric = name.partition("-")
            if dash:
                found.setdefault((attempt, worker, metric), {})[set_name] = points
        for key, sets in found.items():
            blocks = sorted({int(each) for points in sets.values() for each in points.mode_step // _ROUNDS})
            for block in blocks:
                yield from self._end(key, before=block)
                for set_name, points in sets.items():
                    self._add(key, set_name, points, block)

    def end(self, attempt: int, worker: str) -> Iterator[tuple[tuple[int, str, str], Phase, Phase]]:
        """End the open blocks of a worker whose attempt has ended, and yield them."""
        for key in [each for each in self.open if each[:2] == (attempt, worker)]:
            yield from self._end(key, before=None)

    def _add(self, key: _Key, set_name: str, points: Points, block: int) -> None:
        chosen = points.mode_step // _ROUNDS == block
        if not np.any(chosen):
            return
        rows = np.flatnonzero(chosen)
        sets = self.open.setdefault(key, {})
        if set_name not in sets:
            is_eval = set_name not in self.training_sets
            sets[set_name] = Phase(is_eval=is_eval, offset=block, first=float(points.value[rows[0]]))
        if sets[set_name].offset == block:  # otherwise the rows arrived late
            sets[set_name].take(points, slice(int(rows[0]), int(rows[-1]) + 1))

    def _end(self, key: _Key, *, before: int | None) -> Iterator[tuple[tuple[int, str, str], Phase, Phase]]:
        sets = self.open.get(key, {})
        if not sets or (before is not None and min(each.offset for each in sets.values()) >= before):
            return
        del self.open[key]
        attempt, worker, metric = key
        training = [sets[name] for name in self.training_sets if name in sets]
        for name, phase in sets.items() if training else ():
            if phase.is_eval:
                yield (attempt, worker, f"{name}-{metric}"), training[0], phase
