"""Actions: code that runs when rules report findings. Rules never act; the engine passes findings to actions.

Each action except Callback handles a notice key (a finding without its step) once. The report of the rules
lists an action that fails, and the rules continue. Only RequestStop and StopSageMakerJob stop a training.
docs/actions.md has an example of each action.
"""

from __future__ import annotations

import warnings
from typing import Any

from tdcore.actions.base import Action, Notice, Notifier, Once, notice_key
from tdcore.actions.capture_more import CaptureMore
from tdcore.actions.cloudwatch import CloudWatchEvent, CloudWatchMetric
from tdcore.actions.command import Command
from tdcore.actions.dispatcher import ActionDispatcher
from tdcore.actions.loading import action_from_config, load_action
from tdcore.actions.local import Callback, LogFindings
from tdcore.actions.request_stop import RequestStop
from tdcore.actions.retrying import Retrying
from tdcore.actions.sagemaker import StopSageMakerJob
from tdcore.actions.sns import SMS, Email
from tdcore.actions.webhook import Webhook

__all__ = [
    "SMS",
    "Action",
    "ActionDispatcher",
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
    "RequestStop",
    "Retrying",
    "StopSageMakerJob",
    "Webhook",
    "action_from_config",
    "load_action",
    "notice_key",
]


_RENAMED = {"Outbox": "ActionDispatcher", "StopTraining": "RequestStop"}


def __getattr__(name: str) -> Any:
    """Names of earlier versions, with a DeprecationWarning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warnings.warn(
        f"tdcore.actions.{name} is now tdcore.actions.{new}; the old name will be removed",
        DeprecationWarning,
        stacklevel=2,
    )
    return globals()[new]


class ActionList(list[Any]):
    """Several actions as one value, as in smdebug: ActionList(RequestStop(), Email("a@b.org")).

    Raises TypeError for anything that is not an action.
    """

    def __init__(self, *actions: Action) -> None:
        for action in actions:
            if isinstance(action, type) or not callable(getattr(action, "act", None)):
                raise TypeError(f"an ActionList must contain only actions, got {action!r}")
        super().__init__(actions)
