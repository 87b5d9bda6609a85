"""Need: what a rule must find in a run, and the capture that would give it.

Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.modes import ModeKeys

__all__ = ["STATISTICS", "VALUES", "Need", "arguments", "as_code", "captures_of"]

STATISTICS = ReductionConfig()  # they are recorded with every captured tensor, and are enough
VALUES = ReductionConfig(save_raw_tensor=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a rule must find in a run before it can say anything.

    what: in words, for the verdict. captures: collections that would hold it, each with its save_config and
    with reduction_config STATISTICS or VALUES. kinds: of tensors ("gradient", "loss", ...); where a run has
    none of any of them, the rule can say nothing; () where names decide. payload: whether statistics are not
    enough. frameworks: of the trainings that the rule is about; () for any. workers: how many it compares at
    least. Where a run is of another kind, the rule does not apply (rules/applies.py).
    """

    what: str
    captures: tuple[CollectionConfig, ...] = ()
    kinds: tuple[str, ...] = ()
    payload: bool = False
    frameworks: tuple[str, ...] = ()
    workers: int = 1

    @property
    def fix(self) -> str:
        """Python text of the captures."""
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
    """Captures for a rule that is pointed at collections and at names by patterns; `name` holds the latter.

    keep: STATISTICS or VALUES. modules: patterns for classes of modules, see CollectionConfig.module_regex.
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
    """Python text that makes the value: a configuration, or what configurations hold."""
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
    """Python text of a configuration's arguments, those that differ from their defaults."""
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
