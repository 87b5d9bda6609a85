"""parting: the first tensor, in order of execution, whose statistics differ between two runs.

Functions without state; the thread of the runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.rules.measures.group_codes import dense
from tdcore.view.answers.arrow import coded, numbers, valid, whole_numbers
from tdcore.view.answers.places import at

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun

__all__ = ["parting"]

Ints = npt.NDArray[np.int64]

_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_VALUES = ("min", "max", "mean", "abs_sum", "square_sum")
_TEXTS = ("worker", "mode", "name")
_NUMBERS = ("mode_step", "call")
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # tolerances of SimilarAcrossRuns
_COLUMNS = (*_TEXTS, *_NUMBERS, "step", "seq", *_COUNTS, *_VALUES)


def parting(one: OpenRun, other: OpenRun) -> dict[str, Any]:
    """`Parting` of the contract: where `other` begins to differ from `one`.

    Two tensors with statistics are compared if worker, mode, step of the mode, name and call are equal.
    """
    rows = (one.rows, other.rows)
    known = one.partings.get(other.id)
    if known is None or known[0] != rows:
        known = one.partings[other.id] = (rows, _parting(one, other))
    return known[1]


def _parting(one: OpenRun, other: OpenRun) -> dict[str, Any]:
    here, there = (_rows(run) for run in (one, other))
    mine, theirs = _matched(here, there)
    found = {"run": other.id, "tensor": "", "at": None}
    if not len(mine):
        return {**found, "text": f"{one.name} and {other.name} have no tensor of the same step"}
    differs = np.zeros(len(mine), dtype=np.bool_)
    for name in _COUNTS:
        differs |= numbers(here, name)[mine] != numbers(there, name)[theirs]
    for name in _VALUES:
        pair = numbers(here, name)[mine], numbers(there, name)[theirs]
        differs |= ~np.isclose(*pair, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    if not differs.any():
        compared = f"{len(mine):,} tensors of {len(np.unique(whole_numbers(here, 'step')[mine])):,} steps"
        return {**found, "text": f"the statistics of {compared} are equal in {one.name} and {other.name}"}
    rows = mine[differs]
    keys = [whole_numbers(here, name)[rows] for name in ("seq", "step")]
    first = np.flatnonzero(differs)[np.lexsort(keys)[0]]
    row, twin = int(mine[first]), int(theirs[first])
    name, mode = (here.column(each)[row].as_py() for each in ("name", "mode"))
    place = at(
        one.trial, mode, int(here.column("mode_step")[row].as_py()), int(here.column("step")[row].as_py())
    )
    values = ", ".join(_differing(here, row, there, twin, one.name, other.name))
    return {**found, "tensor": name, "at": place, "text": f"{name} differs from {place['text']} on: {values}"}


def _differing(here: pa.Table, row: int, there: pa.Table, twin: int, one: str, other: str) -> list[str]:
    for name in (*_COUNTS, *_VALUES):
        a, b = (table.column(name)[at].as_py() for table, at in ((here, row), (there, twin)))
        if not np.isclose(float(a), float(b), rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True):
            return [f"{name} is {a:.6g} in {one} and {b:.6g} in {other}"]
    return []


def _rows(run: OpenRun) -> pa.Table:
    table = run.trial.stats(columns=_COLUMNS)
    return table.filter(pa.array(valid(table, "count")))


def _matched(here: pa.Table, there: pa.Table) -> tuple[Ints, Ints]:
    """Rows of both tables that describe the same tensor."""
    if not here.num_rows or not there.num_rows:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    key = np.zeros(here.num_rows + there.num_rows, dtype=np.int64)
    for name in (*_TEXTS, *_NUMBERS):
        part, span = dense(np.concatenate(_codes(here, there, name)))
        key, _ = dense(key * span + part)
    mine, theirs = key[: here.num_rows], key[here.num_rows :]
    order = np.argsort(theirs, kind="stable")
    place = np.minimum(np.searchsorted(theirs[order], mine), len(theirs) - 1)
    same = np.flatnonzero(theirs[order[place]] == mine)
    return same, order[place[same]]


def _codes(here: pa.Table, there: pa.Table, name: str) -> tuple[Ints, Ints]:
    """A column of both tables as numbers that are equal for equal values."""
    if name in _NUMBERS:
        return whole_numbers(here, name), whole_numbers(there, name)
    codes: dict[str, int] = {}
    found = []
    for table in (here, there):
        column, texts = coded(table, name)
        shared = [codes.setdefault(text, len(codes)) for text in texts]
        found.append(np.array(shared, dtype=np.int64)[column])
    return found[0], found[1]
