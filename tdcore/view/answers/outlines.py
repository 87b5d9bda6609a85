"""Outlines: the cells of a heat map that findings describe. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tdcore.view.answers.buckets import StepColumns

if TYPE_CHECKING:
    from tdcore.rules.base import Finding

__all__ = ["OutlinedCells", "outlined_cells"]


class OutlinedCells(NamedTuple):
    """Cells of one row of a heat map, from the first to the last column, both included."""

    row: int
    first: int
    last: int
    finding: Finding


def outlined_cells(
    findings: Iterable[Finding], names: Sequence[str], mode: str, worker: str, over: StepColumns
) -> Iterator[OutlinedCells]:
    """The cells of findings in the shown tensors and steps.

    Args:
        findings: The findings.
        names: Tensor of each row.
        mode: Mode of the steps.
        worker: Name of the worker; "" for all workers.
        over: Columns of the heat map.
    """
    rows = {name: row for row, name in enumerate(names)}
    for finding in findings if len(over) else ():
        row = rows.get(finding.tensor)
        if row is None or finding.mode != mode or (worker and finding.worker != worker):
            continue
        newest = finding.mode_step if finding.last_mode_step is None else finding.last_mode_step
        first = int(np.searchsorted(over.last, finding.mode_step))
        last = int(np.searchsorted(over.first, newest, side="right")) - 1
        if first <= last:
            yield OutlinedCells(row, first, last, finding)
