"""Reader: the index, the view, the progress and the payloads of one run, for Trial and Tensor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError, InvalidAttempt, InvalidWorker
from tdcore.modes import ModeKeys
from tdcore.trial.captures import capture_columns, resolve
from tdcore.trial.columns import distinct
from tdcore.trial.epochs import Epochs
from tdcore.trial.index import Index, Rows
from tdcore.trial.merge_stats import merged_sources, merged_table
from tdcore.trial.payload import Payloads
from tdcore.trial.progress import RunProgress
from tdcore.trial.run_location import poll_interval
from tdcore.trial.statistics import needed_columns, stats_table
from tdcore.trial.step_state import StepState
from tdcore.trial.view import View
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Reader", "Selection", "Steps"]

Steps: TypeAlias = "int | range | Iterable[int]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filters of rows.

    Attributes:
        tests: Tests of text columns, see RowStore.find.
        stretches: Mask of the stretches with these rows.
        global_steps: Whether the rows were chosen by global steps, see View.meant.
    """

    tests: Mapping[str, npt.NDArray[np.bool_]]
    stretches: npt.NDArray[np.bool_]
    global_steps: bool


class Reader:
    """Reader of one run. See create_trial for the parameters. wait, clock: for tests. Threads: one."""

    def __init__(
        self,
        sink: Sink,
        root: Path | None,
        *,
        verify: bool,
        attempt: int | None,
        step_range: tuple[int | None, int | None],
        settle: timedelta,
        refresh_interval: timedelta,
        compat: bool = False,
        wait: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sink = sink
        self.index = Index(sink, root, wait=wait)
        self.epochs = Epochs(self.index)
        self.progress = RunProgress(sink, self.index, settle, clock)
        self.view = View(self.index, attempt, step_range)
        self.payloads = Payloads(sink, root, run_id=lambda: self.index.run_id, verify=verify)
        self.attempt = attempt
        self.compat = compat
        self.frozen = False
        self.wait = wait
        self.clock = clock
        self.pause = poll_interval(root, near=0.2)
        self._refresh_interval = refresh_interval.total_seconds()
        self._refreshed: float | None = None
        # Results of combinations(), each with the version of the view.
        self._combinations: dict[tuple[str, ...], tuple[tuple[int, int], dict[tuple[int, ...], None]]] = {}

    def refresh(self) -> None:
        """Read all data that was added to the run."""
        self.progress.read_documents()
        self.index.advance()
        self.progress.read_rows()
        self.view.update()
        self._refreshed = self.clock()

    def auto_refresh(self) -> None:
        """Refresh, unless the reader is frozen or was refreshed within refresh_interval."""
        if self.frozen and self._refreshed is not None:
            return
        if self._refreshed is None or self.clock() - self._refreshed >= self._refresh_interval:
            self.refresh()

    # Steps. ---------------------------------------------------------------------------------------

    def complete(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Mask of the rows of complete steps."""
        return self.progress.complete(rows)

    def steps_of(self, rows: Rows, mode: ModeKeys) -> list[int]:
        """Distinct steps of these rows, sorted: global steps, or mode steps of the rows of that mode."""
        index = self.index
        if mode is ModeKeys.GLOBAL:
            return [int(step) for step in np.unique(index.column("step")[self.view.meant(rows)]).tolist()]
        rows = rows[index.column("mode")[rows] == index.dictionaries["mode"].code(mode.name)]
        return [int(step) for step in np.unique(index.column("mode_step")[rows]).tolist()]

    def steps(self, mode: ModeKeys, *, incomplete: bool) -> list[int]:
        """Steps with saved tensors. incomplete: also steps that are not complete yet."""
        rows = self.view.mode_rows
        return self.steps_of(rows if incomplete else rows[self.complete(rows)], mode)

    def last_step(self, mode: ModeKeys) -> int | None:
        """The highest complete step; None if there is none yet."""
        return max(self.steps(mode, incomplete=False), default=None)

    def state(self, step: int, mode: ModeKeys) -> StepState:
        """State of a step, as of the last refresh."""
        rows = self.view.mode_rows
        done = rows[self.complete(rows)]
        if len(self.view.at_step(done, step, mode.name)):
            return StepState.AVAILABLE
        if self.progress.status != "running":
            return StepState.UNAVAILABLE
        if len(self.view.at_step(rows, step, mode.name)):
            return StepState.NOT_YET_AVAILABLE
        last = max(self.steps_of(done, mode), default=-1)
        return StepState.NOT_YET_AVAILABLE if step > last else StepState.UNAVAILABLE

    # Rows. ----------------------------------------------------------------------------------------

    def workers(self) -> list[str]:
        """Workers with visible rows."""
        texts = self.index.texts("worker")
        codes = distinct(self.index.stretches.column("worker")[self.view.visible_stretches])
        return sorted((texts[code] for code in codes), key=worker_order)

    def select(self, selection: Selection) -> Rows:
        """Visible rows that pass the filters of a selection."""
        return self.meant(self.index.find(selection.tests, selection.stretches), selection)

    @contextmanager
    def selected(self, selection: Selection, columns: Sequence[str]) -> Iterator[Rows]:
        """The rows of `select`; within the block, these columns of the index are in memory."""
        captures = capture_columns(self.index, selection.stretches)
        with self.index.found(selection.tests, selection.stretches, [*captures, *columns]) as rows:
            yield self.meant(rows, selection)

    def selection(
        self,
        names: Iterable[int] | None = None,
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: Iterable[str] | None = None,
        workers: Iterable[str] | None = None,
        attempt: int | None = None,
        *,
        tensors_only: bool = False,
    ) -> Selection:
        """Filters of visible rows.

        Args:
            names: Codes of names.
            steps: Steps of the mode; global steps without a mode.
            mode: Only this mode.
            kinds: Kinds of tensors.
            workers: Names of workers.
            attempt: Use all rows of this attempt instead of the visible ones.
            tensors_only: Leave out saved reductions of other tensors.
        """
        index, tests = self.index, dict[str, npt.NDArray[np.bool_]]()
        if names is not None:
            tests["name"] = index.among("name", names)
        if kinds is not None:
            dictionary = index.dictionaries["kind"]
            tests["kind"] = index.among("kind", [dictionary.code(kind.lower()) for kind in kinds])
        reduction = index.dictionaries["kind"].code("reduction")
        if tensors_only and reduction >= 0:
            tests["kind"] = tests.get("kind", np.ones(len(index.dictionaries["kind"]) + 1, dtype=np.bool_))
            tests["kind"][reduction] = False
        return Selection(
            tests=tests,
            stretches=self.chosen(steps, mode, workers, attempt),
            global_steps=steps is not None and mode in (None, ModeKeys.GLOBAL),
        )

    def chosen(
        self,
        steps: int | range | Iterable[int] | None = None,
        mode: ModeKeys | None = None,
        workers: Iterable[str] | None = None,
        attempt: int | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Mask of the visible stretches that pass the filters of `select`."""
        index, stretches = self.index, self.index.stretches
        if attempt is not None:
            self.check_attempt(attempt)
        mask = self.view.visible_stretches if attempt is None else self.view.shown(attempt)
        of_mode = mode is not None and mode is not ModeKeys.GLOBAL
        if mode is not None and of_mode:
            mask = mask & (stretches.column("mode") == index.dictionaries["mode"].code(mode.name))
        if steps is not None:
            mask = mask & _in_steps(stretches.column("mode_step" if of_mode else "step"), steps)
        if workers is not None:
            known, wanted = index.dictionaries["worker"], list(workers)
            unknown = [worker for worker in wanted if known.code(worker) < 0]
            if unknown:
                error = InvalidWorker(
                    f"{unknown[0]!r} is not a worker of this run; it has {', '.join(known.texts)}"
                )
                error.worker = unknown[0]
                raise error
            mask = mask & index.among("worker", map(known.code, wanted))[stretches.column("worker")]
        return mask

    def meant(self, rows: Rows, selection: Selection) -> Rows:
        """The rows without those that View.meant leaves out, if global steps were chosen."""
        return self.view.meant(rows) if selection.global_steps else rows

    def combinations(self, names: Sequence[str]) -> dict[tuple[int, ...], None]:
        """The distinct values of columns of Entries in the shown rows, as codes.

        They are in the order of the first rows that have them. The rows of a large file are not read if all
        of them are shown.
        """
        key, version = tuple(names), self.view.version
        if self._combinations.get(key, (None,))[0] != version:
            found: dict[tuple[int, ...], None] = {}
            for codes in self.index.combinations(names, self.view.visible_stretches):
                found.update(dict.fromkeys(codes))
            self._combinations[key] = version, found
        return self._combinations[key][1]

    def is_shown(self, name: int) -> bool:
        """Whether a row of the tensor with this code is shown."""
        return (name,) in self.combinations(("name",))

    def saved_names(self, step: int | None, mode: ModeKeys) -> set[int]:
        """Codes of the tensors with a value or its statistics: at a step, or in a mode, or in any row."""
        index = self.index
        if step is not None:
            rows = self.saved(self.tensors_only(self.view.rows_at(step, mode.name)))
            return set(np.unique(index.column("name")[rows]).tolist())
        statuses = [index.dictionaries["status"].code(status) for status in ("ok", "lost")]
        reduction = index.dictionaries["kind"].code("reduction")
        of_mode = None if mode is ModeKeys.GLOBAL else index.dictionaries["mode"].code(mode.name)
        return {
            name
            for name, kind, status, code in self.combinations(("name", "kind", "status", "mode"))
            if kind != reduction and status in statuses and of_mode in (None, code)
        }

    def saved(self, rows: Rows) -> Rows:
        """The rows with a value or at least its statistics: not absent, not skipped."""
        dictionary = self.index.dictionaries["status"]
        codes = [dictionary.code(status) for status in ("ok", "lost")]
        found: Rows = rows[np.isin(self.index.column("status")[rows], codes)]
        return found

    def tensors_only(self, rows: Rows) -> Rows:
        """The rows without saved reductions of other tensors."""
        found: Rows = rows[
            self.index.column("kind")[rows] != self.index.dictionaries["kind"].code("reduction")
        ]
        return found

    def stats(self, rows: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        """Statistics of the captures in these rows."""
        with self.index.hold(rows, [*self._capture_columns(rows), *needed_columns(columns)]):
            return stats_table(self.index, resolve(self.index, rows), columns)

    def merged(self, rows: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        """Statistics of whole tensors. rows: the rows of their parts on all workers."""
        with self.index.hold(rows, [*self._capture_columns(rows), *merged_sources(columns)]):
            return merged_table(self.index, resolve(self.index, rows), columns)

    def _capture_columns(self, rows: Rows) -> tuple[str, ...]:
        used = np.zeros(len(self.index.stretches), dtype=np.bool_)
        used[self.index.stretches.of(rows)] = True
        return capture_columns(self.index, used)

    def check_attempt(self, attempt: int) -> None:
        """Raise InvalidAttempt if the run has no such attempt."""
        known = self.progress.attempts
        if attempt not in known:
            there = ", ".join(map(str, known)) or "none"
            raise InvalidAttempt(f"{attempt!r} is not an attempt of this run; it has {there}")


def _in_steps(steps: npt.NDArray[np.int64], wanted: int | range | Iterable[int]) -> npt.NDArray[np.bool_]:
    if isinstance(wanted, range):
        if len(wanted) == 0:
            return np.zeros(len(steps), dtype=np.bool_)
        low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1])
        found: npt.NDArray[np.bool_] = (
            (steps >= low) & (steps <= high) & ((steps - low) % abs(wanted.step) == 0)
        )
        return found
    try:
        listed = [wanted] if isinstance(wanted, int) else [int(step) for step in wanted]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"steps must be a step, a range or steps, got {wanted!r}") from error
    return np.isin(steps, np.array(listed, dtype=np.int64))
