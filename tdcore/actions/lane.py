"""A lane: one action and the thread that it has while there is something to tell.

Findings that come while the action is at work go into its next call together. After a failure the lane
pauses, so that a service that is down is not called at every look. Threads: the methods by one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tdcore.actions.base import Action
from tdcore.errors import SinkError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "MAX_PENDING", "Lane", "Pause", "called", "count_of"]

MAX_PENDING = 10_000  # findings that wait for one action; more are counted, not kept
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds
_CANCEL_SECONDS = 1.0


class Pause:
    """How long to leave an action alone that has failed: seconds, doubled with each failure.

    clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], first: float, longest: float) -> None:
        self._clock = clock
        self._first, self._longest = first, longest
        self._length = 0.0  # 0: the last call did not fail
        self._tried = 0.0

    def tried(self, failed: bool) -> None:
        """The action was called."""
        self._length = min(max(self._first, 2 * self._length), self._longest) if failed else 0.0
        self._tried = self._clock()

    @property
    def over(self) -> bool:
        """Whether it may be called."""
        return self._clock() >= self._tried + self._length or not self._length

    @property
    def last_call(self) -> bool:
        """Whether a last try is worth it: the one before is at least the first pause ago."""
        return self._clock() >= self._tried + self._first


class Lane:
    """One action of an outbox. clock: monotonic seconds, for its pauses."""

    def __init__(self, action: Action, clock: Callable[[], float]) -> None:
        self.name = action.name
        self._action: Any = action
        self._lock = threading.Lock()  # over everything below
        self._pause = Pause(clock, FIRST_PAUSE, LONGEST_PAUSE)
        self._pending: list[Finding] = []
        self._acting: list[Finding] = []  # of the call that is on its way
        self._untold: list[Finding] = []  # what the action has kept for its next call
        self._source: Source | None = None
        self._problems: list[str] = []
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()  # the thread has nothing more to do; there is none at first
        self._idle.set()

    def give(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Adds findings to the next call. sink: not for actions of the background."""
        with self._lock:
            room = MAX_PENDING - len(self._pending)
            self._pending += findings[:room]
            self._source = source
            if len(findings) > room:
                self._problems.append(
                    f"action {self.name} is too slow: {count_of(len(findings) - room)} not told"
                )
            if self._pause.over:
                self._start()

    def look(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """Calls the action again when something is left and its pause is over.

        last: what has not been tried is tried, pause or not, and so is what failed a while ago.
        """
        with self._lock:
            due = self._pause.over or (last and (self._pending or self._pause.last_call))
            if (self._pending or self._untold) and due:
                self._source = source
                self._start()

    def untold(self) -> list[Finding]:
        """What was given and is not told."""
        with self._lock:
            return [*self._untold, *self._acting, *self._pending]

    def take_problems(self) -> list[str]:
        """See Outbox.take_problems."""
        with self._lock:
            problems, self._problems = self._problems, []
        return problems

    def join(self, seconds: float) -> tuple[bool, int]:
        """Waits for the thread. Whether it was too slow, and how many findings are left: nobody waits for
        them any more.
        """
        with self._lock:
            thread = self._thread
        # Not Thread.join: broken off by Ctrl-C, it takes the thread for ended from then on.
        if self._idle.wait(max(0.0, seconds)) and thread is not None:
            thread.join()
        with self._lock:
            late = self._thread is not None
            left = len({finding.key for finding in [*self._untold, *self._acting, *self._pending]})
            self._pending = []
        cancel = getattr(self._action, "cancel", None)
        if late and cancel is not None:
            cancel()
            self._idle.wait(_CANCEL_SECONDS)
        return late, left

    def _start(self) -> None:
        """Has the thread work. Under the lock."""
        if self._thread is not None:
            return
        # A daemon: the program may end while a service does not answer; close() has said so.
        thread = threading.Thread(target=self._run, name=f"tdcore action {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._problems.append(f"action {self.name} has no thread: {error}")
            self._pause.tried(True)
            return
        self._thread = thread
        self._idle.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._acting, self._pending = self._pending, []
                findings, source = self._acting, self._source
            assert source is not None  # there is one before there is a thread
            try:
                problems, _ = called(self._action, findings, source, None)
            except SystemExit as error:  # it would end this thread only, and without a word
                problems = [f"action {self.name} failed: {error!r}"]
            untold = getattr(self._action, "untold", None)
            with self._lock:
                self._problems += problems
                self._acting = []
                self._untold = [] if untold is None else untold()
                self._pause.tried(bool(self._untold))
                if not self._pending or self._untold:
                    self._thread = None
                    self._idle.set()
                    return


def called(
    action: Any, findings: Sequence[Finding], source: Source, sink: Sink | None
) -> tuple[list[str], bool]:
    """Calls an action. What is to be reported; whether the run was out of reach for a while."""
    problems, passing = [], False
    try:
        action.act(findings, source, sink)
    except Exception as error:  # whatever an action raises must not end the watch
        problems.append(f"action {action.name} failed: {str(error) or repr(error)}")
        passing = isinstance(error, SinkError) and error.kind in ("transient", "full") and sink is not None
    take_notes = getattr(action, "take_notes", None)
    if take_notes is not None:
        problems += [f"action {action.name}: {note}" for note in take_notes()]
    return problems, passing


def count_of(findings: int) -> str:
    """How many were or were not told."""
    return "1 finding was" if findings == 1 else f"{findings} findings were"
