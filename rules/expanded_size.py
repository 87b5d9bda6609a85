"""Expanded size: the size of a value written out in full, with each part as often as it occurs.

A list that contains a list twice, which contains a list twice, and so on, is small in a file but
exponentially large for all code that walks through it: repr(), ==, hash(). Plain functions; any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["ExpandedSizes", "TooLargeError", "check_size"]

_MAX_HASHED = 100_000  # parts of a key, written out
_MAX_DEPTH = 100
_MAX_EXPANSION = 16  # ratio of the expanded size to the number of distinct parts
_ALWAYS_ALLOWED = 100_000  # parts, at any ratio


class TooLargeError(Exception):
    """A value contains the same parts too often, or is nested too deeply."""


class ExpandedSizes:
    """Expanded sizes of tuples, frozen sets and dataclasses when they are made, before they are hashed.

    stored: size of the file in bytes.
    """

    def __init__(self, stored: int) -> None:
        self._room = _ALWAYS_ALLOWED + _MAX_EXPANSION * stored  # parts that may be hashed
        self._known: dict[int, tuple[int, int]] = {}  # id -> parts and depth
        self._alive: list[Any] = []  # keeps the ids unique

    def add(self, made: Any, parts: Iterable[Any] | None = None) -> None:
        """Add a new value and its parts to the count. Raises TooLargeError."""
        weight = depth = 1
        for part in made if parts is None else parts:
            inner = self._known.get(id(part), (1, 0))
            weight, depth = weight + inner[0], max(depth, inner[1] + 1)
        if weight > _MAX_HASHED or depth > _MAX_DEPTH:
            raise TooLargeError("it contains the same parts again and again")
        self._known[id(made)] = weight, depth
        self._alive.append(made)

    def hashed(self, keys: Iterable[Any]) -> None:
        """These values will be hashed. Raises TooLargeError if all hashed values together are too large."""
        self._room -= sum(self._known.get(id(key), (1, 0))[0] for key in keys)
        if self._room < 0:
            raise TooLargeError("it contains the same parts again and again")


def check_size(value: Any) -> None:
    """Raise TooLargeError if a value is nested too deeply, or its expanded size is too large."""
    weights: dict[int, int] = {}  # expanded size of each container
    ancestors: set[int] = set()  # ids of the containers around the current value
    stored = 0  # parts of all containers, each container once
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        each, all_inside_known = stack.pop()
        parts = _parts(each)
        if parts is None or id(each) in weights:
            continue
        if all_inside_known:
            ancestors.discard(id(each))
            stored += len(parts)
            weights[id(each)] = 1 + sum(weights.get(id(part), 1) for part in parts)
            continue
        if id(each) in ancestors:
            continue  # it contains itself; code that walks through values stops there
        if len(ancestors) >= _MAX_DEPTH:
            raise TooLargeError(f"it is nested deeper than {_MAX_DEPTH} values")
        ancestors.add(id(each))
        stack.append((each, True))
        stack += [(part, False) for part in parts]
    if weights.get(id(value), 1) > _ALWAYS_ALLOWED + _MAX_EXPANSION * stored:
        raise TooLargeError("it contains the same parts again and again")


def _parts(value: Any) -> list[Any] | None:
    """The parts of a container; None if `value` is not a container."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return None
