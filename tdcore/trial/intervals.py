"""Intervals: the tickets of one worker's ring that were read.

Threads: an object belongs to one reader. Does no input or output.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["Intervals"]


class Intervals:
    """A set of tickets as sorted, disjoint, inclusive ranges that never touch each other."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, first: int, last: int) -> None:
        """Add first..last, inclusive."""
        left = bisect_left(self._lasts, first - 1)  # the first range that reaches first - 1 or beyond
        right = bisect_right(self._firsts, last + 1)  # one past the last range that starts by last + 1
        if left < right:
            first = min(first, self._firsts[left])
            last = max(last, self._lasts[right - 1])
        self._firsts[left:right] = [first]
        self._lasts[left:right] = [last]

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first..last that are not in the set, in order."""
        found: list[tuple[int, int]] = []
        position = first
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                break
            if self._firsts[at] > position:
                found.append((position, self._firsts[at] - 1))
            position = self._lasts[at] + 1
        if position <= last:
            found.append((position, last))
        return found

    def present(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of first..last that are in the set, in order."""
        found: list[tuple[int, int]] = []
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                break
            found.append((max(first, self._firsts[at]), min(last, self._lasts[at])))
        return found

    @property
    def end(self) -> int:
        """The ticket after the largest one; 0 if it is empty."""
        return self._lasts[-1] + 1 if self._lasts else 0

    def holes(self) -> list[tuple[int, int]]:
        """Missing ranges between ticket 0 and the largest ticket."""
        return self.missing(0, self.end - 1)
