"""RunSource: reads the rows and payloads of a run in a folder or a bucket for the rule engine.

Threads: a source belongs to one engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import ConfigError, SinkKeyError, TensorUnavailableForStep
from tdcore.format.run_patterns import RunPatterns
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules.applicability import TrainingInfo
from tdcore.rules.completeness import Completeness
from tdcore.rules.polled_rows import PolledRows
from tdcore.rules.requirements import RunCapture, run_capture
from tdcore.rules.run_documents import collections_of, members_of, not_recorded_of, notes_of
from tdcore.rules.source import Ended, RowBatch
from tdcore.rules.survey import Survey
from tdcore.rules.window import Members
from tdcore.text.step_text import step_text

if TYPE_CHECKING:
    from tdcore.sinks import Sink
    from tdcore.trial import Trial
    from tdcore.trial.captures import Captures
    from tdcore.trial.left_out import LeftOut
    from tdcore.trial.payload import Payloads
    from tdcore.trial.progress import RunProgress

__all__ = ["RunSource"]

_NONE: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
_BATCH_ROWS = 250_000  # approximate maximum number of rows of a batch; a step is never divided


class RunSource:
    """A run in a folder or a bucket, which may still be written. Payloads are read on demand.

    Args:
        place: Folder, URL or open Trial.
        attempt: None: the newest attempt at the first poll, and all later attempts. A number: this attempt.
            "all": all attempts.
        settle: Seconds without new rows of a worker after which its steps count as complete.
        sink: The run, for tests.
        clock: Monotonic seconds, for tests.
    """

    def __init__(
        self,
        place: str | Path | Trial,
        *,
        attempt: int | str | None = None,
        settle: timedelta = timedelta(seconds=2),
        sink: Sink | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from tdcore.trial.epochs import Epochs
        from tdcore.trial.index import Index
        from tdcore.trial.run_location import open_location, poll_interval

        if not (attempt is None or attempt == "all" or (isinstance(attempt, int) and attempt >= 0)):
            raise ConfigError(f'attempt must be a number, "all" or None, got {attempt!r}')
        self.where = _where(place)
        self._root: Path | None = None
        if sink is None:
            opened = open_location(self.where)
            sink, self._root = opened.sink, opened.root
        self.sink = sink
        self.pause = poll_interval(self._root, near=0.3)  # between two polls
        self._index = Index(self.sink, self._root)
        self._epochs = Epochs(self._index)
        self._samples = PolledRows(SYSTEM_FILES, self.sink, clock)
        self._step_times = PolledRows(STEP_TIME_FILES, self.sink, clock)
        self._payloads: Payloads | None = None  # made when the first payload is read
        self._progress: RunProgress | None = None  # made when there is a run.json
        self._attempt = attempt
        self._run_id: str | None = None  # tickets of the rows that were returned
        self._first_attempt: int | None = None  # set at the first poll that finds an attempt
        self._settle = settle
        self._clock = clock
        self._seen = 0  # number of stretches of the index that were read
        self._waiting = _NONE  # stretches of steps that are not complete
        # Stretches of complete steps, by batch, the last batch first.
        self._backlog: list[npt.NDArray[np.int64]] = []
        self._told: Ended = frozenset()  # `ended` of the last batch
        self._completeness = Completeness(settle.total_seconds(), clock)
        self._over = False  # the newest attempt has ended, or died
        self._collections: dict[int, dict[str, Mapping[str, Any]]] = {}  # by attempt
        self._members: dict[str, Members] = {}
        self.patterns = RunPatterns()  # from collections.json
        self._left_out: LeftOut | None = None
        self._notes: Mapping[int, Mapping[str, Any]] = {}  # notes of hooks, by attempt

    @property
    def attempts(self) -> list[int]:
        """Numbers of all attempts so far, ascending."""
        return sorted(self._progress.attempts) if self.begun() and self._progress is not None else []

    def position(self) -> dict[str, Any]:
        """The run's id, and the rows that were returned, as ranges of tickets by worker and attempt.

        Rows of incomplete steps, and of batches that were not returned yet, are not included. Plain values.
        """
        from tdcore.trial.intervals import Intervals

        index = self._index
        waiting = index.stretches.rows_of(np.concatenate([self._waiting, *self._backlog]))
        workers, attempts, tickets = (index.column(each)[waiting] for each in ("worker", "attempt", "ticket"))
        texts = index.texts("worker")
        done: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for home in index.homes:
            mine = (attempts == home[1]) & (workers == (texts.index(home[0]) if home[0] in texts else -1))
            open_tickets = Intervals()
            for ticket in np.unique(tickets[mine]).tolist():
                open_tickets.add(ticket, ticket)
            read = index.tickets(*home)
            done[home] = [part for first, last in read for part in open_tickets.missing(first, last)]
        return {**self._context(), "tickets": done}

    def _context(self) -> dict[str, Any]:
        """The part of the position that is not about single rows."""
        return {
            "run_id": self._run_id, "first_attempt": self._first_attempt,
            "whole": self._completeness.position(), "numbering": self._index.common.saved(),
            "epochs": self._epochs.saved(), "samples": self._samples.position(),
            "step_times": self._step_times.position(),
        }  # fmt: skip

    def resume(self, position: Mapping[str, Any]) -> None:
        """Continue at the `position` of another source of this run. The rows of that source are skipped.

        Call this method before the first `next`.
        """
        self._run_id = position["run_id"]
        self._first_attempt = position["first_attempt"]
        for (worker, attempt), ranges in position["tickets"].items():
            self._index.skip(worker, attempt, ranges)
        self._index.common.restore(position.get("numbering", {}))
        self._epochs.restore(position.get("epochs", {}))
        self._samples.resume(position.get("samples", {}))
        self._step_times.resume(position.get("step_times", {}))
        self._completeness.resume(position["whole"])

    def next(self, columns: Sequence[str], *, everything: bool = False) -> RowBatch:
        """See Source.next.

        Raises RunCorrupt for a damaged index, SinkError if the place cannot be read, ConfigError if another
        run is there now.
        """
        from tdcore.trial.captures import capture_columns, resolve
        from tdcore.trial.statistics import needed_columns, stats_table

        index = self._index
        if not self._backlog:
            self._read(everything=everything)
        chosen = np.sort(self._backlog[-1])
        used = np.zeros(len(index.stretches), dtype=np.bool_)
        used[chosen] = True
        rows = self._rows_of(chosen)
        with index.hold(rows, [*capture_columns(index, used), *needed_columns(columns)]):
            captures = resolve(index, rows)
            table = stats_table(index, captures, columns)
        if index.common.differs:
            own = index.own_steps[captures.first_rows]
            table = table.append_column("own_step", pa.array(own))
        self._backlog.pop()  # at the end, so that the rows are read again after an exception
        if not self._backlog:
            self._told = self._ended()
        return RowBatch(
            table=table,
            payload=lambda row: self._payload(captures, row),
            ended=self._told,
            more=bool(self._backlog),
            positions=captures.first_rows,
        )

    def _read(self, *, everything: bool) -> None:
        """Read new rows of the run, and divide those of complete steps into batches. See `next`."""
        from tdcore.trial.left_out import left_out_of

        self._read_documents()  # before the rows: a worker that has ended has written all its rows
        index = self._index
        index.advance()
        if self._progress is not None:
            self._progress.read_rows()
        fresh = np.arange(self._seen, len(index.stretches), dtype=np.int64)
        fresh = fresh[self._in_attempts(fresh)]
        read = np.concatenate([self._waiting, fresh])
        complete = np.ones(len(read), dtype=np.bool_) if everything else self._complete(fresh)
        if self._progress is not None and (len(fresh) or complete.any()):
            self._collections = collections_of(self.sink)
            self._members = members_of(self._collections, self.patterns)
            self._notes = notes_of(self.sink)
            self._left_out = left_out_of(self._notes.get(self._newest(), {}))
        self._backlog = self._batches(read[complete])
        self._seen, self._waiting = len(index.stretches), read[~complete]

    def _batches(self, complete: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Divide stretches into batches of whole steps; at least one, the first batch last."""
        from tdcore.trial.step_blocks import whole_steps

        stretches = self._index.stretches
        sizes = stretches.lengths[complete]
        if int(sizes.sum()) <= _BATCH_ROWS:
            return [complete]
        steps = stretches.column("step")[complete]
        order = np.argsort(steps, kind="stable")
        blocks = whole_steps(steps[order], sizes[order], _BATCH_ROWS)
        return [complete[order[block]] for block in blocks][::-1]

    def _rows_of(self, stretches: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of these stretches that are returned."""
        return self._index.stretches.rows_of(stretches)

    def survey(self) -> Survey:
        """Read the catalogues of the run, and none of its rows, as if it did not continue. See `next`."""
        self._read(everything=True)
        index = self._index
        stretches, chosen = index.stretches, np.concatenate([np.empty(0, np.int64), *self._backlog])
        texts, worker = index.texts("worker"), stretches.column("worker")[chosen]
        rows = np.bincount(worker, weights=stretches.lengths[chosen], minlength=len(texts)).astype(np.int64)
        steps = [stretches.column("step")[each] for each in reversed(self._backlog)]
        return Survey(
            context=self._context(),
            ends={home: index.end(*home) for home in index.homes},
            rows={str(text): int(number) for text, number in zip(texts, rows, strict=True) if number},
            workers=tuple(map(str, texts)),
            first_steps=tuple(int(each.min()) for each in steps if len(each)),
            ended=self._ended(),
        )

    def samples(self) -> Iterator[pa.Table]:
        """See Source.samples. Call it after `next`."""
        return self._samples.read(self._run_id, self._is_judged, over=self._over)

    def step_times(self) -> Iterator[pa.Table]:
        """See Source.step_times. Call it after `next`."""
        return self._step_times.read(self._run_id, self._is_judged, over=self._over)

    def _is_judged(self, attempt: int) -> bool:
        """Whether an attempt is judged."""
        if self._attempt == "all":
            return True
        if isinstance(self._attempt, int):
            return attempt == self._attempt
        return attempt >= self._first()

    def _first(self) -> int:
        """The first attempt that is judged, for attempt=None."""
        if self._first_attempt is None and self._progress is not None and self._progress.latest_attempt >= 0:
            self._first_attempt = self._progress.latest_attempt
        return self._first_attempt or 0

    def members(self, collection: str) -> Members | None:
        """See Source.members."""
        return self._members.get(collection)

    def remarks(self) -> list[str]:
        """Sentences about patterns of the run that cannot be used, and files that cannot be read."""
        return [*self.patterns.remarks(), *self._samples.remarks(), *self._step_times.remarks()]

    def capture(self) -> RunCapture | None:
        """See Source.capture. The result is from the time of the last call of `next`."""
        return run_capture(self._collections.get(self._newest(), {}))

    def _newest(self) -> int:
        """The newest attempt that is judged."""
        if isinstance(self._attempt, int):
            return self._attempt
        return -1 if self._progress is None else self._progress.latest_attempt

    def notes(self, attempt: int) -> Mapping[str, Any]:
        """See Source.notes. The notes are from the time of the last call of `next`."""
        return self._notes.get(attempt, {})

    def epoch(self, attempt: int, worker: str, step: int) -> int | None:
        """See Source.epoch."""
        return self._epochs.of(attempt, worker, step)

    def left_out(self) -> LeftOut | None:
        """See Source.left_out. The result is from the time of the last call of `next`."""
        return self._left_out

    def training(self) -> TrainingInfo | None:
        """See Source.training. The result is from the time of the last call of `next`."""
        attempts = () if self._progress is None else self._progress.run.attempts
        if not attempts:
            return None
        framework = attempts[-1].document.get("framework")
        return TrainingInfo(
            framework=framework if isinstance(framework, str) else "", world_size=attempts[-1].world_size
        )

    def not_recorded(self) -> tuple[str, ...]:
        """See Source.not_recorded."""

        return not_recorded_of(self.sink, self._attempt if isinstance(self._attempt, int) else None)

    def begun(self) -> bool:
        """See Source.begun."""
        if self._progress is None:
            self._read_documents()
        return self._progress is not None

    def finished(self) -> bool:
        """See Source.finished. Also true if the process of the training died."""
        return self._over

    def attempt_ended(self, attempt: int) -> bool:
        """See Source.attempt_ended."""
        if self._progress is None:
            return False
        newest = self._progress.latest_attempt
        return attempt < newest or (attempt == newest and self._over)

    def _read_documents(self) -> None:
        """Read which workers have started and ended."""
        from tdcore.trial.progress import RunProgress

        if self._progress is None:
            try:
                self._progress = RunProgress(self.sink, self._index, self._settle, self._clock)
            except SinkKeyError:
                return  # not begun
        self._progress.read_documents()
        run_id = self._progress.run.run_id
        if self._run_id not in (None, run_id):
            raise ConfigError(
                f"the rows judged so far are from run {self._run_id}, but {self.where} is run {run_id}; "
                "judge the new run with another state file, or delete the old state file"
            )
        self._run_id = run_id
        self._over = self._progress.status != "running"

    def _ended(self) -> Ended:
        progress = self._progress
        if progress is None:
            return frozenset()
        newest = progress.latest_attempt
        pairs = {
            (attempt, worker)
            for worker, attempt in progress.homes
            if attempt < newest or (attempt == newest and self._over)
        }
        return frozenset(pairs | {(attempt, worker) for worker, attempt in progress.ends})

    def _in_attempts(self, stretches: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        attempts = self._index.stretches.column("attempt")[stretches]
        if self._attempt == "all":
            return np.ones(len(stretches), dtype=np.bool_)
        if isinstance(self._attempt, int):
            return np.asarray(attempts == self._attempt)
        return np.asarray(attempts >= self._first())

    def _complete(self, fresh: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._completeness.of(self._index, self._waiting, fresh, self._ended())

    def _payload(self, captures: Captures, at: int) -> npt.NDArray[Any]:
        """The values of one captured tensor, read-only.

        Raises RunCorrupt, SinkError, or TensorUnavailableForStep without values.
        """
        from tdcore.trial.payload import Payloads
        from tdcore.trial.values import expect_values, read_values

        if self._payloads is None:
            self._payloads = Payloads(self.sink, self._root, run_id=lambda: self._index.run_id)
        parts = captures.parts(at)
        index, row = self._index, int(parts[0])
        step, mode_step = (int(index.column(name)[row]) for name in ("step", "mode_step"))
        what = f"{index.text('name', row)!r} at {step_text(step, index.text('mode', row) or '', mode_step)}"
        if np.any(index.column("segment")[parts] < 0):
            raise TensorUnavailableForStep(f"{what} was saved without its values", reason="stats_only")
        expect_values(index, self._payloads, row, captures.rows[captures.starts[at] :])
        try:
            return read_values(index, self._payloads, parts, what)
        except SinkKeyError as error:
            raise TensorUnavailableForStep(f"values of {what} are lost: {error}", reason="lost") from error


def _where(place: Any) -> str:
    if isinstance(place, (str, Path)):
        return str(place)
    path = getattr(place, "path", None)
    if path is None:
        raise TypeError(f"expected a run's folder, URL or Trial, got {type(place).__name__}")
    return str(path)
