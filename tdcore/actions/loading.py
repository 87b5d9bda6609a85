"""Actions from text, as the command line and configuration files write them.

    stop                                          an action by its name (any case, with or without "_")
    capture_more:steps=20,regex=^gradient/        with parameters; lists with "|" between their items
    webhook:url=env:SLACK_URL                     a parameter from an environment variable, so that a secret
                                                  stands neither in the list of processes nor in a file
    {"action": "email", "address": "a@b.org"}     the same as a mapping

A parameter's text goes on up to the next ",<parameter of this action>=", so a URL may hold commas.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from tdcore.actions.base import Action
from tdcore.errors import ConfigError

__all__ = ["ACTIONS", "action_from_config", "load_action"]

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def _text(value: str) -> str:
    return value


def _whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"expected a whole number, got {value!r}") from None


def _seconds(value: str) -> timedelta:
    try:
        return timedelta(seconds=float(value))
    except (ValueError, OverflowError):
        raise ConfigError(f"expected a number of seconds, got {value!r}") from None


def _flag(value: str) -> bool:
    if value.lower() not in (*_TRUE, *_FALSE):
        raise ConfigError(f"expected true or false, got {value!r}")
    return value.lower() in _TRUE


def _list(value: str) -> tuple[str, ...]:
    return tuple(part for part in value.split("|") if part)


Reader = Callable[[str], Any]
_NOTIFIER: dict[str, Reader] = {"again_after": _seconds, "max_listed": _whole}
_AWS: dict[str, Reader] = {"region": _text, **_NOTIFIER}

# name -> module, class, parameters and how their text is read
ACTIONS: dict[str, tuple[str, str, Mapping[str, Reader]]] = {
    "capture_more": (
        "capture_more",
        "CaptureMore",
        {
            "steps": _whole,
            "tensors": _list,
            "regex": lambda value: (value,),
            "level": _text,
            "modes": _list,
            "max_requests": _whole,
            "again_after": _seconds,
        },
    ),
    "cloudwatch_event": ("cloudwatch", "CloudWatchEvent", {"bus": _text, "source": _text, **_AWS}),
    "cloudwatch_metric": ("cloudwatch", "CloudWatchMetric", {"namespace": _text, **_AWS}),
    "command": ("command", "Command", {"argv": _text, "shell": _flag, "timeout": _seconds, **_NOTIFIER}),
    "email": ("sns", "Email", {"address": _text, "topic": _text, **_AWS}),
    "log": ("local", "LogFindings", {"again_after": _seconds}),
    "sms": ("sns", "SMS", {"number": _text, "topic": _text, **_AWS}),
    "stop": ("request_stop", "RequestStop", {}),
    "stop_sagemaker_job": (
        "sagemaker",
        "StopSageMakerJob",
        {"job_name": _text, "job_name_prefix": _text, "region": _text},
    ),
    "webhook": (
        "webhook",
        "Webhook",
        {"url": _text, "allow_http": _flag, "timeout": _seconds, **_NOTIFIER},
    ),
}
# Names of the older library. Its StopTraining with a prefix stopped a SageMaker job.
_OLDER_NAMES = {"stoptraining": "stop"}
_OLDER_PARAMETERS = {("email", "endpoint"): "address", ("sms", "endpoint"): "number"}


def load_action(spec: str) -> Action:
    """The action that the text describes. Raises ConfigError, with the names that exist and no value."""
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
    """The action that an entry of a configuration file describes: text as for load_action, or a mapping.

    The mapping has "action" (or "name", as the older library wrote it) and the parameters beside it.
    Durations are seconds; None is a parameter that is not given. Raises ConfigError.
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
    close = difflib.get_close_matches(plain, list(ACTIONS), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
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


def _read(reader: Reader, value: Any, what: str) -> Any:
    """A parameter's value from text, or from what a configuration file holds."""
    from_environment = isinstance(value, str) and value.startswith("env:")
    if isinstance(value, list):
        return tuple(_read(_text, item, what) for item in value)
    if isinstance(value, bool) and reader is not _flag:
        raise ConfigError(f"{what}: true and false are no values for it")
    text = _from_environment(value[4:], what) if from_environment else str(value)
    try:
        return reader(text)
    except ConfigError as error:
        if from_environment:
            raise ConfigError(f"{what}: the value of {value[4:]} does not fit") from None
        raise ConfigError(f"{what}: {error}") from None


def _from_environment(name: str, what: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ConfigError(f"{what}: the environment variable {name!r} is not set")
    return value


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
