"""Regular expressions that come from a run and not from the user, searched by an engine that cannot hang.

A regular expression in collections.json, or in the rules that a run names, is untrusted. Python's `re`
backtracks, so a pattern of ten characters can take years for a name of forty. RE2, which is part of pyarrow,
takes time in proportion to the text. RE2 has no look-around, no back references, and no possessive or atomic
groups. `\\d`, `\\w` and `\\s` match ASCII only, and `$` matches at the very end only. A pattern that RE2
cannot run, or that takes longer than RunPatterns allows, matches nothing and is listed in `refused`; names
that the hook listed are still members. Patterns from the user are searched with `re`.

Threads: an object belongs to one reader. pyarrow is imported when the first name is searched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

__all__ = ["RunPattern", "RunPatterns"]

_SECONDS = 5.0  # CPU time for all patterns of a run
_MAX_CHARS = 1 << 16  # maximum length of a pattern
_BATCH_CHARS = 1 << 16  # total length of names that are searched between two checks of the time
_SHOWN = 120
_REMARKS = 5


class RunPatterns:
    """Compiles and searches the patterns of one run.

    Attributes:
        seconds: CPU time of this thread that all patterns together may take.
        refused: Pattern -> why it is not used.
        clock: For tests.
    """

    def __init__(self, seconds: float = _SECONDS, clock: Callable[[], float] = time.thread_time) -> None:
        self.refused: dict[str, str] = {}
        self._left = seconds
        self._clock = clock

    def compile(self, text: str) -> RunPattern:
        """Compile a pattern. Never raises: see `refused`."""
        return RunPattern(text, self)

    def matching(self, texts: Iterable[str], names: Sequence[str]) -> set[str]:
        """The names in which at least one of the patterns is found."""
        return {name for text in texts for name in self.search(text, names)}

    def remarks(self) -> list[str]:
        """A sentence for each of the first refused patterns, and the number of further patterns."""
        found = [
            f"the run's pattern {text[:_SHOWN]!r} is not searched with ({why}); only the tensors "
            "that are listed by name belong to the collection"
            for text, why in list(self.refused.items())[:_REMARKS]
        ]
        more = len(self.refused) - _REMARKS
        return found + ([f"... and {more:,} more patterns of the run"] if more > 0 else [])

    def search(self, text: str, names: Sequence[str]) -> list[str]:
        """The names in which the pattern is found, in their order."""
        if text in self.refused:
            return []
        if len(text) > _MAX_CHARS:
            self.refused[text] = f"it has {len(text):,} characters"
            return []
        found: list[str] = []
        for batch in _batches(names):
            if self._left <= 0:
                self.refused[text] = "the patterns of this run take too long"
                return []
            start = self._clock()
            try:
                found += _search(text, batch)
            except ValueError as error:  # from Arrow, or for text that cannot be encoded
                self.refused[text] = str(error).partition("\n")[0][:_SHOWN]
                return []
            finally:
                self._left -= self._clock() - start
        return found


class RunPattern:
    """One pattern, with the two members of a compiled pattern that a Collection uses."""

    def __init__(self, text: str, engine: RunPatterns) -> None:
        self.pattern = text
        self._engine = engine
        self._known: frozenset[str] = frozenset()
        self._found: frozenset[str] = frozenset()

    def expect(self, names: Sequence[str]) -> None:
        """Search all these names now, because search() will be called with each of them."""
        self._known = frozenset(names)
        self._found = frozenset(self._engine.search(self.pattern, names))

    def search(self, name: str) -> bool:
        """Whether the pattern is found in the name."""
        return name in self._found if name in self._known else bool(self._engine.search(self.pattern, [name]))


def _batches(names: Sequence[str]) -> Iterable[Sequence[str]]:
    first = size = 0
    for at, name in enumerate(names):
        size += len(name)
        if size > _BATCH_CHARS:
            yield names[first : at + 1]
            first, size = at + 1, 0
    if first < len(names):
        yield names[first:]


def _search(text: str, names: Sequence[str]) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    array = pa.array(names, pa.string())
    found: list[str] = array.filter(pc.match_substring_regex(array, pattern=text)).to_pylist()
    return found
