"""Every error that tdcore raises, as one tree.

    TdcoreError
    ├── ConfigError (also ValueError)            a configuration, argument or pattern that cannot work
    │   ├── InvalidCollectionConfiguration       a collection that selects nothing or contradicts itself
    │   └── UnsupportedFeature                   a documented argument that this version does not serve yet
    ├── CaptureError                             the capture side could not start or was switched off
    │   └── FlusherError                         the flusher could not start, or died and stayed dead
    ├── RunError                                 reading a run
    │   ├── RunNotFound (also FileNotFoundError) there is no run at this place
    │   ├── RunCorrupt                           its bytes contradict the format or their checksum
    │   │   ├── UnsupportedFormat                it was written in another version of the format
    │   │   └── UnsafeFile (also SinkError)      a file of it is a link, a FIFO, a device, or too large
    │   ├── MissingCollectionFiles               nothing was ever saved: no data, no collections
    │   ├── InvalidWorker                        no such worker in this run
    │   ├── InvalidAttempt                       no such attempt in this run
    │   ├── InvalidCollection                    no such collection in this run
    │   ├── NoMoreData                           the run has ended; what was waited for will never come
    │   ├── StepUnavailable                      nothing was saved at this step, and nothing will be
    │   ├── StepNotYetAvailable                  the step has not been seen yet; it may still come
    │   ├── TensorUnavailable                    this tensor was never saved at any step
    │   ├── TensorUnavailableForStep             this tensor has no value at this step, and will have none
    │   └── WaitTimeout (also TimeoutError)      what was waited for did not come in time; it may still come
    ├── SinkError                                a place to keep runs refused: .kind says how
    │   └── SinkKeyError (also FileNotFoundError)  no object under this key
    ├── ActionError                              an action on findings could not do what it is for
    ├── RuleError                                rules
    │   ├── RuleEvaluationConditionMet           a rule's condition is met; rule evaluation ends
    │   └── InsufficientInformationForRuleInvocation  a rule lacks a parameter or data it needs
    └── StopTraining                             raised in the training script when a stop was asked for

Messages say what, where, got, and what to do. Foreign errors become these at one seam each, with
``raise ... from``. Threads: exceptions are plain values; nothing here holds state or locks.
"""
# ruff: noqa: N818 -- names without an Error suffix are those of the older library, kept so that scripts move over.

from __future__ import annotations

from typing import Literal

from tdcore.modes import ModeKeys
from tdcore.text.step_text import step_text

__all__ = [
    "ActionError",
    "CaptureError",
    "ConfigError",
    "FlusherError",
    "InsufficientInformationForRuleInvocation",
    "InvalidAttempt",
    "InvalidCollection",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "RuleError",
    "RuleEvaluationConditionMet",
    "RunCorrupt",
    "RunError",
    "RunNotFound",
    "SinkError",
    "SinkErrorKind",
    "SinkKeyError",
    "StepNotYetAvailable",
    "StepUnavailable",
    "StopTraining",
    "TdcoreError",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "UnsafeFile",
    "UnsupportedFeature",
    "UnsupportedFormat",
    "WaitTimeout",
]


class TdcoreError(Exception):
    """Base of every error that tdcore raises."""


class ConfigError(TdcoreError, ValueError):
    """A configuration, an argument or a pattern cannot work; the message says what to write instead."""


class InvalidCollectionConfiguration(ConfigError):
    """A collection contradicts itself or can never select a tensor."""


class UnsupportedFeature(ConfigError, NotImplementedError):
    """A documented argument that this version does not serve. It is refused, never ignored."""


class CaptureError(TdcoreError):
    """The capture side could not start, or was switched off after a fault of its own."""


class FlusherError(CaptureError):
    """The flusher could not be started, or died and could not be restarted."""


class RunError(TdcoreError):
    """Base of what can go wrong while a run is read."""


class RunNotFound(RunError, FileNotFoundError):
    """There is no run at the given place."""


class RunCorrupt(RunError):
    """The bytes of a run contradict the format, each other, or their checksum. Names the file and why."""


class UnsupportedFormat(RunCorrupt):
    """The run was written in a version of the format that this version of tdcore does not read."""


class MissingCollectionFiles(RunError):
    """Nothing was ever saved in this run: it has neither tensors nor collections."""


class InvalidWorker(RunError, KeyError):
    """The run has no such worker. The message lists those it has.

    worker: the name that was asked for; None where the error was raised without it.
    """

    worker: str | None = None

    __str__ = Exception.__str__  # KeyError would show repr() of the message


class InvalidAttempt(RunError, KeyError):
    """The run has no such attempt. The message lists those it has."""

    __str__ = Exception.__str__


class InvalidCollection(RunError, KeyError):
    """The run has no such collection. The message lists those it has."""

    __str__ = Exception.__str__


class NoMoreData(RunError):
    """The run has ended: the step or tensor that was waited for will never come.

    step, mode: what was waited for; the step is one of the mode. last_step: the last step of the mode that
    the run has; None when it has none.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL
    last_step: int | None = None


class StepUnavailable(RunError):
    """Nothing was saved at this step, and nothing will be.

    step, mode: what was asked for; the step is one of the mode.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL


class StepNotYetAvailable(RunError):
    """The step has not been seen yet; it may still come while the run goes on.

    step, mode: what was asked for; the step is one of the mode.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL


class TensorUnavailable(RunError):
    """No tensor of this name was saved at any step seen so far.

    tname: the name that was asked for.
    """

    tname: str | None = None


class TensorUnavailableForStep(RunError):
    """The tensor has no value at this step and will have none.

    reason: "not_saved", "absent", "skipped", "lost", "stats_only" or "incomplete"; of what several
    workers have also "copies_differ", "disagree" (no parts of one tensor) or "partial"; more in the message.
    has_statistics: whether reduction_value() and stats() can still serve this step. tname, step, mode: what
    was asked for; the step is one of the mode.
    """

    tname: str | None = None
    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL

    def __init__(self, message: str, *, reason: str = "not_saved", has_statistics: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.has_statistics = has_statistics

    @property
    def has_reductions(self) -> bool:
        """The older library's name of has_statistics."""
        return self.has_statistics


class WaitTimeout(RunError, TimeoutError):
    """What was waited for did not come in time. It may still come."""


SinkErrorKind = Literal["full", "gone", "denied", "transient"]


class SinkError(TdcoreError, OSError):
    """A sink refused an operation.

    kind: "full" (no space or quota), "gone" (the place was removed), "denied" (permission, credentials,
    read-only) or "transient" (anything that may work when tried again). errno: that of the OSError behind it.
    """

    def __init__(self, message: str, *, kind: SinkErrorKind = "transient", errno: int | None = None) -> None:
        super().__init__(message)
        self.kind: SinkErrorKind = kind
        self.errno = errno

    def __str__(self) -> str:
        return str(self.args[0])


class SinkKeyError(SinkError, FileNotFoundError):
    """The sink works, but holds nothing under this key."""

    def __init__(self, message: str, *, kind: SinkErrorKind = "gone", errno: int | None = None) -> None:
        super().__init__(message, kind=kind, errno=errno)


class UnsafeFile(RunCorrupt, SinkError):
    """A file of a run is not read or written: it is a link, a FIFO or a device, or larger than it can be.

    kind: "denied".
    """

    def __init__(self, message: str, *, kind: SinkErrorKind = "denied", errno: int | None = None) -> None:
        super().__init__(message, kind=kind, errno=errno)


class ActionError(TdcoreError):
    """An action on findings (a message, a call of a service, a command) failed. Never shows a secret."""


class RuleError(TdcoreError):
    """Base of what rules raise."""


class RuleEvaluationConditionMet(RuleError):
    """A rule's condition is met, and the evaluation of that rule ends.

    rule_name: the rule. step: global step at which it was met.
    """

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False) -> None:
        super().__init__(rule_name, step, end_of_rule)
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule

    def __str__(self) -> str:
        where = f"the rule {self.rule_name} at step {self.step}"
        return f"Evaluation of {where} resulted in the condition being met"


class InsufficientInformationForRuleInvocation(RuleError):
    """A rule lacks a parameter or the data it needs to be invoked.

    rule_name: the rule. message: what it lacks.
    """

    def __init__(self, rule_name: str, message: str = "") -> None:
        super().__init__(*([rule_name, message] if message else [rule_name]))
        self.rule_name = rule_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.rule_name}: {self.message}" if self.message else self.rule_name


class StopTraining(TdcoreError):
    """A stop of the training was asked for (by a rule's action, the CLI, or a file in control/).

    Raised in the training script by the hook, at the start of the next step. reason: what the request says.
    step: the global step at which it was raised; mode, mode_step: the same as its mode counts. requested_by:
    the rule or tool that asked.
    """

    def __init__(
        self,
        reason: str,
        *,
        step: int | None = None,
        mode: str = "",
        mode_step: int | None = None,
        requested_by: str = "",
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.step = step
        self.mode = mode
        self.mode_step = mode_step
        self.requested_by = requested_by

    def __str__(self) -> str:
        who = f" by {self.requested_by}" if self.requested_by else ""
        where = f" at {step_text(self.step, self.mode, self.mode_step)}" if self.step is not None else ""
        return f"training stop requested{who}{where}: {self.reason}"
