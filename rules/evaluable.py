"""Evaluable: whether a run, as it is configured, captures what a rule needs.

A hook writes into collections.json which collections it saves, when and in which form. `lacking` holds a
rule's Need against that. While the run goes on it speaks only of what cannot come as things are: tensors that
a script records by hand (save_tensor, save_scalar, a loss) need no collection, and a collection that is added
later is seen when it is there. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tdcore.config.built_in_collections import BUILT_IN
from tdcore.config.collection import Collection
from tdcore.config.collection_config import CollectionConfig
from tdcore.errors import ConfigError
from tdcore.format.layout import TensorKind
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules.need import Need

__all__ = ["Capture", "Saved", "capture_of", "lacking", "unmatched"]

# A script can record these at any time, whatever the configuration says.
_BY_HAND = frozenset({"scalar", "loss", "custom", "metric", "hyperparameter", "reduction"})
_PLURALS = {"bias": "biases", "loss": "losses", "optimizer_state": "optimizer state"}
_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A collection that a run saves. kinds: of the tensors that can belong to it; None: any.

    intervals: mode -> every how many steps of the mode. values: whether more than statistics is kept. empty:
    no tensor was found to belong to it so far. patterns: for names and for classes of modules.
    """

    name: str
    kinds: frozenset[str] | None
    intervals: Mapping[str, int]
    values: bool
    empty: bool = False
    patterns: frozenset[str] = frozenset()

    def may_hold(self, kinds: Iterable[str]) -> bool:
        """Whether a tensor of one of these kinds can belong to it."""
        return self.kinds is None or not self.kinds.isdisjoint(kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What a run saves, as its hook says."""

    collections: tuple[Saved, ...]

    @property
    def names(self) -> str:
        """The collections in words."""
        names = sorted(each.name for each in self.collections)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return ", ".join(names[:_SHOWN]) + more


def capture_of(collections: Mapping[str, Mapping[str, Any]]) -> Capture | None:
    """What the entries of one attempt in collections.json say; None when they do not say what is saved."""
    if not collections or any(type(entry.get("included")) is not bool for entry in collections.values()):
        return None
    saved = [_saved(name, entry) for name, entry in collections.items() if entry["included"]]
    return Capture(collections=tuple(saved))


def lacking(need: Need, capture: Capture | None, *, seen: bool, ended: bool) -> str:
    """Why a rule that could judge nothing so far cannot, as the run is configured; "" when it may.

    seen: whether the rule has seen tensors that it wanted, without what it wanted of them. ended: nothing
    more will come; then the text may also name what is only likely.
    """
    if capture is None:
        return ""
    kinds = frozenset(need.kinds)
    able = [each for each in capture.collections if not kinds or each.may_hold(kinds)]
    if kinds and not able and not kinds & _BY_HAND:
        return f"the run does not save {_words(need.kinds)}: {_has(capture)}"
    certain = bool(kinds) or seen  # a name alone may still be recorded by hand, with its values
    if need.payload and certain and able and not kinds & _BY_HAND and not any(e.values for e in able):
        names = ", ".join(repr(each.name) for each in able[:_SHOWN])
        return f"the run saves statistics of {names} only, and this rule needs values"
    return _likely(need, capture) if ended and not seen else ""


def unmatched(need: Need, capture: Capture | None) -> list[CollectionConfig]:
    """The collections that a rule needs, where the run saves all of them as it asks and none holds a tensor.

    Asking for them again would not help: the run has no tensors of these names. Empty in all other cases.
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


def _likely(need: Need, capture: Capture) -> str:
    """What explains the lack at the end of a run: collections not there, without tensors, or seldom saved."""
    empty = unmatched(need, capture)
    if empty:
        patterns = ", ".join(each for wanted in empty for each in (*_patterns(wanted), *wanted.tensor_names))
        names = " and ".join(repr(wanted.name) for wanted in empty)
        return (
            f"the run saves {names}, but has no tensor of such a name ({patterns}). "
            f"It needs {need.what}: save them under such names, or point the rule at others."
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
                f"{wanted.name!r} is saved every {interval} steps, which is not enough: it needs {need.what}"
            )
    return ""


def _has(capture: Capture) -> str:
    return f"its collections are {capture.names}" if capture.collections else "it has no collections"


def _words(kinds: Iterable[str]) -> str:
    return " or ".join(_PLURALS.get(kind, f"{kind}s") for kind in kinds)


def _saved(name: str, entry: Mapping[str, Any]) -> Saved:
    reduction, when = entry.get("reduction_config"), entry.get("save_config")
    intervals = {
        str(mode): int(settings["save_interval"])
        for mode, settings in (when.items() if isinstance(when, dict) else ())
        if isinstance(settings, dict) and isinstance(settings.get("save_interval"), int)
    }
    values = not isinstance(reduction, dict) or reduction.get("save_raw_tensor") is not False
    return Saved(
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
    """Kinds of tensors that a collection can hold; None, any, where it goes by names not all known."""
    compiled = RunPatterns().compile  # they are the run's, and only counted here
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
