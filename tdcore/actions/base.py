"""What actions are made of: the protocol, the memory of who was told what, and a notice as text and JSON.

A *notice key* is a finding without its step: rule, attempt, worker, tensor and kind. An action tells about
each once, so that a fault that lasts for a thousand steps is one message. Threads: an action is used by one
thread at a time: the engine's, or its own (tdcore/actions/dispatcher.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = [
    "Action",
    "Notice",
    "NoticeKey",
    "Notifier",
    "Once",
    "notice_key",
    "printable",
    "redacted",
    "seconds_of",
]

NoticeKey: TypeAlias = "tuple[str, int, str, str, str]"

MAX_LISTED = 10
_LEAST_SECRET = 6  # characters: shorter parts of a secret are no secrets, and stand in any text
_LONGEST = timedelta(days=3650)


class Action(Protocol):
    """Something to do about findings.

    Class variables that an action may have besides: `background = True`, to be called in a thread of its own,
    because it waits for others; it then gets no sink. Methods that it may have: take_notes(), what is to be
    said beside failures, each once; untold(), findings that it has kept for its next call, which then comes
    after a pause though nothing is new; prime(keys), notice keys that an earlier start has told about;
    cancel(), called from another thread when nobody waits for act() any more.
    """

    name: str

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Called with new findings, each one once, in order of steps. Whatever it raises is reported.

        sink: where the run is kept; None when it may not be written.
        """
        ...


def notice_key(finding: Finding) -> NoticeKey:
    """What makes two findings one notice: all of their key but the step.

    Of a rule that reports each step (its parameter `each`), the step belongs to it.
    """
    kind = str(finding.numbers.get("kind", ""))
    step = f" at {finding.step}" if finding.each else ""
    return (finding.rule, finding.attempt, finding.worker, finding.tensor, kind + step)


class Once:
    """Which notice keys were told. again_after: a key may be told again after so long; None: never."""

    def __init__(
        self, again_after: timedelta | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._again = None if again_after is None else seconds_of("again_after", again_after)
        self._clock = clock
        self._told: dict[NoticeKey, float] = {}

    def due(self, findings: Iterable[Finding]) -> list[Finding]:
        """The first finding of each key that is to be told now."""
        now = self._clock()
        first: dict[NoticeKey, Finding] = {}
        for finding in findings:
            first.setdefault(notice_key(finding), finding)
        return [finding for key, finding in first.items() if self._is_due(key, now)]

    def told(self, findings: Iterable[Finding]) -> None:
        """These were told."""
        self.prime(notice_key(finding) for finding in findings)

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """These keys were told, as of now."""
        self._told.update(dict.fromkeys(keys, self._clock()))

    def _is_due(self, key: NoticeKey, now: float) -> bool:
        told = self._told.get(key)
        return told is None or (self._again is not None and now - told >= self._again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What one message says: new findings of one look at a run.

    run: its place, without the options of a bucket. findings: all that are told. max_listed: how many are
    listed one by one; the others are counted.
    """

    run: str
    findings: tuple[Finding, ...]
    max_listed: int = MAX_LISTED

    @property
    def subject(self) -> str:
        """One line: which rules fired, and where."""
        rules = list(dict.fromkeys(finding.rule for finding in self.findings))
        more = f" and {len(rules) - 3} more rules" if len(rules) > 3 else ""
        return printable(f"{', '.join(rules[:3])}{more} fired in {self.run}")

    @property
    def text(self) -> str:
        """The subject, and a paragraph per finding; what to do, where it differs from what was said."""
        lines, said = [self.subject], set()
        for finding in self.findings[: self.max_listed]:
            lines.append(finding_line(finding, with_do=finding.do not in said))
            said.add(finding.do)
        left = len(self.findings) - self.max_listed
        if left > 0:
            lines.append(f"and {left} more findings; `tdcore rules run` shows all of them")
        return "\n\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON. count: of all findings; findings: those listed."""
        return {
            "run": printable(self.run),
            "count": len(self.findings),
            "findings": [finding.to_json() for finding in self.findings[: self.max_listed]],
        }


def finding_line(finding: Finding, *, with_do: bool = True) -> str:
    """A finding as one line of text."""
    do = f" {finding.do}" if with_do else ""
    where = f"{finding.tensor}: " if finding.tensor else ""
    again = f" ({finding.again})" if finding.again else ""
    return printable(
        f"{finding.rule} ({finding.code}) at {finding.at} of attempt {finding.attempt}, "
        f"{finding.worker}: {where}{finding.why}{again}.{do}"
    )


class Notifier:
    """Base of the actions that tell somebody: subclasses say how to send() a Notice.

    again_after: tell about the same key again after so long; None: once. max_listed: findings of one message.
    A message that failed is kept and goes with the next one, unless the subclass says `repeats = False`.
    """

    name: str
    background: ClassVar[bool] = True
    repeats: ClassVar[bool] = True

    def __init__(
        self,
        *,
        again_after: timedelta | None = None,
        max_listed: int = MAX_LISTED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(max_listed, bool) or not isinstance(max_listed, int) or max_listed < 1:
            raise ConfigError(f"{type(self).__name__}.max_listed must be at least 1, got {max_listed!r}")
        self._max_listed = max_listed
        self._once = Once(again_after, clock=clock)
        self._untold: list[Finding] = []
        self._notes: list[str] = []
        self._noted: set[str] = set()

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action.act. Raises ActionError."""
        from tdcore.sinks import shown_place

        due = self._once.due([*self._untold, *findings])
        if not due:
            return
        self._untold = due if self.repeats else []
        notice = Notice(run=shown_place(source.where), findings=tuple(due), max_listed=self._max_listed)
        if not self.repeats:
            self._once.told(due)  # also when it fails
        if self.send(notice):
            self._once.told(due)
            self._untold = []

    def untold(self) -> list[Finding]:
        """See Action: what has failed or cannot be delivered yet."""
        return list(self._untold)

    def send(self, notice: Notice) -> bool:
        """Sends one message. False: it cannot be delivered yet, which is no failure. Raises ActionError."""
        raise NotImplementedError

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """See Action."""
        self._once.prime(keys)

    def note(self, text: str) -> None:
        """Has something said beside failures, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(text)

    def take_notes(self) -> list[str]:
        """See Action."""
        notes, self._notes = self._notes, []
        return notes


def seconds_of(what: str, duration: object) -> float:
    """A duration in seconds. Raises ConfigError for what is not one that a program can wait."""
    if not isinstance(duration, timedelta):
        raise ConfigError(f"{what} must be a datetime.timedelta, got {duration!r:.80}")
    if not timedelta() < duration <= _LONGEST:
        raise ConfigError(f"{what} must be longer than nothing and at most {_LONGEST}, got {duration}")
    return duration.total_seconds()


def printable(text: str) -> str:
    """Text from a run in one line: what could end the line or drive a terminal becomes a space."""
    return "".join(character if character.isprintable() else " " for character in text)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" for each of the secrets (of 6 characters or more), on one line and not too long."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, "***")
    return printable(text)[:500]
