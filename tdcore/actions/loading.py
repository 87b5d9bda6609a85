"""Actions from text, as on the command line and in configuration files.

    stop                                          an action by its name (any case, with or without "_")
    capture_more:steps=20,regex=^gradient/        with parameters; lists with "|" between their items
    webhook:url=env:SLACK_URL                     a parameter from an environment variable, so that a secret
                                                  is neither in the list of processes nor in a file
    {"action": "email", "address": "a@b.org"}     the same as a mapping

The text of a parameter ends before the next ",<parameter of this action>=", so a URL may contain commas.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from tdcore.actions.base import Action
from tdcore.config.schema import FLAG, SECONDS, TEXT, WHOLE, Kind
from tdcore.errors import ConfigError
from tdcore.text.did_you_mean import closest

__all__ = ["ACTIONS", "action_from_config", "load_action"]

_LIST = Kind("texts with | between them", lambda value: tuple(part for part in value.split("|") if part))
_NOTIFIER = {"again_after": SECONDS, "max_listed": WHOLE}
_AWS = {"region": TEXT, **_NOTIFIER}

# name -> module, class, and kinds of the parameters
ACTIONS: dict[str, tuple[str, str, Mapping[str, Kind]]] = {
    "capture_more": (
        "capture_more",
        "CaptureMore",
        {
            "steps": WHOLE,
            "tensors": _LIST,
            "regex": TEXT,
            "level": TEXT,
            "modes": _LIST,
            "max_requests": WHOLE,
            "again_after": SECONDS,
        },
    ),
    "cloudwatch_event": ("cloudwatch", "CloudWatchEvent", {"bus": TEXT, "source": TEXT, **_AWS}),
    "cloudwatch_metric": ("cloudwatch", "CloudWatchMetric", {"namespace": TEXT, **_AWS}),
    "command": ("command", "Command", {"argv": TEXT, "shell": FLAG, "timeout": SECONDS, **_NOTIFIER}),
    "email": ("sns", "Email", {"address": TEXT, "topic": TEXT, **_AWS}),
    "log": ("local", "LogFindings", {"again_after": SECONDS}),
    "sms": ("sns", "SMS", {"number": TEXT, "topic": TEXT, **_AWS}),
    "stop": ("request_stop", "RequestStop", {}),
    "stop_sagemaker_job": (
        "sagemaker",
        "StopSageMakerJob",
        {"job_name": TEXT, "job_name_prefix": TEXT, "region": TEXT},
    ),
    "webhook": (
        "webhook",
        "Webhook",
        {"url": TEXT, "allow_http": FLAG, "timeout": SECONDS, **_NOTIFIER},
    ),
}
# Names of smdebug's actions. In smdebug, StopTraining with a prefix stops a SageMaker job.
_OLDER_NAMES = {"stoptraining": "stop"}
_OLDER_PARAMETERS = {("email", "endpoint"): "address", ("sms", "endpoint"): "number"}


def load_action(spec: str) -> Action:
    """The action that the text describes. Raises ConfigError with the existing names, without values."""
    name, _, rest = spec.partition(":")
    name = _known(name)
    known = ACTIONS[name][2]
    found: dict[str, str] = {}
    parts = re.split(rf",(?=\s*(?:{'|'.join(known)})\s*=)", rest) if known else [rest]
    for part in parts if rest else []:
        parameter, mark, value = part.partition("=")
        parameter = parameter.strip()
        if not mark or not parameter.isidentifier():
            raise ConfigError(
                f"action {name}: a parameter is written name=value, with commas between them; "
                f"its parameters are {', '.join(known) or 'none'}"
            )
        if parameter in found:
            raise ConfigError(f"action {name} is given {parameter!r} twice")
        found[parameter] = value.strip()
    return _made(name, found)


def action_from_config(config: str | Mapping[str, Any]) -> Action:
    """The action that an entry of a configuration file describes.

    Args:
        config: Text as for load_action, or a mapping with "action" (or "name", as in smdebug) and the
            parameters. Durations are in seconds; None means a missing parameter.

    Raises:
        ConfigError: The action or a parameter is unknown or invalid.
    """
    if isinstance(config, str):
        return load_action(config)
    if not isinstance(config, Mapping):
        raise ConfigError(f"an action is a text or a mapping, got {type(config).__name__}")
    rest = dict(config)
    name = rest.pop("action", None) or rest.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"an action needs its name under 'action'; actions are {', '.join(ACTIONS)}")
    name = _known(name)
    if name == "stop" and "training_job_prefix" in rest:
        name, rest = "stop_sagemaker_job", {"job_name_prefix": rest["training_job_prefix"]}
    for (action, older), newer in _OLDER_PARAMETERS.items():
        if action == name and older in rest:
            rest[newer] = rest.pop(older)
    return _made(name, rest)


def _known(name: str) -> str:
    """The name in the table."""
    plain = _plain(name)
    if plain in _OLDER_NAMES:
        return _OLDER_NAMES[plain]
    for known, (_, class_name, _) in ACTIONS.items():
        if plain in (_plain(known), _plain(class_name)):
            return known
    close = closest(plain, ACTIONS)
    hint = f" (did you mean {close}?)" if close else ""
    raise ConfigError(f"there is no action {name!r}{hint}; actions are {', '.join(ACTIONS)}")


def _made(name: str, given: Mapping[str, Any]) -> Action:
    module, class_name, known = ACTIONS[name]
    values: dict[str, Any] = {}
    for parameter, value in given.items():
        if parameter not in known:
            raise ConfigError(
                f"action {name} has no parameter {parameter!r}; it has {', '.join(known) or 'none'}"
            )
        if value is not None:
            values[parameter] = _read(known[parameter], value, f"action {name}, {parameter}")
    made: Callable[..., Action] = getattr(importlib.import_module(f"tdcore.actions.{module}"), class_name)
    for parameter, about in inspect.signature(made).parameters.items():
        if parameter in known and about.default is about.empty and parameter not in values:
            raise ConfigError(f"action {name} lacks {parameter}=; its parameters are {', '.join(known)}")
    return made(**values)


def _read(kind: Kind, value: Any, what: str) -> Any:
    """The value of a parameter, from text or from a value of a configuration file."""
    if isinstance(value, list):
        return tuple(_read(TEXT, item, what) for item in value)
    if isinstance(value, bool) and kind is not FLAG:
        raise ConfigError(f"{what}: true and false are not allowed, got {value}")
    if not (isinstance(value, str) and value.startswith("env:")):
        return kind(str(value), what, "{where}: expected {expected}, got {got!r}")
    variable = value[len("env:") :]
    secret = os.environ.get(variable)
    if not secret:
        raise ConfigError(f"{what}: the environment variable {variable!r} is not set")
    return kind(secret, f"{what}: the value of {variable}", "{where} does not fit")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
