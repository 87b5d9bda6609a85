"""TextDictionary: dictionary encoding of one text column over the whole index.

Threads: an object belongs to one reader, whose threads may call codes() at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["TextDictionaries", "TextDictionary"]


class TextDictionary:
    """Distinct texts in the order of their first occurrence. The code of a text is its position."""

    __slots__ = ("_array", "_code", "_last", "_lock", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._code: dict[str, int] = {}
        self._array: pa.Array | None = None
        self._lock = Lock()
        self._last: tuple[pa.Array, str, npt.NDArray[np.int64]] | None = None  # the last call of codes_of()

    def __len__(self) -> int:
        return len(self.texts)

    def code(self, text: str) -> int:
        """The code of a text; -1 if the column does not have it."""
        return self._code.get(text, -1)

    def codes(self, texts: Sequence[str | None]) -> npt.NDArray[np.int64]:
        """Codes of several texts; new texts are added. The code of None is -1."""
        found = np.empty(len(texts), dtype=np.int64)
        for at, text in enumerate(texts):
            if text is None:
                found[at] = -1
                continue
            code = self._code.get(text)
            found[at] = self._added(text) if code is None else code
        return found

    def codes_of(
        self, texts: pa.Array, place: str, check: Callable[[list[str | None]], None]
    ) -> npt.NDArray[np.int64]:
        """Codes of the dictionary of an Arrow column. The row groups of a file often have equal dictionaries.

        Args:
            texts: The dictionary.
            place: The file of the column.
            check: Checks the texts; called unless the last call had equal texts of the same file.
        """
        last = self._last
        if last is not None and last[1] == place and last[0].equals(texts):
            return last[2]
        words = texts.to_pylist()
        check(words)
        codes = self.codes(words)
        self._last = (texts, place, codes)
        return codes

    def _added(self, text: str) -> int:
        """The code of a text, which is added unless another thread has added it."""
        with self._lock:
            code = self._code.get(text)
            if code is None:
                code = len(self.texts)
                self.texts.append(text)
                self._code[text] = code
            return code

    def to_arrow(self, codes: npt.NDArray[np.integer]) -> pa.DictionaryArray:
        """Codes as an Arrow column of texts; -1 becomes null."""
        if len(codes) * 4 < len(self.texts):  # few rows: only the texts that they use
            used, positions = np.unique(codes, return_inverse=True)
            if len(used) and used[0] < 0:
                used, positions = used[1:], positions - 1
            dictionary = pa.array([self.texts[code] for code in used.tolist()], pa.string())
        else:
            if self._array is None or len(self._array) != len(self.texts):
                self._array = pa.array(self.texts, pa.string())
            dictionary, positions = self._array, codes
        indices = pa.array(positions.astype(np.int32), mask=positions < 0)
        return pa.DictionaryArray.from_arrays(indices, dictionary)


class TextDictionaries(dict[str, TextDictionary]):
    """One TextDictionary per column, made on first access."""

    def __missing__(self, name: str) -> TextDictionary:
        made = self[name] = TextDictionary()
        return made
