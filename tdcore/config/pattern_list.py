"""PatternList: the patterns of a collection as a list whose changes take effect in the collection.

Threads: see Collection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex, TypeVar

__all__ = ["PatternList"]

_Self = TypeVar("_Self", bound="PatternList")


class PatternList(list[str]):
    """A list of texts. `replace` is called with the new texts before each change, and may raise.

    Copies and pickles are plain lists.
    """

    def __init__(self, texts: Iterable[str], replace: Callable[[list[str]], None]) -> None:
        super().__init__(texts)
        self._replace = replace

    def _become(self, texts: list[str]) -> None:
        self._replace(texts)
        super().__setitem__(slice(None), texts)

    def append(self, text: str) -> None:
        """See list."""
        self._become([*self, text])

    def extend(self, texts: Iterable[str]) -> None:
        """See list."""
        self._become([*self, *texts])

    def insert(self, index: SupportsIndex, text: str) -> None:
        """See list."""
        texts = list(self)
        texts.insert(index, text)
        self._become(texts)

    def remove(self, text: str) -> None:
        """See list."""
        texts = list(self)
        texts.remove(text)
        self._become(texts)

    def pop(self, index: SupportsIndex = -1) -> str:
        """See list."""
        texts = list(self)
        found = texts.pop(index)
        self._become(texts)
        return found

    def clear(self) -> None:
        """See list."""
        self._become([])

    def __setitem__(self, index: Any, value: Any) -> None:
        texts = list(self)
        texts[index] = value
        self._become(texts)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        texts = list(self)
        del texts[index]
        self._become(texts)

    def __iadd__(self: _Self, texts: Iterable[str]) -> _Self:  # type: ignore[override, misc]  # as list
        self.extend(texts)
        return self

    def __imul__(self: _Self, times: SupportsIndex) -> _Self:
        self._become(list(self) * times)
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)
