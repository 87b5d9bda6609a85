"""Progress: how far each worker of a run is, which steps are complete, and whether the run still goes on.

A step is complete for a worker when the worker has saved something of a later step, has ended, or has added
nothing to it for a while (`settle`): a step's tensors reach the index in pieces, and nothing in the run
says "that was the last one". Threads: belongs to one Trial.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np

from tdcore.errors import SinkKeyError
from tdcore.trial.columns import distinct
from tdcore.trial.documents import Run, RunEnd, read_ends, read_run
from tdcore.trial.index import Index

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Progress", "RunStatus"]

RunStatus = Literal["running", "ended", "died"]

_CLAIM = re.compile(r"attempts/(\d{4,8})-([A-Za-z0-9][A-Za-z0-9_.-]{0,127})\.json", re.ASCII)
_ALWAYS = np.iinfo(np.int64).max
_PATIENCE = (
    10  # times `settle`: when a silent worker no longer holds others back, or a lost process is given up
)


class _Frontier:
    """The last step of one worker in one attempt, and when something of it last arrived."""

    __slots__ = ("arrived", "saved_ns", "step")

    def __init__(self, step: int, arrived: float, saved_ns: int) -> None:
        self.step = step
        self.arrived = arrived
        self.saved_ns = saved_ns


class Progress:
    """sink, index: of the run. settle: see the module's text. clock: monotonic seconds."""

    def __init__(self, sink: Sink, index: Index, settle: timedelta, clock: Callable[[], float]) -> None:
        self.run: Run = read_run(sink)
        self.ends: dict[tuple[str, int], RunEnd] = {}
        self._sink = sink
        self._index = index
        self._settle = settle.total_seconds()
        self._clock = clock
        self._opened = clock()
        self._claims: dict[int, set[str]] = {}
        self._frontiers: dict[tuple[int, str], _Frontier] = {}
        self._seen = 0

    def read_documents(self) -> None:
        """Reads what the small files say now.

        Call it before the index is read: then an ended run is read to its end.
        """
        self.ends = read_ends(self._sink, self.ends)
        claims: dict[int, set[str]] = {}
        for key in self._sink.list("attempts/"):
            match = _CLAIM.fullmatch(key)
            if match is not None:
                claims.setdefault(int(match[1]), set()).add(match[2])
        if claims != self._claims or not claims:
            with suppress(SinkKeyError):  # the run's folder was removed under us: what was read stays
                self.run = read_run(self._sink)
        self._claims = claims

    def read_rows(self) -> None:
        """Takes in the rows that the index has got since the last call."""
        index, known = self._index, self._seen
        self._seen = len(index)
        if known == self._seen:
            return
        attempts, workers = index.column("attempt")[known:], index.column("worker")[known:]
        steps, times = index.column("step")[known:], index.column("time_ns")[known:]
        texts, now = index.texts("worker"), self._clock()
        pairs = distinct(attempts.astype(np.int64) * len(texts) + workers)
        for attempt, worker in (divmod(pair, len(texts)) for pair in pairs):
            mine = (attempts == attempt) & (workers == worker)
            step, saved_ns = int(steps[mine].max()), int(times[mine].max())
            place = (attempt, texts[worker])
            before = self._frontiers.get(place)
            if before is None or step >= before.step:
                self._frontiers[place] = _Frontier(step, now, saved_ns)
            else:
                before.arrived = now

    @property
    def latest_attempt(self) -> int:
        """The highest attempt that is known; -1 when there is none."""
        numbers = [attempt.number for attempt in self.run.attempts]
        return max([*numbers, *self._claims, *(attempt for attempt, _ in self._frontiers)], default=-1)

    @property
    def attempts(self) -> list[int]:
        """All attempts that are known, sorted."""
        numbers = {attempt.number for attempt in self.run.attempts}
        return sorted(numbers | set(self._claims) | {attempt for attempt, _ in self._frontiers})

    def workers(self, attempt: int) -> set[str]:
        """Workers that take part in an attempt, as far as they have shown themselves."""
        seen = {worker for number, worker in self._frontiers if number == attempt}
        return seen | self._claims.get(attempt, set())

    def complete_before(self, attempt: int) -> int:
        """Global steps below this one are complete in the attempt."""
        if attempt < self.latest_attempt or self.status != "running":
            return int(_ALWAYS)
        bounds = [self._bound(attempt, worker) for worker in self.workers(attempt)]
        return min(bounds, default=int(_ALWAYS))

    def _bound(self, attempt: int, worker: str) -> int:
        if (worker, attempt) in self.ends:
            return int(_ALWAYS)
        frontier = self._frontiers.get((attempt, worker))
        if frontier is None:
            waited = self._clock() - self._opened
            return int(_ALWAYS) if waited > _PATIENCE * self._settle else -int(_ALWAYS)
        return frontier.step + 1 if self._settled(frontier) else frontier.step

    def _settled(self, frontier: _Frontier) -> bool:
        age = (time.time_ns() - frontier.saved_ns) / 1e9
        return self._clock() - frontier.arrived >= self._settle or age > max(60.0, _PATIENCE * self._settle)

    @property
    def status(self) -> RunStatus:
        """Of the latest attempt.

        "died": an end that was not clean, or the training's process is gone without one.
        """
        attempt = self.latest_attempt
        workers = self.workers(attempt)
        ends = [self.ends.get((worker, attempt)) for worker in workers]
        if ends and all(end is not None for end in ends):
            return "ended" if all(end is not None and end.clean for end in ends) else "died"
        return "died" if self._vanished(attempt) else "running"

    def _vanished(self, attempt: int) -> bool:
        """The process is not there any more and nothing has come for a while: power failure, both processes
        killed.
        """
        entry = next((each for each in self.run.attempts if each.number == attempt), None)
        if entry is None or entry.pid == 0 or entry.host != socket.gethostname():
            return False
        mine = [frontier for (number, _), frontier in self._frontiers.items() if number == attempt]
        silence = self._clock() - max([self._opened, *(frontier.arrived for frontier in mine)])
        last_ns = max([entry.started_ns, *(frontier.saved_ns for frontier in mine)])
        patience = _PATIENCE * self._settle
        if silence < patience and (time.time_ns() - last_ns) / 1e9 < max(60.0, patience):
            return False
        import psutil

        try:
            return bool(psutil.Process(entry.pid).create_time() > entry.started_ns / 1e9 + 60.0)
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False
