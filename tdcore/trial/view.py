"""View: the rows of an index that a Trial shows, found by name and by step.

Attempts: a restarted run keeps the rows of every attempt. The view shows one history: from the first step
that an attempt saved, it replaces all earlier attempts (after a crash at step 212 and a restart at step 200:
0..199 of the first attempt, 200.. of the second). If `attempt` is set, the view shows only that attempt.

Workers: steps are common steps (common_steps.py). Two workers can still have different steps with the same
number, if only rank 1 evaluates while rank 0 trains. The number then means the step of the first worker, by
rank, that has it; the other step is found by mode and mode step.

`update` follows the growing index. Only new rows are read, unless rows that were read before were renumbered.
A view works on stretches (stretches.py): all rows of a stretch have the same attempt and step, so either all
of them are shown or none. Threads: an object belongs to one Trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError
from tdcore.trial.columns import GrowingColumn, distinct, starts_of
from tdcore.trial.index import Index, Rows
from tdcore.trial.worker_order import worker_order

__all__ = ["View", "as_list", "patterns"]

Mask = npt.NDArray[np.bool_]
_NO_LIMIT = np.iinfo(np.int64).max
_SEARCHES = 16  # tensors that are searched one by one; for more tensors, all rows are sorted by name


class View:
    """attempt: None for the latest history, else one attempt. step_range: global steps, end exclusive."""

    def __init__(self, index: Index, attempt: int | None, step_range: tuple[int | None, int | None]) -> None:
        self._index = index
        self._attempt = attempt
        self._low = -_NO_LIMIT if step_range[0] is None else step_range[0]
        self._high = _NO_LIMIT if step_range[1] is None else step_range[1]
        self._first_steps: dict[int, int] = {}  # first step of each attempt with rows
        self._visible = GrowingColumn("?")  # of stretches
        self._steps = np.empty(0, dtype=np.int64)
        self._step_rows = np.empty(0, dtype=np.int64)  # a row of each step, with its mode
        self._mode_rows = np.empty(0, dtype=np.int64)  # a row of each step of each mode
        self._hidden: dict[int, Rows] = {}  # mode code -> sorted step numbers of another mode
        self._revision = 0  # revision of the numbering
        self._order = np.empty(0, dtype=np.int64)  # rows sorted by name, up to _ordered
        self._order_names = np.empty(0, dtype=np.int32)
        self._ordered = 0
        self._found: dict[int, tuple[int, Rows]] = {}  # name code -> rows searched, rows of the tensor
        self._searches = 0  # in rows that are not sorted by name

    @property
    def visible(self) -> Mask:
        """For each row of the index, whether it is shown."""
        return np.repeat(self.visible_stretches, self._index.stretches.lengths)

    @property
    def visible_stretches(self) -> Mask:
        """For each stretch of the index, whether its rows are shown. Rows after the last `update` are not."""
        known, stretches = self._visible.array, len(self._index.stretches)
        if len(known) == stretches:
            return known
        return np.concatenate([known, np.zeros(stretches - len(known), dtype=np.bool_)])

    @property
    def version(self) -> tuple[int, int]:
        """A value that changes whenever other rows are shown."""
        return len(self._visible.array), self._revision

    @property
    def rows(self) -> Rows:
        """The rows that are shown."""
        return self._index.stretches.rows_of(np.flatnonzero(self._visible.array))

    @property
    def steps(self) -> Rows:
        """Global steps with at least one shown row, sorted."""
        return self._steps

    @property
    def step_rows(self) -> Rows:
        """For each of `steps`, one row of the step; the row has the mode and mode step of the step."""
        return self._step_rows

    @property
    def mode_rows(self) -> Rows:
        """One row of each step of each mode, also of steps without a global step of their own."""
        if len(self._mode_rows) == len(self._step_rows):
            return self._mode_rows
        modes, code = self._index.column("mode"), self._index.dictionaries["mode"].code("GLOBAL")
        steps = self._index.column("step")[self._mode_rows]
        speaker = self._step_rows[np.searchsorted(self._steps, steps)]
        found: Rows = self._mode_rows[(modes[self._mode_rows] != code) | (modes[speaker] == code)]
        return found

    def update(self) -> None:
        """Process the rows that were added to the index since the last call."""
        index, known = self._index, len(self._visible.array)
        stretches = index.stretches
        if len(stretches) == known:
            return
        if index.common.revision != self._revision:
            self._revision, known = index.common.revision, 0
            self._first_steps = {}
            self._forget()
        attempts, steps = stretches.column("attempt")[known:], stretches.column("step")[known:]
        changed = False
        for attempt in distinct(attempts):
            first = int(steps[attempts == attempt].min())
            if first < self._first_steps.get(attempt, _NO_LIMIT):
                changed = changed or any(other < attempt for other in self._first_steps)
                self._first_steps[attempt] = first
        if changed:  # shown rows were replaced
            known = 0
            self._forget()
        shown = self.shown(self._attempt, known)
        self._visible.extend(shown)
        self._add_steps(stretches.first[known + np.flatnonzero(shown)])

    def shown(self, attempt: int | None, first: int = 0) -> Mask:
        """Mask of the stretches that belong to the attempt, or to the latest history, and to the step range.

        first: only the stretches from this number on.
        """
        stretches = self._index.stretches
        attempts, steps = stretches.column("attempt")[first:], stretches.column("step")[first:]
        mask: Mask = (steps >= self._low) & (steps < self._high)
        if attempt is not None:
            mask &= attempts == attempt
            return mask
        limit = _NO_LIMIT
        for number in sorted(self._first_steps, reverse=True):
            if limit != _NO_LIMIT:
                mask &= (attempts != number) | (steps < limit)
            limit = min(limit, self._first_steps[number])
        return mask

    def rows_of(self, name: int) -> Rows:
        """Shown rows of the tensor with this code, in the order in which they were read."""
        index = self._index
        if index.is_lazy and self._searches < _SEARCHES:
            rows = self._searched(name)
            return rows[self.shows(rows)]
        if len(index) - self._ordered > 10_000 + len(index) // 8:
            names = np.asarray(index.column("name"))
            self._order = np.argsort(names, kind="stable")
            self._order_names = names[self._order]
            self._ordered = len(index)
        wanted = np.array(
            [name, name + 1], dtype=self._order_names.dtype
        )  # another type would copy the names
        low, high = np.searchsorted(self._order_names, wanted)
        tail = self._ordered + np.flatnonzero(index.column("name")[self._ordered :] == name)
        rows = np.concatenate([self._order[low:high], tail])
        return rows[self.shows(rows)]

    def _searched(self, name: int) -> Rows:
        """All rows of a tensor, from a search through the names of the new rows."""
        index = self._index
        first, rows = self._found.get(name, (0, np.empty(0, dtype=np.int64)))
        if first < len(index):
            self._searches += 1
            new = index.find({"name": index.among("name", [name])}, first=first)
            rows = np.concatenate([rows, new])
            self._found[name] = len(index), rows
        return rows

    def shows(self, rows: Rows) -> Mask:
        """Mask of the rows that are shown, among these rows."""
        shown: Mask = self.visible_stretches[self._index.stretches.of(rows)]
        return shown

    def rows_at(self, step: int, mode: str) -> Rows:
        """All shown rows at a step: of the mode, or at a global step if the mode is GLOBAL."""
        stretches = self._index.stretches
        if mode == "GLOBAL":
            chosen = self.visible_stretches & (stretches.column("step") == step)
            return self.meant(stretches.rows_of(np.flatnonzero(chosen)))
        code = self._index.dictionaries["mode"].code(mode)
        chosen = (stretches.column("mode") == code) & (stretches.column("mode_step") == step)
        return stretches.rows_of(np.flatnonzero(chosen & self.visible_stretches))

    def at_step(self, rows: Rows, step: int, mode: str) -> Rows:
        """The rows at a step: of the mode, or at a global step if the mode is GLOBAL."""
        if mode == "GLOBAL":
            return self.meant(rows[self._index.column("step")[rows] == step])
        code = self._index.dictionaries["mode"].code(mode)
        chosen = (self._index.column("mode")[rows] == code) & (self._index.column("mode_step")[rows] == step)
        of_mode: Rows = rows[chosen]
        return of_mode

    def position(self, step: int) -> int:
        """Position of a global step in `steps`; -1 if it has no shown row."""
        at = int(np.searchsorted(self._steps, step))
        return at if at < len(self._steps) and int(self._steps[at]) == step else -1

    def meant(self, rows: Rows) -> Rows:
        """Leave out rows whose global step means a step of another mode: see the module's docstring."""
        index = self._index
        for mode, hidden in self._hidden.items():
            steps = index.column("step")[rows]
            places = np.minimum(np.searchsorted(hidden, steps), len(hidden) - 1)
            rows = rows[(hidden[places] != steps) | (index.column("mode")[rows] != mode)]
        return rows

    def _forget(self) -> None:
        self._visible = GrowingColumn("?")
        self._steps = self._step_rows = self._mode_rows = np.empty(0, dtype=np.int64)
        self._hidden = {}

    def _add_steps(self, rows: Rows) -> None:
        """Add the steps of new shown rows. rows: the first rows of their stretches.

        If several steps have the same number, the number means the step of the first worker by rank. A row of
        TRAIN, EVAL or PREDICT mode represents its step rather than a row of GLOBAL.
        """
        if len(rows) == 0:
            return
        index = self._index
        names = ("step", "mode", "worker")[: 2 + index.common.several]
        new = starts_of(*(index.column(name)[rows] for name in names))  # the first of equal neighbours
        candidates = np.concatenate([self._mode_rows, rows[new]])
        steps, modes = index.column("step")[candidates], index.column("mode")[candidates]
        ranks = self._ranks(candidates)
        order = np.lexsort([candidates, ranks, modes, steps])
        first = starts_of(steps[order], modes[order])
        keep = order[first]
        is_global = modes[keep] == index.dictionaries["mode"].code("GLOBAL")
        self._mode_rows, steps, ranks = candidates[keep], steps[keep], ranks[keep]
        order = np.lexsort([ranks, is_global, steps])
        first = starts_of(steps[order])
        self._step_rows = self._mode_rows[order[first]]
        self._steps = steps[order[first]]
        speaker = order[first][np.cumsum(first) - 1]  # the representing row of each row, in this order
        hidden = (ranks[order] > ranks[speaker]) & (is_global[order] == is_global[speaker])
        modes, steps = index.column("mode")[self._mode_rows[order[hidden]]], steps[order[hidden]]
        self._hidden = {mode: steps[modes == mode] for mode in distinct(modes)}

    def _ranks(self, rows: Rows) -> npt.NDArray[np.int64]:
        """Position of each row's worker among all workers."""
        index = self._index
        if not index.common.several:
            return np.zeros(len(rows), dtype=np.int64)
        texts = index.texts("worker")
        places = np.empty(len(texts), dtype=np.int64)
        places[sorted(range(len(texts)), key=lambda code: worker_order(texts[code]))] = np.arange(len(texts))
        found: npt.NDArray[np.int64] = places[index.column("worker")[rows]]
        return found


def as_list(value: str | Iterable[str] | None) -> list[str] | None:
    """A list of texts; a single text becomes a list, None stays None."""
    if value is None or isinstance(value, str):
        return None if value is None else [value]
    return list(value)


def patterns(regex: str | Sequence[str]) -> list[re.Pattern[str]]:
    """Compile regular expressions. Raises ConfigError for an invalid one."""
    found: list[re.Pattern[str]] = []
    text = ""
    try:
        for text in [regex] if isinstance(regex, str) else regex:
            found.append(re.compile(text))
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{text[:200]!r} is not a regular expression: {error}") from error
    return found
