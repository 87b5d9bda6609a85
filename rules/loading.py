"""Rules from text, as the command line and configuration files write them.

    vanishing_gradient                        a rule of the table, by name (any case, with or without "_") or
    code vanishing_gradient:threshold=1e-6         with parameters; lists with commas: tensor_regex=relu,gelu
    my_rules.py::SpikyLoss:factor=3           a class in a file my_package.rules:SpikyLoss                a
    class in an importable module

Code is loaded only from what the user names here, never from a run. Parameters come as strings, as in the
older library, and become what the rule's fields say.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from tdcore.errors import ConfigError
from tdcore.rules.base import Rule

__all__ = ["find_rule", "load_rule", "rule_from_strings"]

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_PARAMETER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)


def load_rule(spec: str) -> Rule:
    """The rule that `spec` describes.

    Raises ConfigError, with the names that exist, when there is no such thing.
    """
    path, marks, rest = spec.partition("::")
    if marks:
        class_name, _, parameters = rest.partition(":")
        return rule_from_strings(_class_in_file(Path(path), class_name), _split(parameters, spec))
    name, _, parameters = spec.partition(":")
    rule = find_rule(name)
    if rule is not None:
        return rule_from_strings(rule, _split(parameters, spec))
    class_name, _, rest = parameters.partition(":")
    if class_name.isidentifier():
        return rule_from_strings(_class_in_module(name, class_name), _split(rest, spec))
    raise ConfigError(f"there is no rule {name!r}{_suggestion(name)}; `tdcore rules list` shows all of them")


def find_rule(name: str) -> type[Rule] | None:
    """The class in the table with this name or code; None when there is none."""
    from tdcore.rules import RULES

    wanted = _plain(name)
    for code, rule in RULES.items():
        if wanted in (_plain(code), _plain(rule.__name__)):
            return rule
    return None


def rule_from_strings(rule: type[Any], parameters: Mapping[str, str]) -> Rule:
    """An instance of a rule's class with parameters given as strings.

    Raises ConfigError for any that do not fit.
    """
    from tdcore.rules import legacy

    make: Callable[..., Rule] = rule
    if issubclass(rule, legacy.Rule):
        return legacy.LegacyRule(rule, parameters)
    if not is_dataclass(rule) or not callable(getattr(rule, "check", None)):
        raise ConfigError(
            f"{rule.__name__} is not a rule: it needs a dataclass with `code`, `needs` and `check` "
            "(tdcore.rules.base.Rule), or tdcore.rules.legacy.Rule with `invoke_at_step`"
        )
    hints = typing.get_type_hints(rule)
    known = [field.name for field in fields(rule) if field.init]
    values: dict[str, object] = {}
    for name, text in parameters.items():
        if name not in known:
            raise ConfigError(
                f"{rule.__name__} has no parameter {name!r}; it has {', '.join(known) or 'none'}"
            )
        values[name] = _converted(text, hints[name], f"{rule.__name__}.{name}")
    return make(**values)


def _split(text: str, spec: str) -> dict[str, str]:
    """ "a=1,b=x,y" as {"a": "1", "b": "x,y"}: what has no "=" goes on with the list before it."""
    found: dict[str, str] = {}
    name = ""
    for part in text.split(",") if text else []:
        match = _PARAMETER.match(part)
        if match:
            name = match[1]
            if name in found:
                raise ConfigError(f"{spec!r} gives {name!r} twice")
            found[name] = match[2].strip()
        elif name:
            found[name] += "," + part
        else:
            raise ConfigError(
                f"{spec!r}: {part!r} is not a parameter; write name=value, with commas between them"
            )
    return found


def _converted(text: str, hint: Any, what: str) -> object:
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if type(None) in kinds and text.lower() in ("", "none"):
        return None
    if bool in kinds:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise ConfigError(f"{what} is {text!r}, expected true or false")
        return text.lower() in _TRUE
    for kind, word in ((int, "a whole number"), (float, "a number")):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise ConfigError(f"{what} is {text!r}, expected {word}") from None
    return text


def _class_in_file(path: Path, class_name: str) -> type[Any]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path} to load {class_name or 'a rule'} from")
    name = f"tdcore_rules_of_user_{re.sub('[^0-9A-Za-z]', '_', str(path.resolve()))}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise ConfigError(f"{path} could not be loaded: {type(error).__name__}: {error}") from error
    return _class(module, class_name, str(path))


def _class_in_module(name: str, class_name: str) -> type[Any]:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name!r} is neither a rule{_suggestion(name)} nor a module that can be imported ({error}); "
            "write a rule's name, module:Class or file.py::Class"
        ) from error
    return _class(module, class_name, name)


def _class(module: types.ModuleType, class_name: str, where: str) -> type[Any]:
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = sorted(
            name
            for name, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        )
        raise ConfigError(f"{where} has no class {class_name!r}; it has {', '.join(classes) or 'none'}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _suggestion(name: str) -> str:
    from tdcore.rules import RULES

    names = {_plain(rule.__name__): rule.__name__ for rule in RULES.values()}
    close = difflib.get_close_matches(_plain(name), names, n=1)
    return f" (did you mean {names[close[0]]}?)" if close else ""
