"""Counts tensors that are given up, each once, however many batches its parts lie in.

One thread: the flusher's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["LostTensors"]

Key: TypeAlias = tuple[int, int, int, int]  # mode, step, name, call

_REMEMBERED = 4096  # tensors in parts of which more may come


class LostTensors:
    """Remembers which tensors in parts were counted already."""

    def __init__(self) -> None:
        self._counted: OrderedDict[Key, None] = OrderedDict()

    def count(self, rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> int:
        """Tensors with a row of `rows` that is given up, without those that were counted before."""
        whole = given_up & (rows["parts"] <= 1)
        return int(np.count_nonzero(whole)) + len(_in_parts(rows, given_up) - self._counted.keys())

    def remember(self, rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> None:
        """These were counted."""
        self._counted.update(dict.fromkeys(_in_parts(rows, given_up)))
        while len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)


def _in_parts(rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> set[Key]:
    pieces = rows[given_up & (rows["parts"] > 1)]
    columns = (pieces[name].tolist() for name in ("mode", "step", "name", "call"))
    return set(zip(*columns, strict=True))
