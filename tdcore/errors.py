"""Every error that tdcore raises, as one tree.

    TdcoreError
    ├── ConfigError (also ValueError)            an invalid configuration, argument or pattern
    │   ├── InvalidCollectionConfiguration       a collection that selects nothing or contradicts itself
    │   └── UnsupportedFeature                   a documented argument that this version does not support
    ├── CaptureError                             the capture could not start or was disabled
    │   └── FlusherError                         the flusher could not start or restart
    ├── RunError                                 a run cannot be read as requested
    │   ├── RunNotFound (also FileNotFoundError) there is no run at this place
    │   ├── RunCorrupt                           the bytes of the run do not match the format or their
        checksum
    │   │   ├── UnsupportedFormat                the run was written in another version of the format
    │   │   └── UnsafeFile (also SinkError)      a file of the run is a link, a FIFO or a device, or too large
    │   ├── MissingCollectionFiles               nothing was saved: no data, no collections
    │   ├── InvalidWorker                        no such worker in this run
    │   ├── InvalidAttempt                       no such attempt in this run
    │   ├── InvalidCollection                    no such collection in this run
    │   ├── ProfileUnavailable                   this part of a profile was not recorded
    │   ├── NoMoreData                           the run has ended before the awaited step or tensor
    │   ├── StepUnavailable                      nothing was or will be saved at this step
    │   ├── StepNotYetAvailable                  the step is not in the run yet
    │   ├── TensorUnavailable                    this tensor was not saved at any step
    │   ├── TensorUnavailableForStep             this tensor has and will have no value at this step
    │   └── WaitTimeout (also TimeoutError)      a wait has timed out; the data may still come
    ├── SinkError                                a folder or bucket failed; .kind is the reason
    │   └── SinkKeyError (also FileNotFoundError)  no object under this key
    ├── ActionError                              an action on findings failed
    ├── ExportError                              another tool has failed to store an export of a run
    ├── RuleError                                errors of rules
    │   ├── RuleEvaluationConditionMet           a rule's condition is met; rule evaluation ends
    │   └── InsufficientInformationForRuleInvocation  a rule lacks a parameter or data it needs
    └── StopTraining                             raised in the training script after a stop request

Messages name the fault, its place, the value and the remedy. Errors of each other library are converted in
one place, with ``raise ... from``. Any thread may use an exception.
"""
# ruff: noqa: N818 -- names without an Error suffix are those of smdebug, so that its scripts work.

from __future__ import annotations

from typing import Literal

from tdcore.modes import ModeKeys
from tdcore.text.step_text import step_text

__all__ = [
    "ActionError",
    "CaptureError",
    "ConfigError",
    "ExportError",
    "FlusherError",
    "InsufficientInformationForRuleInvocation",
    "InvalidAttempt",
    "InvalidCollection",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "ProfileUnavailable",
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
    """A configuration, an argument or a pattern is invalid. The message lists the valid values."""


class InvalidCollectionConfiguration(ConfigError):
    """A collection contradicts itself or can never select a tensor."""


class UnsupportedFeature(ConfigError, NotImplementedError):
    """A documented argument is not supported by this version, and is never ignored."""


class CaptureError(TdcoreError):
    """The capture could not start, or was disabled after an internal failure."""


class FlusherError(CaptureError):
    """The flusher could not be started, or died and could not be restarted."""


class RunError(TdcoreError):
    """Base of the errors that readers of a run raise."""


class RunNotFound(RunError, FileNotFoundError):
    """There is no run at the given place."""


class RunCorrupt(RunError):
    """The bytes of a run do not match the format or their checksum. The message has file and reason."""


class UnsupportedFormat(RunCorrupt):
    """The run was written in a version of the format that this version of tdcore does not read."""


class MissingCollectionFiles(RunError):
    """No data was saved in this run, which has neither tensors nor collections."""


class InvalidWorker(RunError, KeyError):
    """The run has no such worker. The message lists its workers.

    worker: the requested name; None if the error was raised without it.
    """

    worker: str | None = None

    __str__ = Exception.__str__  # KeyError would show repr() of the message


class InvalidAttempt(RunError, KeyError):
    """The run has no such attempt. The message lists its attempts."""

    __str__ = Exception.__str__


class InvalidCollection(RunError, KeyError):
    """The run has no such collection. The message lists its collections."""

    __str__ = Exception.__str__


class NoMoreData(RunError):
    """The run has ended before the awaited step or tensor.

    Attributes:
        step, mode: The awaited step and its mode; the step is counted within the mode.
        last_step: The last step of the mode in the run; None if there is none.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL
    last_step: int | None = None


class StepUnavailable(RunError):
    """No tensor was or will be saved at this step.

    step, mode: the requested step and its mode; the step is counted within the mode.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL


class StepNotYetAvailable(RunError):
    """The step is not in the run yet, and may still be written while the run continues.

    step, mode: the requested step and its mode; the step is counted within the mode.
    """

    step: int | None = None
    mode: ModeKeys = ModeKeys.GLOBAL


class ProfileUnavailable(RunError):
    """The profile does not have this part; the message has the reason."""


class TensorUnavailable(RunError):
    """No tensor of this name was saved at any step so far.

    tname: the requested name.
    """

    tname: str | None = None


class TensorUnavailableForStep(RunError):
    """The tensor has no value at this step and will have none.

    Attributes:
        reason: "not_saved", "absent", "skipped", "lost", "stats_only" or "incomplete"; for a tensor of
            several workers also "copies_differ", "disagree" (not parts of one tensor) or "partial". The
            message has details.
        has_statistics: Whether reduction_value() and stats() have values for this step.
        tname: The requested tensor.
        step, mode: The requested step and its mode; the step is counted within the mode.
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
        """The same as has_statistics, under smdebug's name."""
        return self.has_statistics


class WaitTimeout(RunError, TimeoutError):
    """A wait has timed out. The data may still be written."""


SinkErrorKind = Literal["full", "gone", "denied", "transient"]


class SinkError(TdcoreError, OSError):
    """An operation of a sink failed.

    Attributes:
        kind: "full" (no space or quota), "gone" (the place was removed), "denied" (permission, credentials,
            read-only) or "transient" (a retry may succeed).
        errno: The errno of the OSError that is the cause.
    """

    def __init__(self, message: str, *, kind: SinkErrorKind = "transient", errno: int | None = None) -> None:
        super().__init__(message)
        self.kind: SinkErrorKind = kind
        self.errno = errno

    def __str__(self) -> str:
        return str(self.args[0])


class SinkKeyError(SinkError, FileNotFoundError):
    """The sink works, but has no object under this key."""

    def __init__(self, message: str, *, kind: SinkErrorKind = "gone", errno: int | None = None) -> None:
        super().__init__(message, kind=kind, errno=errno)


class UnsafeFile(RunCorrupt, SinkError):
    """A file of a run is not read or written: it is a link, a FIFO or a device, or larger than the limit.

    kind: "denied".
    """

    def __init__(self, message: str, *, kind: SinkErrorKind = "denied", errno: int | None = None) -> None:
        super().__init__(message, kind=kind, errno=errno)


class ActionError(TdcoreError):
    """An action on findings (a message, a call of a service, a command) failed. Contains no secret."""


class ExportError(TdcoreError):
    """Another tool has failed to store an export of a run."""


class RuleError(TdcoreError):
    """Base of the errors of rules."""


class RuleEvaluationConditionMet(RuleError):
    """A rule's condition is met, and the evaluation of that rule ends.

    Attributes:
        rule_name: The rule.
        step: Global step at which the condition was met.
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
    """A parameter or data that a rule needs is missing.

    Attributes:
        rule_name: The rule.
        message: The missing parameter or data.
    """

    def __init__(self, rule_name: str, message: str = "") -> None:
        super().__init__(*([rule_name, message] if message else [rule_name]))
        self.rule_name = rule_name
        self.message = message

    def __str__(self) -> str:
        return f"{self.rule_name}: {self.message}" if self.message else self.rule_name


class StopTraining(TdcoreError):
    """A stop of the training was requested (by a rule's action, the CLI, or a file in control/).

    The hook raises it in the training script, at the start of the next step.

    Attributes:
        reason: The reason in the request.
        step: Global step at which the exception was raised.
        mode, mode_step: The mode of that step, and its number within the mode.
        requested_by: The rule or tool that sent the request.
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
