"""CommonSteps: one numbering of global steps for all workers of a run.

Ranks that train together use equal step numbers within a mode (`mode_step`), but not over all modes: after
only rank 0 has evaluated, its global steps are ahead of the global steps of the other ranks. A reader
therefore identifies a step by (attempt, mode, mode_step). The *common step* of a row is the global step of
that (mode, mode_step) on the first worker, by rank, that has rows of this attempt and mode. If that worker
saved only other steps of the mode, the number is computed from them: within a phase of a training the global
step and the mode step advance together. In a run with one worker, common steps are the worker's own steps.

The common step of a row can change while the first worker is behind: it may still evaluate before the step
that the others already have. The number is final when the first worker has reached the mode step. It is
therefore final for complete steps (`finished`), and only complete steps are returned to readers that follow a
run. There are two exceptions: a worker that counted as dead continues, or the first worker begins a mode that
only other workers had so far. `revision` increases when rows that were read before get other numbers.

Threads: an object belongs to one Index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.columns import GrowingColumn, starts_of
from tdcore.trial.dictionary import TextDictionaries
from tdcore.trial.worker_order import first_worker

__all__ = ["CommonSteps", "ModeStepNumbers"]

Ints: TypeAlias = npt.NDArray[np.int64]
Saved: TypeAlias = "dict[tuple[int, str, str], tuple[list[int], list[int]]]"

_FARTHEST = 1 << 62  # largest step number for "all", so that sums do not overflow


class ModeStepNumbers:
    """The global steps of the mode steps of one mode, for one worker and attempt.

    The difference of both numbers is constant over long ranges; only the ends of these ranges are stored.
    """

    __slots__ = ("_mode_steps", "_offsets")

    def __init__(self) -> None:
        self._mode_steps: Ints = np.empty(0, dtype=np.int64)
        self._offsets: Ints = np.empty(0, dtype=np.int64)

    def add(self, mode_steps: Ints, steps: Ints) -> None:
        """Add pairs of a mode step and its global step. Of two global steps, the larger one is used."""
        known = np.concatenate([self._mode_steps, mode_steps])
        offsets = np.concatenate([self._offsets, steps - mode_steps])
        order = np.lexsort([offsets, known])
        known, offsets = known[order], offsets[order]
        changes = offsets[1:] != offsets[:-1]
        ends = np.ones(len(known), dtype=np.bool_)
        ends[1:-1] = changes[:-1] | changes[1:]
        self._mode_steps, self._offsets = known[ends], offsets[ends]

    def at(self, mode_steps: Ints) -> Ints:
        """The global steps of these mode steps, also if they were not saved."""
        places = np.searchsorted(self._mode_steps, mode_steps, side="right") - 1
        found: Ints = mode_steps + self._offsets[np.maximum(places, 0)]
        return found

    def step(self, mode_step: int) -> int:
        """The global step of one mode step."""
        return int(self.at(np.array([mode_step], dtype=np.int64))[0])

    @property
    def first(self) -> int:
        """The lowest mode step that was saved."""
        return int(self._mode_steps[0])

    @property
    def last(self) -> int:
        """The highest mode step that was saved."""
        return int(self._mode_steps[-1])

    @property
    def highest_step(self) -> int:
        """The highest global step that was saved."""
        return int((self._mode_steps + self._offsets).max())

    def first_from(self, step: int) -> int:
        """The lowest mode step up to `last` with at least this global step; last + 1 if there is none."""
        step = max(-_FARTHEST, min(step, _FARTHEST))
        ends = np.append(self._mode_steps[1:], self._mode_steps[-1:] + 1)
        lowest = np.maximum(self._mode_steps, step - self._offsets)
        there = lowest[lowest < ends]
        return int(there.min()) if len(there) else self.last + 1

    def saved(self) -> tuple[list[int], list[int]]:
        """Plain values, for `restore`."""
        return self._mode_steps.tolist(), (self._mode_steps + self._offsets).tolist()


class CommonSteps:
    """The common step of each row of an index; `update` adds new rows.
    columns: the narrow columns of the index. dictionaries: the dictionaries of its text columns.
    """

    def __init__(self, columns: Mapping[str, GrowingColumn], dictionaries: TextDictionaries) -> None:
        self.revision = 0
        self._columns = columns
        self._workers = dictionaries["worker"]
        self._modes = dictionaries["mode"]
        self._numbers: dict[int, dict[int, dict[str, ModeStepNumbers]]] = {}  # attempt -> mode code -> worker
        self._steps: GrowingColumn | None = None  # None: common steps are own steps
        self._seen = 0  # rows that have common steps
        self._read = 0  # rows at the last call of update()
        self._restored = False

    @property
    def several(self) -> bool:
        """Whether the run has several workers so far. The methods below are for runs of several workers."""
        return self._restored or len(self._workers) > 1

    @property
    def differs(self) -> bool:
        """Whether the common step of any row differs from its worker's own step."""
        return self._steps is not None

    @property
    def array(self) -> Ints:
        """The common step of each row; a view, valid until the next `update`."""
        return (self._columns["step"] if self._steps is None else self._steps).array

    def update(self) -> None:
        """Process the rows that were added to the columns since the last call."""
        known, self._read = self._read, len(self._columns["step"].array)
        if self.several:
            self._take_in(known)

    # State of a reader that does not read all rows again. -----------------------------------------

    def saved(self) -> Saved:
        """(attempt, worker, mode) -> mode steps and their global steps, which define the numbering."""
        self._take_in(self._read)
        return {
            (attempt, worker, self._modes.texts[mode]): numbers.saved()
            for attempt, of_mode in self._numbers.items()
            for mode, of_worker in of_mode.items()
            for worker, numbers in of_worker.items()
        }

    def restore(self, saved: Saved) -> None:
        """Restore the state that saved() of another reader returned. Call it before the first row is read."""
        for (attempt, worker, mode), (mode_steps, steps) in saved.items():
            (code,) = self._modes.codes([mode]).tolist()
            pairs = np.array(mode_steps, dtype=np.int64), np.array(steps, dtype=np.int64)
            self._of(attempt, code).setdefault(worker, ModeStepNumbers()).add(*pairs)
        self._restored = bool(saved)

    # Finished steps of workers. -------------------------------------------------------------------

    def bound(self, attempt: int, worker: str, own: int) -> int:
        """The common step below which the worker is finished, given that it has finished its own below `own`.

        Only modes of the first worker of the attempt are used, because the step numbers of evaluations that
        run on another worker only are independent.
        """
        modes = self._numbers.get(attempt, {})
        owner = self._owner(attempt)
        if worker == owner:
            return own
        shared = [(each[owner], each[worker]) for each in modes.values() if {owner, worker} <= each.keys()]
        if not shared:
            return own
        finished: list[int] = []
        begun: list[int] = []
        for common, mine in shared:
            open_step = mine.first_from(own)
            if open_step > mine.first:
                finished.append(common.step(min(open_step - 1, common.last)))
            if open_step <= min(mine.last, common.last):
                begun.append(common.step(open_step))
        if begun:
            return max([min(begun), *(step + 1 for step in finished)])
        if not finished:
            return min(common.step(mine.first) for common, mine in shared)
        return max(finished) + 1 + self._not_saved(attempt, worker, own)

    def finished(self, attempt: int, worker: str, own: int) -> dict[int, int]:
        """mode code -> mode steps below this one are finished by the worker, for all modes of the attempt.

        own: all of the worker's own global steps below this number are finished. A step that the worker has
        not saved is finished when the worker has finished a later step of the mode, or a step that is later
        in the common numbering.
        """
        modes = self._numbers.get(attempt, {})
        owner = self._owner(attempt)
        bound = self.bound(attempt, worker, own)
        newest = max((each[worker].highest_step for each in modes.values() if worker in each), default=None)
        found: dict[int, int] = {}
        for mode, of_worker in modes.items():
            giver = first_worker(of_worker)
            numbers = of_worker[giver]
            found[mode] = numbers.first_from(bound if giver == owner else self._as_own(attempt, giver, bound))
            mine = of_worker.get(worker)
            if mine is not None:
                open_step = mine.first_from(own)
                if open_step > mine.last and mine.highest_step == newest:
                    open_step += self._not_saved(attempt, worker, own)
                found[mode] = max(found[mode], open_step)
        return found

    def _not_saved(self, attempt: int, worker: str, own: int) -> int:
        """Number of own steps below `own` after the last saved step of the worker."""
        modes = self._numbers[attempt].values()
        newest = max(each[worker].highest_step for each in modes if worker in each)
        return max(0, min(own, _FARTHEST) - 1 - newest)

    def _as_own(self, attempt: int, giver: str, bound: int) -> int:
        """Convert a bound in common steps to the own steps of a worker that is not the first of the attempt.

        The result is the worker's own step at the common step `bound - 1`, as the maximum over the modes that
        the worker and the first worker have in common; `bound` without such a mode; `_FARTHEST` if the
        worker's last saved step of a mode is earlier than that step.
        """
        owner = self._owner(attempt)
        found: list[int] = []
        for of_worker in self._numbers[attempt].values():
            if {owner, giver} <= of_worker.keys():
                common, mine = of_worker[owner], of_worker[giver]
                reached = min(common.first_from(bound - 1), common.last)
                found.append(mine.step(reached) if reached <= mine.last else _FARTHEST)
        return max(found, default=bound)

    def _owner(self, attempt: int) -> str:
        """The first worker by rank of an attempt, whose own steps are the common steps; "" without rows."""
        workers = {worker for each in self._numbers.get(attempt, {}).values() for worker in each}
        return first_worker(workers) if workers else ""

    def _of(self, attempt: int, mode: int) -> dict[str, ModeStepNumbers]:
        return self._numbers.setdefault(attempt, {}).setdefault(mode, {})

    # Following the columns. -----------------------------------------------------------------------

    def _take_in(self, known: int) -> None:
        """Assign common steps to the new rows. known: number of rows read before, whose steps may change."""
        first, self._seen = self._seen, len(self._columns["step"].array)
        if first == self._seen:
            return
        rows, before = self._changes(first), self.array[:known]
        if self._add(rows) and first:
            self._steps = None
            first, rows = 0, self._changes(0)
        self._translate(first, rows)
        if first < known:
            self.revision += not np.array_equal(before, self.array[:known])

    def _changes(self, first: int) -> Ints:
        """Rows from `first` on whose worker or step differs from the row before."""
        names = ("step", "mode_step", "mode", "worker", "attempt")
        return first + np.flatnonzero(starts_of(*(self._columns[name].array[first:] for name in names)))

    def _groups(self, rows: Ints) -> Iterator[tuple[int, int, str, Ints]]:
        """(attempt, mode code, worker, positions in `rows`) of each combination that occurs."""
        attempt, mode, worker = (
            self._columns[name].array[rows].astype(np.int64) for name in ("attempt", "mode", "worker")
        )
        order = np.lexsort([worker, mode, attempt])
        starts = np.flatnonzero(starts_of(attempt[order], mode[order], worker[order]))
        for group in np.split(order, starts[1:]):
            at = int(group[0])
            yield int(attempt[at]), int(mode[at]), self._workers.texts[int(worker[at])], group

    def _add(self, rows: Ints) -> bool:
        """Add the pairs of steps in these rows. Return whether numbers of earlier rows may change."""
        mode_step, step = (self._columns[name].array[rows] for name in ("mode_step", "step"))
        groups = list(self._groups(rows))
        places = {(attempt, mode) for attempt, mode, _, _ in groups}
        lasts = {
            place: {worker: numbers.last for worker, numbers in self._of(*place).items()} for place in places
        }
        for attempt, mode, worker, _ in groups:
            self._of(attempt, mode).setdefault(worker, ModeStepNumbers())
        firsts = {place: first_worker(self._of(*place)) for place in places}
        changed = False
        for attempt, mode, worker, group in groups:
            last, numbers = lasts[attempt, mode], self._of(attempt, mode)[worker]
            if last and worker == firsts[attempt, mode]:
                others = [each for name, each in last.items() if name != worker]
                if worker not in last:
                    changed = True
                elif others:
                    known = mode_step[group] <= max(others)
                    changed = changed or not np.array_equal(
                        numbers.at(mode_step[group][known]), step[group][known]
                    )
            numbers.add(mode_step[group], step[group])
        return changed

    def _translate(self, first: int, rows: Ints) -> None:
        """Assign common steps to the rows from `first` on. rows: those at which worker or step changes."""
        own: Any = self._columns["step"].array
        mode_step, step = (self._columns[name].array[rows] for name in ("mode_step", "step"))
        shift = np.zeros(len(rows), dtype=np.int64)
        givers: dict[tuple[int, int], str] = {}  # found once: 1,000 workers have 1,000 groups
        for attempt, mode, worker, group in self._groups(rows):
            of_worker = self._of(attempt, mode)
            giver = givers.get((attempt, mode)) or first_worker(of_worker)
            givers[attempt, mode] = giver
            if worker != giver:
                shift[group] = of_worker[giver].at(mode_step[group]) - step[group]
        if self._steps is None:
            if not shift.any():
                return
            self._steps = GrowingColumn("i8")
            self._steps.extend(own[:first])
        lengths = np.diff(np.append(rows, len(own)))
        self._steps.extend(own[first:] + np.repeat(shift, lengths))
