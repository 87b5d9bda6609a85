"""Plain size: how large a value is when it is written out, with each part as often as it is there.

A list that holds another twice, which holds a third twice, and so on, has as many parts as a file has bytes
and is exponentially large for all that walks through it: repr(), ==, hash(). Plain functions; any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

__all__ = ["ExpandedSizes", "TooLargeError", "check_size"]

_MAX_HASHED = 100_000  # parts of a key, written out
_MAX_DEPTH = 100
_REPEATED = 16  # times as large as its parts a whole value may be, written out
_ALWAYS = 100_000  # parts that are never too many


class TooLargeError(Exception):
    """A value holds its own parts again and again, or is nested too deep."""


class ExpandedSizes:
    """Sizes of tuples, frozen sets and dataclasses as they are made, before anything hashes them.

    stored: bytes of the file that they come from.
    """

    def __init__(self, stored: int) -> None:
        self._room = _ALWAYS + _REPEATED * stored  # parts that may be hashed
        self._known: dict[int, tuple[int, int]] = {}  # id -> parts and depth
        self._alive: list[Any] = []  # so that ids stay theirs

    def add(self, made: Any, parts: Iterable[Any] | None = None) -> None:
        """Add a new value and its parts to the count. Raises TooLargeError."""
        weight = depth = 1
        for part in made if parts is None else parts:
            inner = self._known.get(id(part), (1, 0))
            weight, depth = weight + inner[0], max(depth, inner[1] + 1)
        if weight > _MAX_HASHED or depth > _MAX_DEPTH:
            raise TooLargeError("it holds its own parts again and again")
        self._known[id(made)] = weight, depth
        self._alive.append(made)

    def hashed(self, keys: Iterable[Any]) -> None:
        """These are about to be hashed. Raises TooLargeError when that were too much in all."""
        self._room -= sum(self._known.get(id(key), (1, 0))[0] for key in keys)
        if self._room < 0:
            raise TooLargeError("it holds its own parts again and again")


def check_size(value: Any) -> None:
    """Raises TooLargeError for what is nested very deep, or much larger written out than its parts are."""
    weights: dict[int, int] = {}  # of each container, written out
    ancestors: set[int] = set()  # of what is looked at
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
            continue  # it holds itself: all that walks through values ends there
        if len(ancestors) >= _MAX_DEPTH:
            raise TooLargeError(f"it is nested deeper than {_MAX_DEPTH} values")
        ancestors.add(id(each))
        stack.append((each, True))
        stack += [(part, False) for part in parts]
    if weights.get(id(value), 1) > _ALWAYS + _REPEATED * stored:
        raise TooLargeError("it holds its own parts again and again")


def _parts(value: Any) -> list[Any] | None:
    """What a container holds; None for what is none."""
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in fields(value)]
    return None
