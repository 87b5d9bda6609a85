"""Rules from text, in the form of the command line and of configuration files.

    vanishing_gradient                     a rule of the table: a name (any case, with or without "_") or code
    vanishing_gradient:threshold=1e-6      with parameters; lists with commas: tensor_regex=relu,gelu
    vanishing_gradient:start_step=500      every rule accepts start_step and end_step (rules/step_range.py)
    my_rules.py::SpikyLoss:factor=3        a class in a file
    my_rules.py                            all rules of a file
    my_package.rules:SpikyLoss             a class in an importable module
    all                                    every rule of the table except summaries, with its defaults
    profiler_report:StepOutlier_stddev=4   all rules about machines and times of steps, with parameters

Code is loaded only from files and modules that the user names here, never from a run. Parameters are strings,
as in smdebug, and are converted to the types of the rule's fields.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from tdcore.config.schema import kind_of
from tdcore.errors import ConfigError
from tdcore.rules.base import (
    SEPARATOR,
    Rule,
    combined_rules_of,
    is_summary,
    names_of,
    step_time_columns_of,
    system_columns_of,
)
from tdcore.text.did_you_mean import closest

__all__ = [
    "ALL",
    "all_rules",
    "as_text",
    "find_rule",
    "is_all",
    "load_rule",
    "load_rules",
    "no_rule",
    "rule_from_strings",
    "table_rule",
    "text_of",
]

ALL = "all"
_FILE_MODULE = "tdcore_rules_of_user_"  # prefix of the names of modules from files
_WRONG = "{where} is {got!r}, expected {expected}"
_PARAMETER = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=(.*)", re.DOTALL)


def load_rules(rules: Iterable[object] | str) -> list[Rule]:
    """Convert rules given as text, as classes (with their defaults) or as instances to instances.

    Raises ConfigError for other values.
    """
    found: list[Rule] = []
    for rule in [rules] if isinstance(rules, str) else rules:
        if isinstance(rule, str) and rule.endswith(".py"):
            found += [rule_from_strings(kind, {}) for kind in _classes_in_file(Path(rule))]
        elif is_all(rule):
            found += all_rules()
        elif isinstance(rule, str):
            found.append(load_rule(rule))
        elif isinstance(rule, type):
            found.append(rule_from_strings(rule, {}))
        elif callable(getattr(rule, "check", None)) and callable(getattr(rule, "needs", None)):
            found.append(typing.cast(Rule, rule))
        else:
            raise ConfigError(
                f"a rule must be an instance, a class or text such as the rule's name, got {rule!r}"
            )
    return found


def is_all(rule: object) -> bool:
    """Whether the text means every rule of the table except summaries."""
    return isinstance(rule, str) and rule.strip().lower() == ALL


def all_rules() -> list[Rule]:
    """Every rule of the table that can find a fault by itself, with its defaults.

    Summaries are left out, so that a run that is judged by all rules prints no table and costs nothing more.
    """
    from tdcore.rules import RULES

    return [rule_from_strings(rule, {}) for rule in RULES.values() if not is_summary(rule)]


def load_rule(spec: str, parameters: Mapping[str, str] | None = None) -> Rule:
    """The rule that `spec` describes. parameters: further parameters, in addition to those in the text.

    Raises ConfigError, with the existing names, if there is no such rule.
    """
    kind, text = _class_and_parameters(spec)
    given = _split(text, spec)
    for name, value in (parameters or {}).items():
        if name in given:
            raise ConfigError(f"{spec!r} gets {name!r} twice")
        given[name] = value
    return rule_from_strings(kind, given)


def table_rule(spec: str) -> Rule | None:
    """The rule of the table that `spec` describes; None if there is no such rule. Never loads code.

    Raises ConfigError for invalid parameters.
    """
    name, _, parameters = spec.partition(":")
    kind = find_rule(name)
    return None if kind is None else rule_from_strings(kind, _split(parameters, spec))


def text_of(rule: Rule) -> str:
    """Text from which load_rule creates an equal rule."""
    from tdcore.rules.legacy import LegacyRule
    from tdcore.rules.step_range import step_range_of, without_step_range

    inner = without_step_range(rule)
    kind: type[Any] = inner.kind if isinstance(inner, LegacyRule) else type(inner)
    known = find_rule(kind.__name__) is kind
    name = _snake(kind.__name__) if known else _place_of(kind)
    given = dict(inner.parameters) if isinstance(inner, LegacyRule) else _changed(inner)
    given |= step_range_of(rule)
    return name + (":" if given else "") + ",".join(f"{name}={value}" for name, value in given.items())


def _place_of(kind: type[Any]) -> str:
    """Place of a user's class as text: file.py::Class or module:Class."""
    if kind.__module__.startswith(_FILE_MODULE):
        return f"{sys.modules[kind.__module__].__file__}::{kind.__qualname__}"
    return f"{kind.__module__}:{kind.__qualname__}"


def _class_and_parameters(spec: str) -> tuple[type[Any], str]:
    name, _, rest = spec.partition(":")
    rule = find_rule(name)
    if rule is not None:
        return rule, rest
    path, marks, rest = spec.partition("::")
    if marks:
        class_name, _, parameters = rest.partition(":")
        return _class_in_file(Path(path), class_name), parameters
    if spec.endswith(".py"):
        return _only(_classes_in_file(Path(spec)), spec), ""
    name, _, rest = spec.partition(":")
    class_name, _, parameters = rest.partition(":")
    if class_name.isidentifier():
        return _class_in_module(name, class_name), parameters
    raise no_rule(name)


def find_rule(name: str) -> type[Rule] | None:
    """The class in the table with this name or code; None if there is none."""
    from tdcore.rules import RULES

    wanted = _plain(name)
    for code, rule in RULES.items():
        if wanted in (_plain(code), _plain(rule.__name__)):
            return rule
    return None


def no_rule(name: str) -> ConfigError:
    """The error for a name that is not in the table, with the most similar name."""
    return ConfigError(f"there is no rule {name!r}{_suggestion(name)}; `tdcore rules list` shows all of them")


def rule_from_strings(rule: type[Any], parameters: Mapping[str, str]) -> Rule:
    """Create an instance of a rule's class with parameters as strings.

    Raises ConfigError for invalid parameters.
    """
    from tdcore.rules import legacy
    from tdcore.rules.step_range import with_step_range

    is_older = legacy.is_older_rule(rule)
    if not is_older and not _is_rule(rule):
        raise ConfigError(
            f"{rule.__name__} is not a rule: a rule is a dataclass with `code`, `needs` and `check` "
            "(tdcore.rules.RuleProtocol), or a subclass of tdcore.rules.Rule with `invoke_at_step`"
        )
    parameters, bounds = _without_bounds(rule, parameters)
    if is_older:
        return with_step_range(legacy.LegacyRule(rule, parameters), **bounds)
    make: Callable[..., Rule] = rule
    hints = typing.get_type_hints(rule)
    known = [field.name for field in fields(rule) if field.init]
    values: dict[str, object] = {}
    of_combined: list[str] = []
    for name, text in parameters.items():
        if name not in known and hasattr(rule, "combined_rules"):
            of_combined.append(f"{name}={text}")
            continue
        if name not in known:
            raise ConfigError(
                f"{rule.__name__} has no parameter {name!r}; it has {', '.join(known) or 'none'}"
            )
        values[name] = kind_of(hints[name])(text, f"{rule.__name__}.{name}", _WRONG)
    if of_combined:
        values["parameters"] = (*names_of(parameters.get("parameters")), *of_combined)
    return with_step_range(make(**values), **bounds)


def _without_bounds(rule: type[Any], given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The parameters without start_step, end_step and each; these three, unless the rule has such fields."""
    kinds: dict[str, Any] = {"start_step": int, "end_step": int | None, "each": bool}
    own = inspect.signature(rule).parameters
    bounds = {
        name: kind_of(kind)(given[name], f"{rule.__name__}.{name}", _WRONG)
        for name, kind in kinds.items()
        if name in given and name not in own
    }
    only_samples = system_columns_of(rule) and not step_time_columns_of(rule)
    if only_samples and bounds.keys() - {"each"}:
        raise ConfigError(
            f"{rule.__name__} judges system samples, which have no steps; leave out start_step and end_step"
        )
    return {name: text for name, text in given.items() if name not in bounds}, bounds


def _is_rule(kind: type[Any]) -> bool:
    return is_dataclass(kind) and all(callable(getattr(kind, name, None)) for name in ("check", "needs"))


def _changed(rule: object) -> dict[str, str]:
    """Parameters that differ from their defaults, as text that rule_from_strings reads."""
    if not is_dataclass(rule):
        return {}
    found = {}
    for field in fields(rule):
        value = getattr(rule, field.name)
        if field.init and field.default is not MISSING and value != field.default:
            found[field.name] = as_text(value)
    if "parameters" in found and combined_rules_of(rule):
        del found["parameters"]
        found |= dict(each.split("=", 1) for each in getattr(rule, "parameters", ()))
    return found


def as_text(value: object) -> str:
    """A parameter as text that load_rule reads.

    A backslash is put before commas within items of a list, and before a "=" that would begin the next
    parameter.
    """
    if isinstance(value, (list, tuple)):
        value = ",".join(SEPARATOR.sub(r"\\,", as_text(each)) for each in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return re.sub(r"(,\s*[A-Za-z_][A-Za-z0-9_]*\s*)=", r"\1\\=", str(value))


def _split(text: str, spec: str) -> dict[str, str]:
    """ "a=1,b=x,y" as {"a": "1", "b": "x,y"}: a part without "=" belongs to the list before it."""
    found: dict[str, str] = {}
    name = ""
    for part in SEPARATOR.split(text) if text else []:
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


def _class_in_file(path: Path, class_name: str) -> type[Any]:
    return _class(_module_of(path), class_name, str(path))


def _classes_in_file(path: Path) -> list[type[Any]]:
    """The rules of both forms that a file defines, in its order."""
    from tdcore.rules import legacy

    found = [kind for kind in _own_classes(_module_of(path)) if _is_rule(kind) or legacy.is_older_rule(kind)]
    if not found:
        raise ConfigError(f"{path} defines no rule")
    return found


def _only(classes: list[type[Any]], spec: str) -> type[Any]:
    if len(classes) > 1:
        names = ", ".join(f"{spec}::{kind.__name__}" for kind in classes)
        raise ConfigError(f"{spec} defines several rules; name one of them: {names}")
    return classes[0]


def _own_classes(module: types.ModuleType) -> list[type[Any]]:
    found = [value for value in vars(module).values() if isinstance(value, type)]
    return [kind for kind in dict.fromkeys(found) if kind.__module__ == module.__name__]


def _module_of(path: Path) -> types.ModuleType:
    """The file as a module, loaded once."""
    if not path.is_file():
        raise ConfigError(f"the rule cannot be loaded: there is no file {path}")
    name = f"{_FILE_MODULE}{re.sub('[^0-9A-Za-z]', '_', str(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module in sys.modules
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"{path} could not be loaded: {type(error).__name__}: {error}") from error
    return module


def _class_in_module(name: str, class_name: str) -> type[Any]:
    try:
        module = importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:  # TypeError and ValueError: "..x", ""
        raise ConfigError(
            f"{name!r} is neither a rule{_suggestion(name)} nor a module that can be imported ({error}); "
            "write a rule's name, module:Class or file.py::Class"
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} could not be imported: {type(error).__name__}: {error}") from error
    return _class(module, class_name, name)


def _class(module: types.ModuleType, class_name: str, where: str) -> type[Any]:
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = sorted(kind.__name__ for kind in _own_classes(module))
        raise ConfigError(f"{where} has no class {class_name!r}; it has {', '.join(classes) or 'none'}")
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _suggestion(name: str) -> str:
    from tdcore.rules import RULES

    names = {_plain(rule.__name__): rule.__name__ for rule in RULES.values()}
    close = closest(_plain(name), names)
    return f" (did you mean {names[close]}?)" if close else ""
