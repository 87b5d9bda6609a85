"""Actions: what is done about findings. Rules never act; the engine hands their findings to actions.

`Action` is the seam for more of them (messages, webhooks, capturing more); here are those that need nothing
but the run itself. An action that raises is reported in the rules' report and does not end the watch.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tdcore.errors import SinkError
from tdcore.layout import FORMAT_VERSION, stop_key

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["Action", "Callback", "LogFindings", "StopTraining"]


class Action(Protocol):
    """Something to do about findings."""

    name: str

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Called with new findings, each one once, in order of steps, from the engine's thread.

        sink: where the run is kept; None when it may not be written.
        """
        ...


class StopTraining:
    """Asks the training to stop: writes control/stop-<attempt>.json, once per attempt.

    The flusher of the running job sees it and the hook raises tdcore.StopTraining at the next step, or calls
    the user's callback. Attempts that have ended are left alone. A request that is already there stays as it
    is.
    """

    name = "stop"

    def __init__(self, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._asked: set[int] = set()

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action.act.

        Raises SinkError when the request cannot be written; it is tried again with the next finding.
        """
        for finding in findings:
            attempt = finding.attempt
            if attempt in self._asked:
                continue
            if source.attempt_ended(attempt):
                self._asked.add(attempt)
                continue
            if sink is None:
                raise SinkError(
                    "the run cannot be written from here, so its training cannot be asked to stop"
                )
            sink.put_new(stop_key(attempt), [json.dumps(self.request(finding), indent=1).encode()])
            self._asked.add(attempt)

    def request(self, finding: Finding) -> dict[str, object]:
        """The document:

        reason for people, the rest for programs. rule: name of the rule. step: global step judged.
        """
        where = f"{finding.tensor}: " if finding.tensor else ""
        return {
            "format": FORMAT_VERSION,
            "attempt": finding.attempt,
            "reason": f"{where}{finding.why}",
            "rule": finding.rule,
            "code": finding.code,
            "step": finding.step,
            "tensor": finding.tensor,
            "by": f"rule {finding.rule}",
            "requested_ns": self._clock(),
        }


class LogFindings:
    """Writes each finding to a logger, as a warning. logger: default `tdcore.rules`."""

    name = "log"

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger("tdcore.rules")

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action.act."""
        for finding in findings:
            self._logger.warning(
                "%s at step %d, %s: %s; %s",
                finding.rule,
                finding.step,
                finding.tensor or "run",
                finding.why,
                finding.do,
            )


class Callback:
    """Calls a function with the new findings. name: for messages about its failures."""

    def __init__(self, function: Callable[[Sequence[Finding]], None], *, name: str = "callback") -> None:
        self.name = name
        self._function = function

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action.act."""
        self._function(findings)
