"""A file that says by which rules, and how, a run is judged: `tdcore rules run PATH --config rules.yaml`.

    rules:
      - vanishing_gradient
      - exploding_tensor: {tensor_regex: [relu, gelu], only_nan: true}
      - my_rules.py::SpikyLoss: {factor: 3}       a file beside this one
    actions:
      - stop
      - webhook: {url: env:SLACK_URL}             from an environment variable
    live: true
    timeout: 3600                                 seconds

YAML, or JSON where the name ends in .json. Whatever is not known or does not fit is a ConfigError that names
the file and the place in it. Reads one file, keeps no state.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.config.config_text import parse_config_text
from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.loading import as_text, load_rule, load_rules

if TYPE_CHECKING:
    from tdcore.actions import Action

__all__ = ["RulesConfig", "load_rules_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesConfig:
    """What a file says. options: further arguments of tdcore.rules.run, those that the file gives."""

    rules: tuple[Rule, ...] = ()
    actions: tuple[Action, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def load_rules_config(path: str | os.PathLike[str]) -> RulesConfig:
    """Reads the file. Raises ConfigError."""
    place = Path(path)
    try:
        document = parse_config_text(place.read_text(encoding="utf-8"), as_json=place.suffix == ".json")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"rules file {place} cannot be read: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"rules file {place}: {error}") from error
    try:
        return _config(document, place.parent)
    except ConfigError as error:
        raise type(error)(f"rules file {place}: {error}") from error


def _config(document: object, folder: Path) -> RulesConfig:
    if document is None:
        raise ConfigError("it is empty; it names rules, such as `rules: [vanishing_gradient]`")
    top = _mapping("the file", document)
    known = ("rules", "actions", *_OPTIONS)
    for key in top:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known)}"
            raise ConfigError(f"unknown key {key!r}; {hint}")
    rules = [
        rule
        for number, entry in enumerate(_list("rules", top.get("rules")))
        for rule in _rules(f"rules[{number}]", entry, folder)
    ]
    actions = [
        _action(f"actions[{number}]", entry)
        for number, entry in enumerate(_list("actions", top.get("actions")))
    ]
    options = {key: read(key, top[key]) for key, read in _OPTIONS.items() if top.get(key) is not None}
    return RulesConfig(rules=tuple(rules), actions=tuple(actions), options=options)


def _rules(where: str, entry: object, folder: Path) -> list[Rule]:
    """A name (or any text that names rules), or {name: {parameter: value}}."""
    try:
        if isinstance(entry, str):
            return load_rules(_beside(entry, folder))
        name, parameters = _named("a rule", entry)
        texts = {str(key): _text(f"{name}.{key}", value) for key, value in parameters.items()}
        return [load_rule(_beside(name, folder), texts)]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _action(where: str, entry: object) -> Action:
    """A text as on the command line, {name: {setting: value}}, or {action: name, setting: value}."""
    from tdcore.actions import action_from_config, load_action

    try:
        if isinstance(entry, str):
            return load_action(entry)
        if isinstance(entry, dict) and {"action", "name"} & {*entry}:
            return action_from_config(entry)
        name, settings = _named("an action", entry)
        return action_from_config({**settings, "action": name})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _named(what: str, entry: object) -> tuple[str, dict[str, Any]]:
    """{name: settings} in two pieces; settings may be left out."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{what} must be a text, or a name with its settings, got {_kind(entry)}")
    found: dict[str, Any] = entry
    if len(found) != 1:
        raise ConfigError(
            f"expected one name with its settings, got {', '.join(map(str, found)) or 'none'}; "
            "settings stand below the name, one indentation further"
        )
    ((name, settings),) = found.items()
    return str(name), {} if settings is None else _mapping(str(name), settings)


def _beside(spec: str, folder: Path) -> str:
    """The text with a file in it seen from the folder of the configuration."""
    path, marks, rest = spec.partition("::")
    is_file = path.endswith(".py") and not Path(path).is_absolute()
    return f"{folder / path}{marks}{rest}" if is_file else spec


def _text(where: str, value: object) -> str:
    """A parameter as rules take it from text."""
    if isinstance(value, list):
        return as_text([_text(where, each) for each in value])
    if value is None or isinstance(value, (str, int, float)):
        return as_text(value)
    raise ConfigError(f"{where} must be a text, a number, true, false or a list of these, got {value!r}")


def _mapping(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must hold names with values, got {_kind(value)}")
    return value


def _list(where: str, value: object) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list, got {_kind(value)}")
    return value


def _kind(value: object) -> str:
    """What a value is, without the value: it may be a secret."""
    kinds: dict[type, str] = {str: "a text", dict: "names with values", list: "a list", type(None): "nothing"}
    return kinds.get(type(value), "a number or flag")


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{key} must be true or false, got {value!r}")
    return value


def _whole(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{key} must be a whole number from 0, got {value!r}")
    return value


def _attempt(key: str, value: object) -> int | str:
    return value if value == "all" and isinstance(value, str) else _whole(key, value)


def _seconds(key: str, value: object) -> timedelta:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise ConfigError(f"{key} must be a number of seconds from 0, got {value!r}")
    return timedelta(seconds=value)


_OPTIONS: Mapping[str, Callable[[str, object], Any]] = {
    "live": _flag,
    "until_end": _flag,
    "attempt": _attempt,
    "start_step": _whole,
    "end_step": _whole,
    "ended": _flag,
    "write_findings": _flag,
    "start_timeout": _seconds,
    "timeout": _seconds,
    "poll_interval": _seconds,
    "max_findings": _whole,
}
