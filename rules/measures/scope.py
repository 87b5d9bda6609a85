"""Scope: the tensors that a rule judges, selected by collection_names and tensor_regex.

Plain functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.rules.base import names_of
from tdcore.rules.columns import Mask
from tdcore.rules.requirements import Need, captures_of
from tdcore.rules.window import Window, compile_pattern

__all__ = ["Scoped", "checked", "need_of", "with_statistics"]


class Scoped(Protocol):
    """A rule with these two parameters. Its scope is the union of both."""

    @property
    def collection_names(self) -> str | Sequence[str] | None:
        """Names of collections."""
        ...

    @property
    def tensor_regex(self) -> str | Sequence[str] | None:
        """Regular expressions for names."""
        ...


def checked(rule: Scoped) -> None:
    """Raise ConfigError for an invalid regular expression."""
    for pattern in names_of(rule.tensor_regex):
        compile_pattern(pattern)


def need_of(rule: Scoped, default: Sequence[str], *, interval: int, keep: ReductionConfig, form: str) -> Need:
    """The need of a rule with this scope.

    Args:
        rule: The rule.
        default: Collections if the rule has no scope of its own.
        interval: Steps between two saves.
        keep: STATISTICS or VALUES.
        form: `keep` in words.
    """
    collections, patterns = _scope(rule, default)
    names = [f"collection {name!r}" for name in collections]
    names += [f"tensors matching {pattern!r}" for pattern in patterns]
    return Need(
        what=f"{form} of {' and '.join(names)}",
        captures=captures_of(
            collections, patterns, save_config=SaveConfig(save_interval=interval), keep=keep
        ),
    )


def with_statistics(rule: Scoped, window: Window, default: Sequence[str]) -> Mask:
    """Rows in scope that hold a value and statistics. Rows without statistics are counted as missing."""
    wanted = window.selected(*_scope(rule, default))
    window.missing("tensor saved without statistics", int(np.sum(wanted & window.ok & ~window.counted)))
    window.missing("tensor not captured", int(np.sum(wanted & window.columns.where("status", _skipped))))
    found: Mask = wanted & window.ok & window.counted
    return found


def _scope(rule: Scoped, default: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    collections, patterns = names_of(rule.collection_names), names_of(rule.tensor_regex)
    return (collections if collections or patterns else tuple(default)), patterns


def _skipped(status: str) -> bool:
    return status == "skipped"
