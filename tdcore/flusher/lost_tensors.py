"""LostTensors: count of tensors whose payload was dropped, each once, even with parts in several batches.

This module is separate from backlog.py because it imports NumPy. Threads: only the flusher's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["LostTensors"]

Key: TypeAlias = tuple[int, int, int, int]  # mode, step, name, call

_REMEMBERED = 4096  # number of stored tensors that may get more parts


class LostTensors:
    """The tensors in several parts that were already counted."""

    def __init__(self) -> None:
        self._counted: OrderedDict[Key, None] = OrderedDict()

    def count(self, rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> int:
        """Number of tensors with a dropped row, without the tensors that were counted before."""
        whole = given_up & (rows["parts"] <= 1)
        return int(np.count_nonzero(whole)) + len(_in_parts(rows, given_up) - self._counted.keys())

    def remember(self, rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> None:
        """Record that the tensors with a dropped row were counted."""
        self._counted.update(dict.fromkeys(_in_parts(rows, given_up)))
        while len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)


def _in_parts(rows: np.ndarray[Any, np.dtype[np.void]], given_up: npt.NDArray[np.bool_]) -> set[Key]:
    pieces = rows[given_up & (rows["parts"] > 1)]
    columns = (pieces[name].tolist() for name in ("mode", "step", "name", "call"))
    return set(zip(*columns, strict=True))
