"""Blocks of whole steps, so that a query over a long run needs memory for one block.

Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["step_blocks", "whole_steps"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


def step_blocks(reader: Reader, selection: Selection, stretches: Mask, block_rows: int) -> Iterator[Ints]:
    """Rows of a selection in blocks of whole global steps, in order of steps.

    Args:
        reader: The run, as of its last refresh.
        selection: Filters of the rows.
        stretches: Mask of the stretches of the selection whose rows are returned.
        block_rows: Approximate number of rows of a block. A step with more rows is one block.
    """
    index, every = reader.index, reader.index.stretches
    chosen = np.flatnonzero(stretches)
    chosen = chosen[np.argsort(every.column("step")[chosen], kind="stable")]
    for block in whole_steps(every.column("step")[chosen], every.lengths[chosen], block_rows):
        mask = np.zeros(len(every), dtype=np.bool_)
        mask[chosen[block]] = True
        rows = reader.meant(index.find(selection.tests, mask), selection)
        if len(rows):
            yield rows


def whole_steps(steps: Ints, rows: Ints, block_rows: int) -> Iterator[slice]:
    """Blocks of neighbouring elements, such as stretches. All elements of a step are in one block.

    Args:
        steps: The step of each element; those of one step are neighbours.
        rows: The number of rows of each element.
        block_rows: Approximate number of rows of a block.
    """
    if not len(steps):
        return
    new = np.ones(len(steps), dtype=np.bool_)
    new[1:] = steps[1:] != steps[:-1]
    before = np.cumsum(rows) - rows
    block = (before[new] // block_rows)[np.cumsum(new) - 1]  # that of the first element of the step
    cuts = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(steps)]
    for begin, end in pairwise(cuts):
        yield slice(begin, end)
