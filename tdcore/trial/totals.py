"""Totals of a run: number of rows, bytes of values, and steps of each mode. Threads: see Trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.trial.step_blocks import whole_steps
from tdcore.trial.tensor_list import MODE_ORDER, detailed

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["Totals", "totals"]

Mask: TypeAlias = npt.NDArray[np.bool_]
_BLOCK_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the rows that a trial shows.

    Attributes:
        rows: Number of rows.
        payload_bytes: Size of the values that the rows refer to.
        modes: Mode -> first and last step of the mode, and number of its saved steps; in the order TRAIN,
            EVAL, PREDICT, GLOBAL.
    """

    rows: int
    payload_bytes: int
    modes: Mapping[str, tuple[int, int, int]]


def totals(reader: Reader) -> Totals:
    """The totals, as of the last refresh of the reader.

    Of files without details in their catalogue, two columns are read, in blocks of rows.
    """
    index, stretches, visible = reader.index, reader.index.stretches, reader.view.visible_stretches
    modes, mode_steps = (stretches.column(name)[visible] for name in ("mode", "mode_step"))
    texts, found = index.texts("mode"), {}
    for code in sorted(np.unique(modes).tolist(), key=lambda code: MODE_ORDER.index(texts[code])):
        steps = np.unique(mode_steps[modes == code])
        found[texts[code]] = (int(steps[0]), int(steps[-1]), len(steps))
    return Totals(
        rows=int(stretches.lengths[visible].sum()), payload_bytes=_payload_bytes(reader, visible), modes=found
    )


def _payload_bytes(reader: Reader, visible: Mask) -> int:
    index, rest, total = reader.index, visible.copy(), 0
    for entries, of_file in detailed(reader, visible):
        assert entries.details is not None
        total += int(entries.details.totals["nbytes"].sum())
        rest[of_file] = False
    chosen = np.flatnonzero(rest)
    for block in whole_steps(chosen, index.stretches.lengths[chosen], _BLOCK_ROWS):
        rows = index.stretches.rows_of(chosen[block])
        with index.hold(rows, ("segment", "nbytes")):
            total += int(index.column("nbytes")[rows][index.column("segment")[rows] >= 0].sum())
    return total
