"""Blocks of whole steps, so that a query over a long run needs memory for one block.

Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["step_blocks"]

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
    steps, sizes = every.column("step")[chosen], every.lengths[chosen]
    of_block = (np.cumsum(sizes) - 1) // block_rows
    new_step = np.diff(steps, prepend=steps[:1] - 1) != 0
    starts = [0]
    for at in np.flatnonzero(new_step[1:]) + 1:
        if of_block[at] != of_block[starts[-1]]:
            starts.append(int(at))
    for begin, end in zip(starts, [*starts[1:], len(chosen)], strict=True):
        if begin == end:
            continue
        mask = np.zeros(len(every), dtype=np.bool_)
        mask[chosen[begin:end]] = True
        rows = reader.meant(index.find(selection.tests, mask), selection)
        if len(rows):
            yield rows
