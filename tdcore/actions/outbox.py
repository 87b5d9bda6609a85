"""Outbox: hands findings to a set of actions without holding up the judging.

Quick actions run in the engine's thread, in their order. Actions with `background = True` wait for others,
so each has a thread of its own, which lives while it has something to tell (tdcore/actions/lane.py). What
failed is tried again after pauses that grow. Failures and notes become problems of the report. Threads: all
calls by one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from tdcore.actions.base import Action, NoticeKey, notice_key
from tdcore.actions.lane import MAX_PENDING, Lane, Pause, called, count_of
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["CLOSE_TIMEOUT", "Outbox"]

CLOSE_TIMEOUT = timedelta(seconds=30)
_PAUSES = 0.25, 30.0  # seconds: of quick actions, the first and the longest
FindingKey: TypeAlias = "tuple[str, int, str, int, str, str]"


class Outbox:
    """The actions of one engine. clock: monotonic seconds. Raises ConfigError for what is not an action."""

    def __init__(self, actions: Iterable[Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.actions: tuple[Action, ...] = tuple(map(checked, _listed(actions)))
        self._problems: list[str] = []
        self._desks: dict[int, Desk | Lane] = {
            index: (Lane if getattr(action, "background", False) else Desk)(action, clock)
            for index, action in enumerate(self.actions)
        }
        self._owed: dict[int, list[Finding]] = {}  # what an earlier start has not told

    def restore(self, told: Iterable[NoticeKey], untold: Mapping[str, Sequence[Finding]]) -> None:
        """Takes over from an earlier start. told: keys that it handed out; untold: as untold() gave them."""
        keys = list(told)
        for index, action in enumerate(self.actions):
            owed = untold.get(self._label(index), ())
            open_keys = {notice_key(finding) for finding in owed}
            prime = getattr(action, "prime", None)
            if prime is not None:
                prime([key for key in keys if key not in open_keys])
            if owed:
                self._owed[index] = list(owed)

    def untold(self) -> dict[str, list[FindingKey]]:
        """By action, what was given to it and is not told yet."""
        found: dict[str, list[FindingKey]] = {}
        for index, desk in self._desks.items():
            waiting = [*self._owed.get(index, ()), *desk.untold()]
            if waiting:
                found[self._label(index)] = list(dict.fromkeys(finding.key for finding in waiting))
        return found

    def give(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Hands new findings to every action. Never raises."""
        for desk in self._desks.values():
            desk.give(findings, source, sink)

    def try_again(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """At each look: what failed or could not be told yet, when its pause is over. Never raises.

        last: no look comes after this one.
        """
        for index, findings in self._owed.items():
            self._desks[index].give(findings, source, sink)
        self._owed.clear()
        for desk in self._desks.values():
            desk.look(source, sink, last=last)

    def take_problems(self) -> list[str]:
        """What went wrong since the last call, and what actions have to say."""
        problems = [problem for desk in self._desks.values() for problem in desk.take_problems()]
        problems, self._problems = [*problems, *self._problems], []
        return problems

    def close(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Waits until everything is told, at most so long; what is not becomes a problem."""
        deadline = time.monotonic() + timeout.total_seconds()
        for desk in self._desks.values():
            late, left = desk.join(deadline - time.monotonic())
            if left:
                within = f" within {timeout.total_seconds():g} s" if late else ""
                self._problems.append(f"action {desk.name}: {count_of(left)} not told{within}")

    def _label(self, index: int) -> str:
        return f"{index}:{self.actions[index].name}"


class Desk:
    """One action that runs in the caller's thread."""

    def __init__(self, action: Action, clock: Callable[[], float]) -> None:
        self.name = action.name
        self._action = action
        self._pause = Pause(clock, *_PAUSES)
        self._problems: list[str] = []
        self._again: list[Finding] = []  # the run was out of reach

    def give(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Calls the action now, unless the run was out of reach a moment ago."""
        findings = [*self._again, *findings][:MAX_PENDING]
        if self._again and not self._pause.over:
            self._again = findings
        else:
            self._call(findings, source, sink)

    def look(self, source: Source, sink: Sink | None, *, last: bool = False) -> None:
        """Calls it again when the run was out of reach: a stop is not forgotten for that."""
        if self._again and (last or self._pause.over):
            self._call(self._again, source, sink)

    def _call(self, findings: list[Finding], source: Source, sink: Sink | None) -> None:
        problems, passing = called(self._action, findings, source, sink)
        self._problems += problems
        self._again = findings if passing else []
        self._pause.tried(passing)

    def untold(self) -> list[Finding]:
        """What is to be tried again."""
        return self._again

    def take_problems(self) -> list[str]:
        """See Outbox.take_problems."""
        problems, self._problems = self._problems, []
        return problems

    def join(self, seconds: float) -> tuple[bool, int]:
        """Whether it was too slow, and how many findings are left."""
        return False, len(self._again)


def _listed(actions: Iterable[Any]) -> list[Any]:
    if isinstance(actions, str) or not isinstance(actions, Iterable):
        raise ConfigError(f"actions must be a list of actions, got {type(actions).__name__}")
    return list(actions)


def checked(action: Any) -> Action:
    """An action: what is given, or what its text describes. Raises ConfigError for anything else."""
    if isinstance(action, str):
        from tdcore.actions.loading import load_action

        return load_action(action)
    if isinstance(action, type) or not callable(getattr(action, "act", None)):
        what = f"the class {action.__name__}" if isinstance(action, type) else type(action).__name__
        raise ConfigError(f"an action is an instance such as StopTraining(), or its text; got {what}")
    if not isinstance(getattr(action, "name", None), str):
        raise ConfigError(f"an action needs a name for messages; {type(action).__name__}.name is none")
    made: Action = action
    return made
