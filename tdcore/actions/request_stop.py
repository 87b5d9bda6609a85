"""RequestStop: request a stop of the training of the run, through the run's control folder."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError, SinkError
from tdcore.format.layout import FORMAT_VERSION, stop_key

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["RequestStop"]


class RequestStop:
    """Request a stop of the training: write control/stop-<attempt>.json, once per attempt.

    The flusher of the running job reads the file. The hook raises tdcore.StopTraining at the next step, or
    calls the user's callback. No file is written for attempts that have ended, and an existing request is not
    replaced. training_job_prefix, a parameter of smdebug, raises ConfigError: use StopSageMakerJob
    to stop a job of SageMaker.
    """

    name = "stop"

    def __init__(
        self, training_job_prefix: str | None = None, *, clock: Callable[[], int] = time.time_ns
    ) -> None:
        if training_job_prefix is not None:
            raise ConfigError(
                "RequestStop() stops the training of the run itself; to stop a SageMaker job write "
                f"StopSageMakerJob(job_name_prefix={training_job_prefix!r})"
            )
        self._clock = clock
        self._handled: set[int] = set()

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """See Action.

        Raises SinkError if the request cannot be written. The next finding repeats the request.
        """
        for finding in findings:
            attempt = finding.attempt
            if attempt in self._handled:
                continue
            if source.attempt_ended(attempt):
                self._handled.add(attempt)
                continue
            if sink is None:
                raise SinkError(
                    "this process cannot write to the run, so it cannot request the stop of its training"
                )
            sink.put_new(stop_key(attempt), [json.dumps(self.request(finding), indent=1).encode()])
            self._handled.add(attempt)

    def request(self, finding: Finding) -> dict[str, object]:
        """The request as a document: `reason` is text for people, the other fields are for programs."""
        where = f"{finding.tensor}: " if finding.tensor else ""
        return {
            "format": FORMAT_VERSION,
            "attempt": finding.attempt,
            "reason": f"{where}{finding.why}",
            "rule": finding.rule,
            "code": finding.code,
            "step": finding.step,
            "mode": finding.mode,
            "mode_step": finding.mode_step,
            "tensor": finding.tensor,
            "by": f"rule {finding.rule}",
            "requested_ns": self._clock(),
        }
