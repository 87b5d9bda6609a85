"""Answer `partings`: the first tensor, in order of execution, whose statistics differ between two runs.

Functions without state; the thread of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.rules.measures.group_codes import dense
from tdcore.view.answers.arrow import coded, numbers, valid, whole_numbers
from tdcore.view.answers.frame import rows_of
from tdcore.view.answers.places import at

if TYPE_CHECKING:
    from tdcore.modes import ModeKeys
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.answers.parameters import Parameters

__all__ = ["PARAMETERS", "answer"]

Ints = npt.NDArray[np.int64]

_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
_VALUES = ("min", "max", "mean", "abs_sum", "square_sum")
_TEXTS = ("worker", "mode", "name")
_NUMBERS = ("mode_step", "call")
_RELATIVE, _ABSOLUTE = 1e-5, 1e-8  # tolerances of SimilarAcrossRuns
_FIRST_ROWS, _MOST_ROWS = 50_000, 500_000  # of a block
_COLUMNS = (*_TEXTS, *_NUMBERS, "step", "seq", *_COUNTS, *_VALUES)


PARAMETERS: tuple[str, ...] = ()


def answer(runs: Sequence[OpenRun], parameters: Parameters) -> dict[str, Any]:
    """`Partings` of the contract: where each run begins to differ from the first run.

    Two tensors with statistics are compared if worker, mode, step of the mode, name and call are equal. The
    rows of both runs are read in blocks of steps, up to the first block with a difference.
    """
    return {"parts": [_known_parting(runs[0], other) for other in runs[1:]]}


def _known_parting(one: OpenRun, other: OpenRun) -> dict[str, Any]:
    rows = (one.rows, other.rows)
    known = one.partings.get(other.id)
    if known is None or known[0] != rows:
        known = one.partings[other.id] = (rows, _parting(one, other))
    return known[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """The first difference in one mode. position: global step and order of execution, in the first run."""

    position: tuple[int, int]
    tensor: str
    mode: str
    mode_step: int
    values: str


def _parting(one: OpenRun, other: OpenRun) -> dict[str, Any]:
    both = {mode.name for mode in other.trial.modes()}
    compared, steps, differences = 0, 0, list[_Difference]()
    for mode in one.trial.modes():
        if mode.name in both:
            for block in _blocks(one, mode):
                tensors, of_steps, difference = _compared(one, other, mode.name, block)
                compared, steps = compared + tensors, steps + of_steps
                if difference is not None:
                    differences.append(difference)
                    break
    found: dict[str, Any] = {"run": other.id, "tensor": "", "at": None}
    if differences:
        first = min(differences, key=lambda each: each.position)
        place = at(one.trial, first.mode, first.mode_step, first.position[0])
        text = f"the first difference is in {first.tensor} at {place['text']}: {first.values}"
        return {**found, "tensor": first.tensor, "at": place, "text": text}
    if not compared:
        return {**found, "text": f"no tensor of the same step is in {one.name} and {other.name}"}
    what = f"{compared:,} tensors of {steps:,} steps"
    return {**found, "text": f"the statistics of {what} are equal in {one.name} and {other.name}"}


def _blocks(run: OpenRun, mode: ModeKeys) -> Iterator[tuple[int, int]]:
    """First and last step of blocks of steps of a mode; the first blocks have fewer rows."""
    steps = run.trial.steps(mode, show_incomplete_steps=True)
    per_step = max(1, run.rows // max(1, len(run.trial.steps(show_incomplete_steps=True))))
    begin, rows = 0, _FIRST_ROWS
    while begin < len(steps):
        end = min(len(steps), begin + max(1, rows // per_step))
        yield steps[begin], steps[end - 1]
        begin, rows = end, min(_MOST_ROWS, 4 * rows)


def _compared(
    one: OpenRun, other: OpenRun, mode: str, steps: tuple[int, int]
) -> tuple[int, int, _Difference | None]:
    """Compare the rows of some steps: numbers of compared tensors and steps, and the first difference."""
    here, there = (_rows(run, mode, steps) for run in (one, other))
    mine, theirs = _matched(here, there)
    differs = np.zeros(len(mine), dtype=np.bool_)
    for name in _COUNTS:
        differs |= numbers(here, name)[mine] != numbers(there, name)[theirs]
    for name in _VALUES:
        pair = numbers(here, name)[mine], numbers(there, name)[theirs]
        differs |= ~np.isclose(*pair, rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True)
    count = len(np.unique(whole_numbers(here, "step")[mine]))
    if not differs.any():
        return len(mine), count, None
    keys = [whole_numbers(here, name)[mine[differs]] for name in ("seq", "step")]
    first = np.flatnonzero(differs)[np.lexsort(keys)[0]]
    row, twin = int(mine[first]), int(theirs[first])
    step, seq, mode_step = (int(here.column(name)[row].as_py()) for name in ("step", "seq", "mode_step"))
    values = ", ".join(_differing(here, row, there, twin, one.name, other.name))
    name = here.column("name")[row].as_py()
    return (
        len(mine),
        count,
        _Difference(position=(step, seq), tensor=name, mode=mode, mode_step=mode_step, values=values),
    )


def _differing(here: pa.Table, row: int, there: pa.Table, twin: int, one: str, other: str) -> list[str]:
    for name in (*_COUNTS, *_VALUES):
        a, b = (table.column(name)[at].as_py() for table, at in ((here, row), (there, twin)))
        if not np.isclose(float(a), float(b), rtol=_RELATIVE, atol=_ABSOLUTE, equal_nan=True):
            return [f"{name} is {a:.6g} in {one} and {b:.6g} in {other}"]
    return []


def _rows(run: OpenRun, mode: str, steps: tuple[int, int]) -> pa.Table:
    table = rows_of(run.trial, None, mode=mode, steps=steps, columns=_COLUMNS)
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
