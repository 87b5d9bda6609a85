"""RunProgress: the progress of each worker of a run, the complete steps, and the status of the run.

A step is complete for a worker when the worker has marked the step as complete, has ended, or has added no
rows for a while (`settle`). The rows of a step reach the index in pieces, rows of device tensors later than
others, and no row is marked as the last one. If a worker marks no steps, because the run was not written by a
hook, a step is complete when the worker has saved a tensor of a later step. Rows of a step that is not marked
as complete may come after rows of later steps.

A step is complete when it is complete for every expected worker: the workers in run.json, and the workers
with a claim or rows. Each worker counts its own global steps, so a step of several workers is identified by
(attempt, mode, mode step): see common_steps.py. A worker that has not saved a step has passed it when it has
finished a later step of the mode, or a step of another mode that is later in the common numbering. A step is
complete without a worker in these cases:

- the worker's attempt has ended: its end file exists, and was written after all of its rows;
- the worker is behind the others, its process has ended, and it has added no rows for ten times `settle`; if
  its process is on another machine, it has added no rows for a minute or ten times `settle`, whichever is
  longer;
- the worker has added no rows at all for ten times `settle` since this reader was opened.

A worker whose process is alive on this machine is always waited for. Rows of a worker that continues later
are read like all others. Threads: an object belongs to one Trial.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tdcore.errors import SinkKeyError
from tdcore.format import layout
from tdcore.liveness import process_is_gone
from tdcore.sinks.base import announce
from tdcore.sinks.cache import CachedSink
from tdcore.trial.documents import (
    Attempt,
    Run,
    RunEnd,
    claim_key,
    claimed_process,
    read_claim,
    read_ends,
    read_run,
)
from tdcore.trial.fetch import fetch_all
from tdcore.trial.index import Index, Rows

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["RunProgress", "RunStatus"]

RunStatus = Literal["running", "ended", "died"]
Mask = npt.NDArray[np.bool_]

_CLAIM = re.compile(r"attempts/(\d{4})-([A-Za-z0-9][A-Za-z0-9_.-]{0,127})\.json", re.ASCII)
_FAR_SECONDS = 60.0  # without rows; must be longer than the difference of two machines' clocks
_ALWAYS = np.iinfo(np.int64).max
# In units of `settle`: maximum wait for a worker without rows, or for a lost process.
_PATIENCE = 10


class _Frontier:
    """The last own step of one worker in one attempt, and when its rows last arrived."""

    __slots__ = ("arrived", "saved_ns", "step")

    def __init__(self, step: int, arrived: float, saved_ns: int) -> None:
        self.step = step
        self.arrived = arrived
        self.saved_ns = saved_ns


class RunProgress:
    """The progress of one run.
    sink, index: sink and index of the run. settle: see the module's docstring. clock: monotonic seconds.
    """

    def __init__(self, sink: Sink, index: Index, settle: timedelta, clock: Callable[[], float]) -> None:
        self.run: Run = _read_run(sink)
        self.ends: dict[tuple[str, int], RunEnd] = {}
        self._sink = sink
        self._index = index
        index.run_id = self.run.run_id
        self._settle = settle.total_seconds()
        self._clock = clock
        self._opened = clock()
        self._claims: dict[int, set[str]] = {}
        self._claim_contents: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._frontiers: dict[tuple[int, str], _Frontier] = {}
        self._seen = 0  # arrivals of the index

    def read_documents(self) -> None:
        """Read the small files.

        Call it before the index is read, so that an ended run is read to its end.
        """
        ends, claimed = fetch_all(self._sink, self._sink.list, [layout.END_PREFIX, "attempts/"])
        self.ends = read_ends(self._sink, ends, self.ends, self.run.run_id)
        claims: dict[int, set[str]] = {}
        for key in claimed:
            match = _CLAIM.fullmatch(key)
            if match is not None:
                claims.setdefault(int(match[1]), set()).add(match[2])
        known = {attempt.number for attempt in self.run.attempts}
        if not claims or (claims != self._claims and (self._claims or not known.issuperset(claims))):
            with suppress(SinkKeyError):  # the run's folder was removed: data that was read stays
                self.run = _read_run(self._sink)
                self._index.run_id = self.run.run_id
        self._claims = claims
        homes = {(worker, attempt) for attempt, workers in claims.items() for worker in workers}
        self._index.expect(homes, self.ends)

    def read_rows(self) -> None:
        """Process the rows that the index has read since the last call."""
        new, now = self._index.arrivals[self._seen :], self._clock()
        self._seen += len(new)
        latest: dict[tuple[int, str], tuple[int, int]] = {}
        for each in new:
            place = (each.attempt, each.worker)
            step, saved_ns = latest.get(place, (each.last_step, each.last_time_ns))
            latest[place] = max(step, each.last_step), max(saved_ns, each.last_time_ns)
        for place, (step, saved_ns) in latest.items():
            before = self._frontiers.get(place)
            if before is None or step >= before.step:
                self._frontiers[place] = _Frontier(step, now, saved_ns)
            else:
                before.arrived, before.saved_ns = now, max(saved_ns, before.saved_ns)

    @property
    def latest_attempt(self) -> int:
        """The highest known attempt; -1 if there is none."""
        numbers = [attempt.number for attempt in self.run.attempts]
        return max([*numbers, *self._claims, *(attempt for attempt, _ in self._frontiers)], default=-1)

    @property
    def attempts(self) -> list[int]:
        """All known attempts, sorted."""
        numbers = {attempt.number for attempt in self.run.attempts}
        return sorted(numbers | set(self._claims) | {attempt for attempt, _ in self._frontiers})

    @property
    def homes(self) -> set[tuple[str, int]]:
        """Every (worker, attempt) with a claim or rows."""
        claimed = {(worker, attempt) for attempt, workers in self._claims.items() for worker in workers}
        return claimed | {(worker, attempt) for attempt, worker in self._frontiers}

    def workers(self, attempt: int) -> set[str]:
        """Workers of an attempt with a claim or rows."""
        seen = {worker for number, worker in self._frontiers if number == attempt}
        return seen | self._claims.get(attempt, set())

    def world_size(self, attempt: int) -> int:
        """Number of workers of the training, from run.json."""
        entry = self._entry(attempt)
        return 1 if entry is None else entry.world_size

    def complete(self, rows: Rows) -> Mask:
        """Mask of the rows of complete steps among these rows of the index."""
        index, latest = self._index, self.latest_attempt
        done: Mask = index.column("attempt")[rows] < latest
        bounds = {} if self.status != "running" else self._bounds(latest)
        if not bounds:
            done[:] = True
        elif not index.common.several:
            done |= index.own_steps[rows] < min(bounds.values())
        else:
            ends = np.full(len(index.texts("mode")), _ALWAYS)
            for worker, bound in bounds.items():
                for mode, end in self._finished(latest, worker, bound).items():
                    ends[mode] = min(end, ends[mode])
            done |= index.column("mode_step")[rows] < ends[index.column("mode")[rows]]
        return done

    def waiting_for(self, attempt: int, step: int, row: int | None = None) -> list[str]:
        """The workers that may still add to a step of the attempt.

        step: its common step. row: any row of the step in the index; None if no row was read.
        """
        if attempt < self.latest_attempt or self.status != "running":
            return []
        common, bounds = self._index.common, self._bounds(attempt)
        if row is None or not common.several:
            return [worker for worker, own in bounds.items() if common.bound(attempt, worker, own) <= step]
        mode, mode_step = (int(self._index.column(name)[row]) for name in ("mode", "mode_step"))
        return [
            worker
            for worker, own in bounds.items()
            if self._finished(attempt, worker, own).get(mode, _ALWAYS) <= mode_step
        ]

    def _finished(self, attempt: int, worker: str, bound: int) -> dict[int, int]:
        """mode code -> mode steps below this one are complete for the worker; see CommonSteps.finished."""
        return {} if bound >= _ALWAYS else self._index.common.finished(attempt, worker, bound)

    def _bounds(self, attempt: int) -> dict[str, int]:
        """For each worker, the global step, in its own numbers, below which all steps are complete."""
        entry = self._entry(attempt)
        expected = self.workers(attempt) | set(() if entry is None else entry.workers)
        reached = {
            worker: self._index.common.bound(attempt, worker, frontier.step + 1)
            for (number, worker), frontier in self._frontiers.items()
            if number == attempt
        }
        furthest = max(reached.values(), default=0)
        return {
            worker: self._bound(attempt, worker, behind=reached.get(worker, 0) < furthest)
            for worker in sorted(expected)
        }

    def _bound(self, attempt: int, worker: str, *, behind: bool) -> int:
        if (worker, attempt) in self.ends:
            return int(_ALWAYS)
        frontier = self._frontiers.get((attempt, worker))
        if frontier is None:
            return self._bound_without_rows(attempt, worker)
        if behind and self._is_lost(attempt, worker, frontier):
            return int(_ALWAYS)
        whole = self._index.whole_step(worker, attempt)
        if self._settled(frontier):
            return max(frontier.step, -1 if whole is None else whole) + 1
        return frontier.step if whole is None else whole + 1

    def _bound_without_rows(self, attempt: int, worker: str) -> int:
        if self._clock() - self._opened > _PATIENCE * self._settle:
            return int(_ALWAYS)
        whole = self._index.whole_step(worker, attempt)
        return -int(_ALWAYS) if whole is None else whole + 1

    def _is_lost(self, attempt: int, worker: str, frontier: _Frontier) -> bool:
        """Whether a worker that has not ended is unlikely to add rows; see the module's docstring."""
        if not self._is_silent(attempt, [frontier]):
            return False
        (claim,) = self.claims([(worker, attempt)]).values()
        gone = process_is_gone(*claimed_process(claim))
        if gone is None:
            return self._is_silent(attempt, [frontier], at_least=_FAR_SECONDS)
        return gone

    def _settled(self, frontier: _Frontier) -> bool:
        age = (time.time_ns() - frontier.saved_ns) / 1e9
        return self._clock() - frontier.arrived >= self._settle or age > max(
            _FAR_SECONDS, _PATIENCE * self._settle
        )

    @property
    def status(self) -> RunStatus:
        """Status of the latest attempt.

        "died": the end was not clean, or the training's process has ended without an end file.
        """
        attempt = self.latest_attempt
        workers = self.workers(attempt)
        ends = [self.ends.get((worker, attempt)) for worker in workers]
        if ends and all(end is not None for end in ends):
            return "ended" if all(end is not None and end.clean for end in ends) else "died"
        return "died" if self._vanished(attempt) else "running"

    def silent(self) -> list[tuple[str, int]]:
        """Workers that have not ended in an attempt, and have added no rows to it for a while."""
        claimed = {(attempt, worker) for attempt, workers in self._claims.items() for worker in workers}
        found = []
        for attempt, worker in sorted(claimed | set(self._frontiers)):
            if (worker, attempt) not in self.ends:
                frontier = self._frontiers.get((attempt, worker))
                if self._is_silent(attempt, [] if frontier is None else [frontier]):
                    found.append((worker, attempt))
        return found

    def claims(self, homes: Collection[tuple[str, int]]) -> dict[tuple[str, int], Mapping[str, Any]]:
        """The claim that each (worker, attempt) wrote at its start; see read_claim.

        A claim is written once, and read once.
        """
        new = [home for home in dict.fromkeys(homes) if home not in self._claim_contents]
        announce(self._sink, [claim_key(*home) for home in new])
        for home in new:
            self._claim_contents[home] = read_claim(self._sink, *home)
        return {home: self._claim_contents[home] for home in homes}

    def _vanished(self, attempt: int) -> bool:
        """Whether the process has ended and no rows have arrived for a while, as after a power failure."""
        entry = self._entry(attempt)
        mine = [frontier for (number, _), frontier in self._frontiers.items() if number == attempt]
        if entry is None or not self._is_silent(attempt, mine):
            return False
        return process_is_gone(entry.host, entry.pid, entry.started_ns) is True

    def _entry(self, attempt: int) -> Attempt | None:
        return self.run.by_number.get(attempt)

    def _is_silent(self, attempt: int, frontiers: Sequence[_Frontier], *, at_least: float = 0.0) -> bool:
        """Whether no rows have arrived for long, by this machine's clock or by the writer's clock.

        at_least: seconds by this machine's clock.
        """
        entry = self._entry(attempt)
        started_ns = entry.started_ns if entry is not None else time.time_ns()
        silence = self._clock() - max([self._opened, *(frontier.arrived for frontier in frontiers)])
        last_ns = max([started_ns, *(frontier.saved_ns for frontier in frontiers)])
        patience = max(at_least, _PATIENCE * self._settle)
        return silence >= patience or (time.time_ns() - last_ns) / 1e9 >= max(_FAR_SECONDS, patience)


def _read_run(sink: Sink) -> Run:
    """Read run.json. The id of the run is passed to a CachedSink."""
    run = read_run(sink)
    if isinstance(sink, CachedSink):
        sink.use(run.run_id)
    return run
