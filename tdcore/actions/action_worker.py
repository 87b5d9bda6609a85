"""ActionWorker: calls of one action in a separate thread, which exists only while there are findings.

Findings that arrive while the action runs are passed to its next call together. After a failure the worker
pauses (Backoff), so that a service that is down is not called at every poll of the run.
Threads: one thread calls the methods.
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

__all__ = [
    "FIRST_PAUSE",
    "LONGEST_PAUSE",
    "MAX_PENDING",
    "ActionWorker",
    "Backoff",
    "call_action",
    "findings_were",
    "merged",
]

MAX_PENDING = 10_000  # findings that wait for one action; further findings are only counted
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0  # seconds
_CANCEL_SECONDS = 1.0


class Backoff:
    """Exponential backoff after failures of an action.

    clock: monotonic seconds. first, longest: seconds of the first and of the longest pause.
    """

    def __init__(self, clock: Callable[[], float], first: float, longest: float) -> None:
        self._clock = clock
        self._first, self._longest = first, longest
        self._length = 0.0  # 0: the last call did not fail
        self._called_at = 0.0

    def record_call(self, failed: bool) -> None:
        """Record a call of the action; a failed call begins a pause."""
        self._length = min(max(self._first, 2 * self._length), self._longest) if failed else 0.0
        self._called_at = self._clock()

    @property
    def over(self) -> bool:
        """Whether the pause is over."""
        return self._clock() >= self._called_at + self._length or not self._length

    @property
    def last_call(self) -> bool:
        """Whether a last call is useful: the first pause has passed since the previous call."""
        return self._clock() >= self._called_at + self._first


class ActionWorker:
    """One action with `background = True`. clock: monotonic seconds, for Backoff."""

    def __init__(self, action: Action, clock: Callable[[], float]) -> None:
        self.name = action.name
        self._action: Any = action
        self._lock = threading.Lock()  # guards all attributes below
        self._backoff = Backoff(clock, FIRST_PAUSE, LONGEST_PAUSE)
        self._pending: list[Finding] = []
        self._acting: list[Finding] = []  # findings of the call in progress
        self._untold: list[Finding] = []  # findings that the action keeps for its next call
        self._source: Source | None = None
        self._problems: list[str] = []
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()  # set while there is no thread
        self._idle.set()

    def submit(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Add findings to the next call. sink: not used by background actions."""
        with self._lock:
            waiting = merged([*self._pending, *findings])
            self._pending, beyond = waiting[:MAX_PENDING], len(waiting) - MAX_PENDING
            self._source = source
            if beyond > 0:
                self._problems.append(f"action {self.name} is too slow: {findings_were(beyond)} not reported")
            if self._backoff.over:
                self._start()

    def retry(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """Call the action again if findings are left and the pause is over.

        last: this is the last retry. Findings that were never passed on are passed on in any case. Findings
        whose call failed are passed on if the first pause has passed since that call.
        """
        with self._lock:
            due = self._backoff.over or (last and (self._pending or self._backoff.last_call))
            if (self._pending or self._untold) and due:
                self._source = source
                self._start()

    def untold(self) -> list[Finding]:
        """Findings that were submitted and are not handled yet."""
        with self._lock:
            return [*self._untold, *self._acting, *self._pending]

    def take_problems(self) -> list[str]:
        """See ActionDispatcher.take_problems."""
        with self._lock:
            problems, self._problems = self._problems, []
        return problems

    def join(self, seconds: float) -> tuple[bool, int]:
        """Wait for the thread, at most `seconds`, and drop the findings that are left.

        Returns whether the thread is still running, and the number of findings that were left.
        """
        with self._lock:
            thread = self._thread
        # Not Thread.join, which treats the thread as ended after Ctrl-C has interrupted the join.
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
        """Start the thread if there is none. The caller holds the lock."""
        if self._thread is not None:
            return
        # A daemon thread: the program may end while a service does not answer, which close() has reported.
        thread = threading.Thread(target=self._run, name=f"tdcore action {self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._problems.append(f"action {self.name} has no thread: {error}")
            self._backoff.record_call(True)
            return
        self._thread = thread
        self._idle.clear()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._acting, self._pending = self._pending, []
                findings, source = self._acting, self._source
            assert source is not None  # submit() sets it before it starts the thread
            try:
                problems, _ = call_action(self._action, findings, source, None)
            except SystemExit as error:  # SystemExit would end only this thread, without a message
                problems = [f"action {self.name} failed: {error!r}"]
            untold = getattr(self._action, "untold", None)
            with self._lock:
                self._problems += problems
                self._acting = []
                self._untold = [] if untold is None else untold()
                self._backoff.record_call(bool(self._untold))
                if not self._pending or self._untold:
                    self._thread = None
                    self._idle.set()
                    return


def call_action(
    action: Any, findings: Sequence[Finding], source: Source, sink: Sink | None
) -> tuple[list[str], bool]:
    """Call an action. Returns problems to report, and whether to retry because the run was unreachable."""
    problems, unreachable = [], False
    try:
        action.act(findings, source, sink)
    except Exception as error:  # an exception of an action must not end the run of the rules
        problems.append(f"action {action.name} failed: {str(error) or repr(error)}")
        unreachable = (
            isinstance(error, SinkError) and error.kind in ("transient", "full") and sink is not None
        )
    take_notes = getattr(action, "take_notes", None)
    if take_notes is not None:
        problems += [f"action {action.name}: {note}" for note in take_notes()]
    return problems, unreachable


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Each finding once, in the order in which they began, with its newest count.

    A finding that continues arrives at each poll of the run, and replaces its earlier state.
    """
    return list({finding.key: finding for finding in findings}.values())


def findings_were(findings: int) -> str:
    """The subject of a message: "1 finding was", "3 findings were"."""
    return "1 finding was" if findings == 1 else f"{findings} findings were"
