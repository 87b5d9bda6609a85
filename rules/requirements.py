"""Requirements of rules: which tensors a rule needs (Need), and whether a run is configured to capture them.

A hook writes to collections.json which collections it saves, when, and in which form. `why_not_evaluable`
compares a rule's Need with these collections. While the run continues, it reports only reasons that are
certain: tensors that a script records itself (save_tensor, save_scalar, a loss) need no collection, and the
script can add collections later. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tdcore.config.built_in_collections import BUILT_IN
from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.errors import ConfigError
from tdcore.format.layout import TensorKind
from tdcore.format.run_patterns import RunPatterns
from tdcore.modes import ModeKeys

__all__ = [
    "STATISTICS",
    "VALUES",
    "CollectionCapture",
    "Need",
    "RunCapture",
    "arguments",
    "as_code",
    "captures_of",
    "run_capture",
    "unmatched_collections",
    "why_not_evaluable",
]

STATISTICS = ReductionConfig()  # statistics are recorded with every captured tensor
VALUES = ReductionConfig(save_raw_tensor=True)
# A script can record these itself at any time, whatever the configuration is.
_BY_HAND = frozenset({"scalar", "loss", "custom", "metric", "hyperparameter", "reduction"})
_PLURALS = {"bias": "biases", "loss": "losses", "optimizer_state": "optimizer state"}
_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The tensors that a rule needs in a run.

    Attributes:
        what: Description, for the verdict.
        captures: Collections with these tensors, each with save_config, and with reduction_config STATISTICS
            or VALUES.
        kinds: Kinds of tensors ("gradient", "loss", ...). A run without any tensor of these kinds cannot be
            judged. () if the rule selects tensors by name.
        payload: Whether the rule needs values, because statistics are not enough.
        frameworks: Frameworks of the trainings that the rule is about; () for any.
        workers: Minimum number of workers.

    If frameworks or workers do not match, the rule does not apply (rules/applicability.py).
    """

    what: str
    captures: tuple[CollectionConfig, ...] = ()
    kinds: tuple[str, ...] = ()
    payload: bool = False
    frameworks: tuple[str, ...] = ()
    workers: int = 1

    @property
    def fix(self) -> str:
        """The captures as Python code."""
        return ", ".join(as_code(capture) for capture in self.captures)


def captures_of(
    collections: Iterable[str],
    patterns: Iterable[str],
    *,
    save_config: SaveConfig,
    keep: ReductionConfig,
    name: str = "watched",
    modules: Iterable[str] = (),
) -> tuple[CollectionConfig, ...]:
    """Captures for a rule that selects tensors by collections and by patterns.

    Args:
        collections: Names of collections.
        patterns: Patterns for names of tensors.
        save_config: When to save.
        keep: STATISTICS or VALUES.
        name: Name of the collection for the patterns.
        modules: Patterns for classes of modules, see CollectionConfig.module_regex.
    """
    named, of_modules = tuple(patterns), tuple(modules)
    found = [
        CollectionConfig(name=each, save_config=save_config, reduction_config=keep) for each in collections
    ]
    if named or of_modules:
        found.append(
            CollectionConfig(
                name=name,
                include_regex=named,
                module_regex=of_modules,
                save_config=save_config,
                reduction_config=keep,
            )
        )
    return tuple(found)


def as_code(value: object) -> str:
    """A configuration, or a value in one, as Python code."""
    if isinstance(value, ModeKeys):
        return f"modes.{value.name}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_code(key)}: {as_code(each)}" for key, each in value.items()) + "}"
    if isinstance(value, str):
        plain = value.isprintable() and '"' not in value and not value.endswith("\\")
        return ("r" if "\\" in value else "") + f'"{value}"' if plain else repr(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(as_code(each) for each in value) + "]"
    if hasattr(type(value), "__dataclass_fields__"):
        return f"{type(value).__name__}({', '.join(arguments(value))})"
    return repr(value)


def arguments(value: Any) -> list[str]:
    """The arguments of a configuration that differ from their defaults, as Python code."""
    plain = SaveConfig(save_interval=value.save_interval) if isinstance(value, SaveConfig) else None
    found = []
    for field in fields(value):
        given = getattr(value, field.name)
        if not field.init or given == field.default or (given == () and field.default == ()):
            continue
        if plain is not None and field.name != "save_interval" and given == getattr(plain, field.name):
            continue
        found.append(f"{field.name}={as_code(given)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionCapture:
    """A collection that a run saves.

    Attributes:
        name: Name of the collection.
        kinds: Kinds of tensors that can be in it; None: any.
        intervals: Mode -> interval in steps of the mode.
        values: Whether values are saved, not only statistics.
        empty: Whether it has no tensor so far.
        patterns: Patterns for names and for classes of modules.
    """

    name: str
    kinds: frozenset[str] | None
    intervals: Mapping[str, int]
    values: bool
    empty: bool = False
    patterns: frozenset[str] = frozenset()

    def may_hold(self, kinds: Iterable[str]) -> bool:
        """Whether a tensor of one of these kinds can be in the collection."""
        return self.kinds is None or not self.kinds.isdisjoint(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCapture:
    """The collections that a run saves, from collections.json."""

    collections: tuple[CollectionCapture, ...]

    @property
    def names(self) -> str:
        """Names of the collections, as text."""
        names = sorted(each.name for each in self.collections)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ", ".join(names[:_SHOWN]) + more


def run_capture(collections: Mapping[str, Mapping[str, Any]]) -> RunCapture | None:
    """The saved collections of one attempt in collections.json; None if the entries are incomplete."""
    if not collections or any(type(entry.get("included")) is not bool for entry in collections.values()):
        return None
    saved = [_saved(name, entry) for name, entry in collections.items() if entry["included"]]
    return RunCapture(collections=tuple(saved))


def why_not_evaluable(need: Need, capture: RunCapture | None, *, seen: bool, ended: bool) -> str:
    """Why a rule that has judged nothing so far cannot judge the run as configured; "" if it may.

    Args:
        need: The tensors that the rule needs.
        capture: The collections that the run saves; None if unknown.
        seen: Whether the rule has found tensors that it needs, but without the statistics or values it needs.
        ended: Whether the run has ended. Then the text may also be a likely reason.
    """
    if capture is None:
        return ""
    kinds = frozenset(need.kinds)
    able = [each for each in capture.collections if not kinds or each.may_hold(kinds)]
    if kinds and not able and not kinds & _BY_HAND:
        return f"the run does not save {_words(need.kinds)}: {_has(capture)}"
    certain = bool(kinds) or seen  # a script may still record a tensor of this name with values
    if need.payload and certain and able and not kinds & _BY_HAND and not any(e.values for e in able):
        names = ", ".join(repr(each.name) for each in able[:_SHOWN])
        return f"the run saves statistics of {names} only, and this rule needs values"
    return _likely(need, capture) if ended and not seen else ""


def unmatched_collections(need: Need, capture: RunCapture | None) -> list[CollectionConfig]:
    """The collections that a rule needs, if the run saves all of them and all are empty.

    It would not help to capture them again, because the run has no tensors of these names. Returns an empty
    result in all other cases.
    """
    saved = {each.name: each for each in capture.collections} if capture is not None else {}
    for wanted in need.captures:
        here, patterns = saved.get(wanted.name), _patterns(wanted)
        if here is None or not here.empty or not here.patterns.issuperset(patterns):
            return []
        if not patterns and not wanted.tensor_names:
            return []
    return list(need.captures)


def _patterns(wanted: CollectionConfig) -> list[str]:
    return [*wanted.include_regex, *wanted.module_regex]


def _likely(need: Need, capture: RunCapture) -> str:
    """A likely reason at the end of a run: collections that are missing, empty, or saved too rarely."""
    empty = unmatched_collections(need, capture)
    if empty:
        patterns = ", ".join(each for wanted in empty for each in (*_patterns(wanted), *wanted.tensor_names))
        names = " and ".join(repr(wanted.name) for wanted in empty)
        return (
            f"the run saves {names}, but has no tensors with matching names ({patterns}). The rule needs "
            f"{need.what}: save the tensors under matching names, or set the rule's parameters to other "
            "names."
        )
    saved = {each.name: each for each in capture.collections}
    absent = [wanted.name for wanted in need.captures if wanted.name not in saved]
    if need.captures and len(absent) == len(need.captures) and not need.kinds:
        return f"the run does not save {need.what}: {_has(capture)}"
    for wanted in need.captures:
        here = saved.get(wanted.name)
        if here is None or wanted.save_config is None or not here.intervals:
            continue
        interval, enough = min(here.intervals.values()), wanted.save_config.save_interval
        if interval > enough:
            return (
                f"{wanted.name!r} is saved every {interval} steps, which is not enough: the rule needs "
                f"{need.what}"
            )
    return ""


def _has(capture: RunCapture) -> str:
    return f"its collections are {capture.names}" if capture.collections else "it has no collections"


def _words(kinds: Iterable[str]) -> str:
    return " or ".join(_PLURALS.get(kind, f"{kind}s") for kind in kinds)


def _saved(name: str, entry: Mapping[str, Any]) -> CollectionCapture:
    reduction, when = entry.get("reduction_config"), entry.get("save_config")
    intervals = {
        str(mode): int(settings["save_interval"])
        for mode, settings in (when.items() if isinstance(when, dict) else ())
        if isinstance(settings, dict) and isinstance(settings.get("save_interval"), int)
    }
    values = not isinstance(reduction, dict) or reduction.get("save_raw_tensor") is not False
    return CollectionCapture(
        name=name,
        kinds=_kinds(name, _texts(entry, "include_regex"), _texts(entry, "module_regex")),
        intervals=intervals,
        values=values,
        empty=entry.get("tensor_names") == [],
        patterns=frozenset([*_texts(entry, "include_regex"), *_texts(entry, "module_regex")]),
    )


def _texts(entry: Mapping[str, Any], field: str) -> list[str]:
    found = entry.get(field)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _kinds(name: str, patterns: Iterable[str], of_modules: Iterable[str]) -> frozenset[str] | None:
    """Kinds of tensors that a collection can contain; None (any kind) if it selects modules or names."""
    compiled = RunPatterns().compile  # patterns of a run are compiled with limits
    collection = (
        Collection.built_in(name, compiled)
        if name in BUILT_IN
        else Collection(name or "unnamed", compile_pattern=compiled)
    )
    if list(of_modules):
        return None
    if list(patterns):
        try:
            collection.include_regex = list(patterns)
        except ConfigError:
            return None
    if collection.is_filled or not collection.selects:
        return None
    return frozenset(kind.label for kind in TensorKind if collection.may_take(kind))
