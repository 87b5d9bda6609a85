"""Base of actions: the protocol, the memory of reported findings, and a notice as text and JSON.

A *notice key* is a finding without its step: rule, attempt, worker, tensor and kind. An action reports each
key once, so that a fault that lasts for a thousand steps causes one message. Threads: one thread at a time
uses an action: the engine's thread, or the action's own thread (tdcore/actions/dispatcher.py).
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
_LEAST_SECRET = 6  # characters; shorter parts of a secret are not replaced, because they occur in any text
_LONGEST = timedelta(days=3650)


class Action(Protocol):
    """Protocol of actions, which handle findings.

    An action may have the class variable `background = True`. Such an action is called in its own thread,
    because it waits for other services, and gets no sink. An action may also have these methods:

    - take_notes(): returns messages for the report that are not failures, each once.
    - untold(): returns findings that the action keeps for its next call. That call follows after a pause,
      even without new findings.
    - prime(keys): is called with the notice keys that an earlier start has reported.
    - cancel(): called from another thread if the caller no longer waits for act().
    """

    name: str

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Handle new findings. Each finding is passed once, in order of steps. Exceptions are reported.

        Args:
            findings: The new findings.
            source: The run as a source of rows.
            sink: The run; None if the action may not write to it.
        """
        ...


def notice_key(finding: Finding) -> NoticeKey:
    """The notice key of a finding, which is its key without the step.

    The step is included if the rule reports each step (parameter `each` of the rule).
    """
    kind = str(finding.numbers.get("kind", ""))
    step = f" at {finding.step}" if finding.each else ""
    return (finding.rule, finding.attempt, finding.worker, finding.tensor, kind + step)


class Once:
    """The reported notice keys. again_after: time after which a key is reported again; None: never."""

    def __init__(
        self, again_after: timedelta | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._again = None if again_after is None else seconds_of("again_after", again_after)
        self._clock = clock
        self._told: dict[NoticeKey, float] = {}

    def due(self, findings: Iterable[Finding]) -> list[Finding]:
        """The first finding of each key that must be reported now."""
        now = self._clock()
        first: dict[NoticeKey, Finding] = {}
        for finding in findings:
            first.setdefault(notice_key(finding), finding)
        return [finding for key, finding in first.items() if self._is_due(key, now)]

    def told(self, findings: Iterable[Finding]) -> None:
        """Record that these findings were reported."""
        self.prime(notice_key(finding) for finding in findings)

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """Record that these keys were reported now."""
        self._told.update(dict.fromkeys(keys, self._clock()))

    def _is_due(self, key: NoticeKey, now: float) -> bool:
        told = self._told.get(key)
        return told is None or (self._again is not None and now - told >= self._again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Content of one message: the new findings of one poll of a run.

    Attributes:
        run: Place of the run, without the options of a bucket.
        findings: All reported findings.
        max_listed: Maximum number of findings in the text. The others are counted.
    """

    run: str
    findings: tuple[Finding, ...]
    max_listed: int = MAX_LISTED

    @property
    def subject(self) -> str:
        """One line with the rules that fired and the run."""
        rules = list(dict.fromkeys(finding.rule for finding in self.findings))
        more = f" and {len(rules) - 3} more rules" if len(rules) > 3 else ""
        return printable(f"{', '.join(rules[:3])}{more} fired in {self.run}")

    @property
    def text(self) -> str:
        """The subject, and a paragraph per finding. Equal advice is written once."""
        lines, said = [self.subject], set()
        for finding in self.findings[: self.max_listed]:
            lines.append(finding_line(finding, with_do=finding.do not in said))
            said.add(finding.do)
        left = len(self.findings) - self.max_listed
        if left > 0:
            lines.append(f"and {left} more findings; `tdcore rules run` shows all of them")
        return "\n\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON. "count" counts all findings, "findings" has the listed findings."""
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
    """Base of actions that send messages. Subclasses implement send().

    A message that failed is kept and sent with the next message, unless the subclass has `repeats = False`.

    Args:
        again_after: Time after which the same key is reported again; None: never.
        max_listed: Maximum number of findings in one message.
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
        """Handle new findings; see Action.act. Raises ActionError."""
        from tdcore.sinks import shown_place

        due = self._once.due([*self._untold, *findings])
        if not due:
            return
        self._untold = due if self.repeats else []
        notice = Notice(run=shown_place(source.where), findings=tuple(due), max_listed=self._max_listed)
        if not self.repeats:
            self._once.told(due)  # even if the message fails
        if self.send(notice):
            self._once.told(due)
            self._untold = []

    def untold(self) -> list[Finding]:
        """See Action: findings whose message failed or cannot be delivered yet."""
        return list(self._untold)

    def send(self, notice: Notice) -> bool:
        """Send one message. Return False if it cannot be delivered yet. Raises ActionError."""
        raise NotImplementedError

    def prime(self, keys: Iterable[NoticeKey]) -> None:
        """See Action."""
        self._once.prime(keys)

    def note(self, text: str) -> None:
        """Add a message for the report that is not a failure, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._notes.append(text)

    def take_notes(self) -> list[str]:
        """See Action."""
        notes, self._notes = self._notes, []
        return notes


def seconds_of(what: str, duration: object) -> float:
    """A duration in seconds. Raises ConfigError for an invalid or too long duration."""
    if not isinstance(duration, timedelta):
        raise ConfigError(f"{what} must be a datetime.timedelta, got {duration!r:.80}")
    if not timedelta() < duration <= _LONGEST:
        raise ConfigError(f"{what} must be longer than 0 s and at most {_LONGEST}, got {duration}")
    return duration.total_seconds()


def printable(text: str) -> str:
    """Text from a run in one line: line breaks and control characters are replaced by spaces."""
    return "".join(character if character.isprintable() else " " for character in text)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text with "***" for each secret of 6 characters or more, on one line and not too long."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, "***")
    return printable(text)[:500]
