"""Actions: what is done about findings. Rules never act; the engine hands their findings to actions.

Each but Callback tells about a notice key (a finding without its step) once. One that fails is reported in
the rules' report and does not end the watch; but for StopTraining and StopSageMakerJob none stops a training.
docs/actions.md shows each.
"""

from __future__ import annotations

from typing import Any

from tdcore.actions.base import Action, Notice, Notifier, Once, notice_key
from tdcore.actions.capture_more import CaptureMore
from tdcore.actions.cloudwatch import CloudWatchEvent, CloudWatchMetric
from tdcore.actions.command import Command
from tdcore.actions.loading import action_from_config, load_action
from tdcore.actions.local import Callback, LogFindings
from tdcore.actions.outbox import Outbox
from tdcore.actions.retrying import Retrying
from tdcore.actions.sagemaker import StopSageMakerJob
from tdcore.actions.sns import SMS, Email
from tdcore.actions.stop import StopTraining
from tdcore.actions.webhook import Webhook

__all__ = [
    "SMS",
    "Action",
    "ActionList",
    "Callback",
    "CaptureMore",
    "CloudWatchEvent",
    "CloudWatchMetric",
    "Command",
    "Email",
    "LogFindings",
    "Notice",
    "Notifier",
    "Once",
    "Outbox",
    "Retrying",
    "StopSageMakerJob",
    "StopTraining",
    "Webhook",
    "action_from_config",
    "load_action",
    "notice_key",
]


class ActionList(list[Any]):
    """Several actions as one value, as in the older library: ActionList(StopTraining(), Email("a@b.org")).

    Raises TypeError for anything that is not an action.
    """

    def __init__(self, *actions: Action) -> None:
        for action in actions:
            if isinstance(action, type) or not callable(getattr(action, "act", None)):
                raise TypeError(f"an ActionList holds actions, got {action!r}")
        super().__init__(actions)
