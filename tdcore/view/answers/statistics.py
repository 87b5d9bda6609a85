"""Statistics of tensors that the pages can show, computed from columns of Trial.stats(). Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["BAD_COLUMNS", "COMMON", "STATISTICS", "UPDATE_RATIO", "Statistic", "bad_counts"]

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, Floats]
Scale = Literal["log", "linear", "share", "diverging"]

BAD_COLUMNS = ("count", "nan_count", "pos_inf_count", "neg_inf_count")
UPDATE_RATIO = "update_ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """A statistic of one tensor at one step.

    Attributes:
        id: Name in requests.
        label: Name for people.
        scale: Scale of colours.
        columns: Columns of Trial.stats() that it is computed from, in addition to BAD_COLUMNS.
        of: Computes it from the columns, NaN where a tensor has no statistics.
    """

    id: str
    label: str
    scale: Scale
    columns: tuple[str, ...]
    of: Callable[[Columns], Floats]

    def to_json(self) -> dict[str, Any]:
        """`Statistic` of the contract."""
        return {"id": self.id, "label": self.label, "scale": self.scale}


def bad_counts(columns: Columns) -> Floats:
    """Number of elements that are NaN or infinite."""
    return columns["nan_count"] + columns["pos_inf_count"] + columns["neg_inf_count"]


def _finite(columns: Columns) -> Floats:
    number = columns["count"] - bad_counts(columns)
    return np.where(number > 0, number, np.nan)


def _abs_mean(columns: Columns) -> Floats:
    return columns["abs_sum"] / _finite(columns)


def _rms(columns: Columns) -> Floats:
    return np.sqrt(columns["square_sum"] / _finite(columns))


def _std(columns: Columns) -> Floats:
    return np.sqrt(np.maximum(columns["m2"], 0.0) / _finite(columns))


def _l2(columns: Columns) -> Floats:
    return np.where(np.isnan(_finite(columns)), np.nan, np.sqrt(columns["square_sum"]))


def _zero_share(columns: Columns) -> Floats:
    return columns["zero_count"] / np.where(columns["count"] > 0, columns["count"], np.nan)


def _bad_share(columns: Columns) -> Floats:
    return bad_counts(columns) / np.where(columns["count"] > 0, columns["count"], np.nan)


def _column(name: str) -> Callable[[Columns], Floats]:
    return lambda columns: columns[name]


def _made(id: str, label: str, scale: Scale, columns: str, of: Callable[[Columns], Floats]) -> Statistic:  # noqa: A002
    return Statistic(id=id, label=label, scale=scale, columns=tuple(columns.split()), of=of)


COMMON = {
    each.id: each
    for each in (
        _made("abs_mean", "mean magnitude", "log", "abs_sum", _abs_mean),
        _made("l2", "L2 norm", "log", "square_sum", _l2),
        _made("rms", "root mean square", "log", "square_sum", _rms),
        _made("std", "standard deviation", "log", "m2", _std),
        _made("abs_max", "largest magnitude", "log", "abs_max", _column("abs_max")),
        _made("mean", "mean", "diverging", "mean", _column("mean")),
        _made("min", "smallest element", "diverging", "min", _column("min")),
        _made("max", "largest element", "diverging", "max", _column("max")),
        _made("zero_share", "share of zeros", "share", "zero_count", _zero_share),
        _made("bad_share", "share of NaN and infinite", "share", "", _bad_share),
        _made("bad_count", "number of NaN and infinite", "log", "", bad_counts),
    )
}
"""Statistics of a single step, by id."""

STATISTICS = {
    **COMMON,
    UPDATE_RATIO: _made(
        UPDATE_RATIO,
        "update ratio: change per step",
        "log",
        "min max mean m2 abs_sum square_sum",
        _column(UPDATE_RATIO),
    ),
}
"""All statistics, by id. The update ratio compares two steps, see tdcore/view/answers/changes.py."""
