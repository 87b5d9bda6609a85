"""Reader of rules files: the rules, actions and options of `tdcore rules run PATH --config rules.yaml`.

    rules:
      - vanishing_gradient
      - exploding_tensor: {tensor_regex: [relu, gelu], only_nan: true}
      - my_rules.py::SpikyLoss: {factor: 3}       a file in the same folder
    actions:
      - stop
      - webhook: {url: env:SLACK_URL}             from an environment variable
    live: true
    timeout: 3600                                 seconds

The format is YAML, or JSON if the name ends in .json. Unknown keys and invalid values raise ConfigError with
the name of the file and the place in it. Reads one file, keeps no state.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.config.schema import Kind, check_keys, items, mapping, parse_document, read_text, within
from tdcore.errors import ConfigError
from tdcore.rules.base import Rule
from tdcore.rules.loading import as_text, load_rule, load_rules

if TYPE_CHECKING:
    from tdcore.actions import Action

__all__ = ["RulesConfig", "load_rules_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesConfig:
    """The content of a file. options: further arguments of tdcore.rules.run in the file."""

    rules: tuple[Rule, ...] = ()
    actions: tuple[Action, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def load_rules_config(path: str | os.PathLike[str]) -> RulesConfig:
    """Read a file with rules, actions and options. Raises ConfigError."""
    place = Path(path)
    text = read_text(place, "rules file")
    with within(f"rules file {place}"):
        return _config(parse_document(text, as_json=place.suffix == ".json"), place.parent)


def _config(document: object, folder: Path) -> RulesConfig:
    if document is None:
        raise ConfigError("the file is empty; write at least one rule, such as `rules: [vanishing_gradient]`")
    top = mapping("the file", document, got=_kind)
    check_keys("", top, ("rules", "actions", *_OPTIONS))
    rules: list[Rule] = []
    for number, entry in enumerate(items("rules", top.get("rules"), got=_kind)):
        with within(f"rules[{number}]"):
            rules += _rules(entry, folder)
    actions: list[Action] = []
    for number, entry in enumerate(items("actions", top.get("actions"), got=_kind)):
        with within(f"actions[{number}]"):
            actions.append(_action(entry))
    options = {key: kind(top[key], key) for key, kind in _OPTIONS.items() if top.get(key) is not None}
    return RulesConfig(rules=tuple(rules), actions=tuple(actions), options=options)


def _rules(entry: object, folder: Path) -> list[Rule]:
    """A name (or any text that names rules), or {name: {parameter: value}}."""
    if isinstance(entry, str):
        return load_rules(_beside(entry, folder))
    name, parameters = _named("a rule", entry)
    texts = {str(key): _text(f"{name}.{key}", value) for key, value in parameters.items()}
    return [load_rule(_beside(name, folder), texts)]


def _action(entry: object) -> Action:
    """A text as on the command line, {name: {setting: value}}, or {action: name, setting: value}."""
    from tdcore.actions import action_from_config, load_action

    if isinstance(entry, str):
        return load_action(entry)
    if isinstance(entry, dict) and {"action", "name"} & {*entry}:
        return action_from_config(entry)
    name, settings = _named("an action", entry)
    return action_from_config({**settings, "action": name})


def _named(what: str, entry: object) -> tuple[str, dict[str, Any]]:
    """Name and settings of {name: settings}; settings may be left out."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{what} must be a text, or a name with its settings, got {_kind(entry)}")
    found: dict[str, Any] = entry
    if len(found) != 1:
        raise ConfigError(
            f"expected one name with its settings, got {', '.join(map(str, found)) or 'none'}; "
            "write settings below the name, indented once more"
        )
    ((name, settings),) = found.items()
    return str(name), mapping(str(name), settings, got=_kind)


def _beside(spec: str, folder: Path) -> str:
    """The text of a rule. A path in it is relative to the folder of the configuration file."""
    path, marks, rest = spec.partition("::")
    is_file = path.endswith(".py") and not Path(path).is_absolute()
    return f"{folder / path}{marks}{rest}" if is_file else spec


def _text(where: str, value: object) -> str:
    """A parameter as text, in the form that load_rule reads."""
    if isinstance(value, list):
        return as_text([_text(where, each) for each in value])
    if value is None or isinstance(value, (str, int, float)):
        return as_text(value)
    raise ConfigError(f"{where} must be a text, a number, true, false or a list of these, got {value!r}")


def _kind(value: object) -> str:
    """The type of a value in words, without the value, which may be a secret."""
    kinds: dict[type, str] = {str: "a text", dict: "names with values", list: "a list", type(None): "nothing"}
    return kinds.get(type(value), "a number or flag")


def _whole(value: int) -> int:
    if value < 0:
        raise ValueError(value)
    return value


def _seconds(value: float) -> timedelta:
    if not 0 <= value < 1e9:
        raise ValueError(value)
    return timedelta(seconds=value)


_FLAG = Kind("true or false", bool, (bool,))
_WHOLE = Kind("a whole number from 0", _whole, (int,))
_SECONDS = Kind("a number of seconds from 0", _seconds, (int, float))
_OPTIONS = {
    "live": _FLAG,
    "until_end": _FLAG,
    "attempt": Kind(_WHOLE.expected, lambda value: value if value == "all" else _whole(value), (int, str)),
    "start_step": _WHOLE,
    "end_step": _WHOLE,
    "ended": _FLAG,
    "write_findings": _FLAG,
    "start_timeout": _SECONDS,
    "timeout": _SECONDS,
    "poll_interval": _SECONDS,
    "max_findings": _WHOLE,
}
