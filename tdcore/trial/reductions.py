"""Reductions: min, max, mean, std, variance, sum, prod, l1 and l2 of a tensor, with the results of NumPy.

The reductions are computed from saved statistics if possible, else from the values. Statistics describe the
finite values, so the effects of NaN and Inf are added here as in NumPy: with a NaN every reduction is NaN,
with +Inf and -Inf the sum is NaN, and so on. For an empty tensor min, max, mean, std and variance are NaN
(NumPy raises for min and max). Pure functions, any thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import ConfigError

__all__ = ["REDUCTIONS", "checked_name", "from_statistics", "from_values"]

REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod", "l1", "l2")


def checked_name(name: str) -> str:
    """Return a valid name. Raises ConfigError with the valid names. Names such as "norm1" are invalid."""
    if name not in REDUCTIONS:
        raise ConfigError(f"reduction {name!r} does not exist; use one of {', '.join(REDUCTIONS)}")
    return name


def from_statistics(name: str, absolute: bool, row: Mapping[str, Any]) -> float | None:
    """The reduction from a row's statistics columns; None if it cannot be computed from them (prod).

    The result is equal to NumPy's result in float64 except for rounding. absolute: Reduce |x| instead of x.
    """
    count, nan, pos, neg = (int(row[key]) for key in ("count", "nan_count", "pos_inf_count", "neg_inf_count"))
    if name == "prod":
        return None
    if nan:
        return float(math.nan)
    if absolute:
        pos, neg = pos + neg, 0
    finite = count - pos - neg
    if name in ("l1", "l2"):
        total = float(row["abs_sum"]) if name == "l1" else math.sqrt(row["square_sum"])
        return float(math.inf if pos + neg else total)
    if count == 0:
        return float(0.0 if name == "sum" else math.nan)
    if name == "min":
        lowest = float(row["abs_min" if absolute else "min"]) if finite else math.inf
        return float(-math.inf if neg else lowest)
    if name == "max":
        highest = float(row["abs_max" if absolute else "max"]) if finite else -math.inf
        return float(math.inf if pos else highest)
    if pos or neg:
        endless = math.nan if pos and neg else math.inf if pos else -math.inf
        return float(endless if name in ("mean", "sum") else math.nan)
    return float(_of_finite(name, absolute, row, finite))


def _of_finite(name: str, absolute: bool, row: Mapping[str, Any], finite: int) -> float:
    """sum, mean, variance and std of a tensor whose values are all finite."""
    mean, abs_sum = float(row["mean"]), float(row["abs_sum"])
    if name == "sum":
        return abs_sum if absolute else mean * finite
    if name == "mean":
        return abs_sum / finite if absolute else mean
    variance = float(row["m2"]) / finite
    if absolute and float(row["min"]) < 0 < float(row["max"]):
        abs_mean = abs_sum / finite
        variance += (mean - abs_mean) * (mean + abs_mean)  # because E|x|^2 = E x^2
    variance = max(variance, 0.0)
    return math.sqrt(variance) if name == "std" else variance


def from_values(name: str, absolute: bool, values: npt.NDArray[Any]) -> float:
    """The reduction of an array, in float64.

    Raises ConfigError for complex values, unless it is a reduction of |x| or a norm.
    """
    if values.dtype.kind == "c" and (absolute or name in ("l1", "l2")):
        values = np.abs(values)
    if values.dtype.kind == "c":
        raise ConfigError(f"{name} of complex values is not a real number; set abs=True, or use value()")
    x = np.ravel(values).astype(np.float64)
    if absolute:
        x = np.abs(x)
    if x.size == 0:
        return float({"prod": 1.0, "sum": 0.0, "l1": 0.0, "l2": 0.0}.get(name, math.nan))
    with np.errstate(all="ignore"):
        if name == "l1":
            return float(np.sum(np.abs(x)))
        if name == "l2":
            return float(np.sqrt(np.sum(np.square(x))))
        return float(getattr(np, "var" if name == "variance" else name)(x))
