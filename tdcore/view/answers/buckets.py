"""Buckets: reduction of many values to pixel columns, with mean, least and largest value of each column.

A column is a range of steps. If there are at least as many columns as steps, each step has its own column.
Otherwise the columns divide the range of steps into equal parts, and parts without a step are left out. Pure
functions, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.group_codes import dense
from tdcore.view.answers.packing import Packed, pack_doubles, pack_floats, pack_ints

__all__ = ["Floats", "Ints", "Mask", "Reduced", "StepColumns", "points", "reduced"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepColumns:
    """Pixel columns of a list of steps.

    Attributes:
        first, last: First and last step of each column, ascending; shape (columns,).
        of_row: The column of each given step, in the given order.
    """

    first: Ints
    last: Ints
    of_row: Ints

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def over(cls, steps: npt.NDArray[Any], columns: int) -> StepColumns:
        """The columns of these steps, in any order, possibly repeated.

        columns: maximum number of columns.
        """
        steps = np.asarray(steps, dtype=np.int64)
        if not steps.size:
            return cls(first=steps, last=steps, of_row=steps)
        place, number = dense(steps)
        distinct = np.empty(number, dtype=np.int64)
        distinct[place] = steps
        if number <= columns:
            return cls(first=distinct, last=distinct, of_row=place)
        # The product comes first: a step at the border of two columns is then a whole number.
        share = (distinct - float(distinct[0])) * columns / (float(distinct[-1]) - float(distinct[0]))
        part, used = dense(np.minimum(share.astype(np.int64), columns - 1))
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        ends = np.append(starts[1:], number) - 1
        assert used == len(starts)
        return cls(first=distinct[starts], last=distinct[ends], of_row=part[place])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduced:
    """Values, reduced to groups. Arrays of shape (groups,); NaN for a group without a finite value.

    Attributes:
        mean, min, max: Of the finite values.
        finite: Number of finite values.
    """

    mean: Floats
    min: Floats
    max: Floats
    finite: Ints


def reduced(values: Floats, group: Ints, size: int) -> Reduced:
    """Reduce values to `size` groups. group: the group of each value."""
    good = np.isfinite(values)
    if not good.all():
        values, group = values[good], group[good]
    count: Ints = np.bincount(group, minlength=size)
    with np.errstate(all="ignore"):
        total = np.bincount(group, weights=values, minlength=size)
        mean = total / count
        if not np.isfinite(total).all():  # the sum exceeds the range of float64, the mean does not
            shares = np.bincount(group, weights=values / count[group], minlength=size)
            mean = shares.astype(np.float64)
    least, most = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(least, group, values)
    np.maximum.at(most, group, values)
    mean = np.clip(mean, least, most)  # rounding may move the mean of equal values
    for each in (mean, least, most):
        each[count == 0] = np.nan
    return Reduced(mean=mean, min=least, max=most, finite=count.astype(np.int64))


def points(
    steps: npt.NDArray[Any], values: Floats, columns: int, *, bad: Mask | None = None, unit: float = 1.0
) -> dict[str, Packed]:
    """`Points` of the contract: a curve, reduced to at most `columns` columns.

    Args:
        steps: Step of each value.
        values: The values.
        columns: Maximum number of columns.
        bad: Whether each value counts as NaN or infinite, in addition to the values that are.
        unit: Number that the steps are multiplied by in the result.
    """
    over = StepColumns.over(steps, columns)
    found = reduced(values, over.of_row, len(over))
    wrong = ~np.isfinite(values) if bad is None else bad | ~np.isfinite(values)
    return {
        "step": pack_doubles(over.first * unit),
        "mean": pack_floats(found.mean),
        "min": pack_floats(found.min),
        "max": pack_floats(found.max),
        "bad": pack_ints(np.bincount(over.of_row, weights=wrong, minlength=len(over))),
    }
