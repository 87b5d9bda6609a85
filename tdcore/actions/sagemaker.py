"""StopSageMakerJob: stop a training job of Amazon SageMaker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from tdcore.actions.aws import Aws
from tdcore.errors import ActionError, ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.source import Source
    from tdcore.sinks import Sink

__all__ = ["StopSageMakerJob"]

_NAME = re.compile(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}", re.ASCII)
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
_SHOWN_JOBS = 5
_MAX_NAME = 63


class StopSageMakerJob:
    """Stop one SageMaker training job, once. The permission sagemaker:StopTrainingJob is needed.

    Findings of attempts that have ended stop no job.

    Args:
        job_name: The full name of the job.
        job_name_prefix: Instead of the name: a case-sensitive prefix. Exactly one job in progress must have
            this prefix when the action runs. The permission sagemaker:ListTrainingJobs is needed too.
        region: AWS region; None: the standard chain.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "stop_sagemaker_job"
    background: ClassVar[bool] = True

    def __init__(
        self, job_name: str | None = None, *, job_name_prefix: str | None = None, region: str | None = None
    ) -> None:
        if (job_name is None) == (job_name_prefix is None):
            raise ConfigError("StopSageMakerJob needs either job_name or job_name_prefix")
        for parameter, value, pattern in (
            ("job_name", job_name, _NAME),
            ("job_name_prefix", job_name_prefix, _PREFIX),
        ):
            fits = isinstance(value, str) and len(value) <= _MAX_NAME and pattern.fullmatch(value) is not None
            if value is not None and not fits:
                raise ConfigError(
                    f"StopSageMakerJob.{parameter} must be 1 to 63 letters, digits and hyphens, got {value!r}"
                )
        self._name = job_name
        self._prefix = job_name_prefix
        self._aws = Aws("StopSageMakerJob", region)
        self._stopped = False
        self._untold: list[Finding] = []

    def __repr__(self) -> str:
        what = f"job_name_prefix={self._prefix!r}" if self._name is None else f"{self._name!r}"
        return f"StopSageMakerJob({what}, region={self._aws.region!r})"

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        """Handle new findings; see Action.act. Raises ActionError."""
        running = [each for each in [*self._untold, *findings] if not source.attempt_ended(each.attempt)]
        self._untold = [] if self._stopped else running[:1]  # one finding is enough
        if not self._untold:
            return
        client = self._aws.client("sagemaker")
        with self._aws.errors("SageMaker refused"):
            client.stop_training_job(TrainingJobName=self._name or self._found())
        self._stopped, self._untold = True, []

    def untold(self) -> list[Finding]:
        """See Action: a request that failed is repeated."""
        return list(self._untold)

    def _found(self) -> str:
        """The only job in progress whose name begins with the prefix."""
        prefix = self._prefix or ""
        pages = self._aws.client("sagemaker").get_paginator("list_training_jobs")
        names = [
            job["TrainingJobName"]
            for page in pages.paginate(StatusEquals="InProgress", NameContains=prefix)
            for job in page["TrainingJobSummaries"]
            if job["TrainingJobName"].startswith(prefix) and job["TrainingJobStatus"] == "InProgress"
        ]
        if len(names) != 1:
            listed = f": {', '.join(sorted(names)[:_SHOWN_JOBS])}" if names else ""
            raise ActionError(
                f"{len(names)} jobs in progress in {self._aws.region} begin with {prefix!r}, expected "
                f"exactly one{listed}"
            )
        return str(names[0])
