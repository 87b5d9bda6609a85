"""ActionDispatcher: dispatch of findings to a set of actions without blocking the rules.

Quick actions run in the engine's thread, in their order. Actions with `background = True` wait for other
services, so each has a separate thread while it has findings to handle (tdcore/actions/action_worker.py).
Actions that fail are retried with exponential backoff. Failures and notes become problems of the report.
Threads: one thread makes all calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from tdcore.actions.action_worker import (
    MAX_PENDING,
    ActionWorker,
    Backoff,
    call_action,
    findings_were,
    merged,
)
from tdcore.actions.base import Action, NoticeKey, notice_key
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["CLOSE_TIMEOUT", "ActionDispatcher"]

CLOSE_TIMEOUT = timedelta(seconds=30)
_PAUSES = 0.25, 30.0  # seconds: the first and the longest pause of quick actions
FindingKey: TypeAlias = "tuple[str, int, str, int, str, str]"


class ActionDispatcher:
    """The actions of one engine. clock: monotonic seconds. Raises ConfigError unless all are actions."""

    def __init__(self, actions: Iterable[Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.actions: tuple[Action, ...] = tuple(map(checked, _listed(actions)))
        self._problems: list[str] = []
        self._workers: dict[int, InlineWorker | ActionWorker] = {
            index: (ActionWorker if getattr(action, "background", False) else InlineWorker)(action, clock)
            for index, action in enumerate(self.actions)
        }
        self._restored: dict[int, list[Finding]] = {}  # findings that an earlier start did not handle

    def restore(self, told: Iterable[NoticeKey], untold: Mapping[str, Sequence[Finding]]) -> None:
        """Continue an earlier start. told: keys that were passed on. untold: the result of untold()."""
        keys = list(told)
        for index, action in enumerate(self.actions):
            left = untold.get(self._label(index), ())
            open_keys = {notice_key(finding) for finding in left}
            prime = getattr(action, "prime", None)
            if prime is not None:
                prime([key for key in keys if key not in open_keys])
            if left:
                self._restored[index] = list(left)

    def untold(self) -> dict[str, list[FindingKey]]:
        """The findings that each action got and has not handled yet, by action."""
        found: dict[str, list[FindingKey]] = {}
        for index, worker in self._workers.items():
            waiting = [*self._restored.get(index, ()), *worker.untold()]
            if waiting:
                found[self._label(index)] = list(dict.fromkeys(finding.key for finding in waiting))
        return found

    def give(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Pass new findings to every action. Never raises."""
        for worker in self._workers.values():
            worker.submit(findings, source, sink)

    def try_again(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """Retry actions that failed, if their pause is over. Called at each poll of the run. Never raises.

        last: no poll comes after this one.
        """
        for index, findings in self._restored.items():
            self._workers[index].submit(findings, source, sink)
        self._restored.clear()
        for worker in self._workers.values():
            worker.retry(source, sink, last=last)

    def take_problems(self) -> list[str]:
        """Failures and notes of actions since the last call."""
        problems = [problem for worker in self._workers.values() for problem in worker.take_problems()]
        problems, self._problems = [*problems, *self._problems], []
        return problems

    def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Wait until all findings are handled, at most `timeout`. Findings that are left become a problem."""
        deadline = time.monotonic() + timeout.total_seconds()
        for worker in self._workers.values():
            late, left = worker.join(deadline - time.monotonic())
            if left:
                within = f" within {timeout.total_seconds():g} s" if late else ""
                self._problems.append(f"action {worker.name}: {findings_were(left)} not reported{within}")

    def _label(self, index: int) -> str:
        return f"{index}:{self.actions[index].name}"


class InlineWorker:
    """One quick action, which runs in the caller's thread."""

    def __init__(self, action: Action, clock: Callable[[], float]) -> None:
        self.name = action.name
        self._action = action
        self._backoff = Backoff(clock, *_PAUSES)
        self._problems: list[str] = []
        self._failed: list[Finding] = []  # the run was unreachable

    def submit(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Call the action now, unless the run was unreachable a moment ago."""
        findings = merged([*self._failed, *findings])[:MAX_PENDING]
        if self._failed and not self._backoff.over:
            self._failed = findings
        else:
            self._call(findings, source, sink)

    def retry(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """Call the action again if the run was unreachable, so that a request to stop is not lost."""
        if self._failed and (last or self._backoff.over):
            self._call(self._failed, source, sink)

    def _call(self, findings: list[Finding], source: Source, sink: Sink | None) -> None:
        problems, unreachable = call_action(self._action, findings, source, sink)
        self._problems += problems
        self._failed = findings if unreachable else []
        self._backoff.record_call(unreachable)

    def untold(self) -> list[Finding]:
        """Findings to be retried."""
        return self._failed

    def take_problems(self) -> list[str]:
        """See ActionDispatcher.take_problems."""
        problems, self._problems = self._problems, []
        return problems

    def join(self, seconds: float) -> tuple[bool, int]:
        """See ActionWorker.join. There is no thread to wait for."""
        return False, len(self._failed)


def _listed(actions: Iterable[Any]) -> list[Any]:
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise ConfigError(f"actions must be a list of actions, got {type(actions).__name__}")
    return list(actions)


def checked(action: Any) -> Action:
    """The action itself, or the action that a text describes. Raises ConfigError for any other value."""
    if isinstance(action, str):
        from tdcore.actions.loading import load_action

        return load_action(action)
    if isinstance(action, type) or not callable(getattr(action, "act", None)):
        what = f"the class {action.__name__}" if isinstance(action, type) else type(action).__name__
        raise ConfigError(f"an action must be an instance such as RequestStop(), or its text; got {what}")
    if not isinstance(getattr(action, "name", None), str):
        raise ConfigError(
            f"an action needs a name for messages; {type(action).__name__}.name is not a string"
        )
    made: Action = action
    return made
