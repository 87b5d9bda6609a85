"""Statistics of one tensor from a single pass over its values.

`tensor_stats(x)` reads any tensor in host memory; `TensorStats` holds the result. Statistics describe the
finite values; NaN and Inf are counted separately. Each reduction therefore has two values:

    stats.mean               mean of the finite values: still useful if one element of a million is NaN
    stats.reduction("mean")  the result of NumPy: NaN if there is a NaN, Inf if there is an Inf

merge_stats([a, b]) returns the statistics of all values of both parts, as if the parts had been one tensor.
Pure functions, any thread. Accuracy (csrc/stats/cpu.hpp): counts, min, max and the histogram are exact; the
error of a sum is at most 1e-11 (float16 and bfloat16: 1e-6) times the sum of |x|.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore import _core

__all__ = ["LOG2_BINS", "STATS_DTYPE", "TensorStats", "merge_stats", "tensor_stats"]

STATS_DTYPE: np.dtype[Any] = np.dtype(_core.STATS_DTYPE)
LOG2_BINS = 64

_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count")


class TensorStats:
    """Statistics of one tensor. Immutable; two objects are equal if all numbers are (NaN equals NaN).

    All values except the counts describe the finite elements. Without finite elements min, max, mean, std,
    variance and their abs_ versions are NaN, and the sums are 0. Standard deviation and variance are those of
    the population.
    """

    __slots__ = ("_values",)
    _values: dict[str, Any]

    def __init__(self, record: np.void | Mapping[str, Any]) -> None:
        """Create the object from one element of an array of STATS_DTYPE, or from a mapping of its fields."""
        names = STATS_DTYPE.names or ()
        values: dict[str, Any] = {
            name: (int if name in _COUNTS else float)(record[name]) for name in names[:-1]
        }
        histogram = np.array(record["log2_counts"], dtype=np.uint64)
        if histogram.shape != (LOG2_BINS,):
            raise ValueError(f"log2_counts must have {LOG2_BINS} bins, got shape {histogram.shape}")
        histogram.flags.writeable = False
        values["log2_counts"] = histogram
        object.__setattr__(self, "_values", values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"TensorStats is immutable; {name!r} cannot be set")

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, TensorStats) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.to_bytes())

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorStats.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        bad = "".join(f", {name}={self._values[name]}" for name in _COUNTS[1:4] if self._values[name])
        return (
            f"TensorStats(count={self.count}{bad}, min={self.min:.6g}, max={self.max:.6g}, "
            f"mean={self.mean:.6g}, std={self.std:.6g})"
        )

    @classmethod
    def from_bytes(cls, packed: bytes) -> TensorStats:
        """Create an object from one packed STATS_DTYPE record, the result of _core.stats."""
        return cls(np.frombuffer(packed, STATS_DTYPE, count=1)[0])

    def to_bytes(self) -> bytes:
        """Return one packed STATS_DTYPE record."""
        record = np.zeros((), STATS_DTYPE)
        for name, value in self._values.items():
            record[name] = value
        return record.tobytes()

    # ---- counts ----

    @property
    def count(self) -> int:
        """Number of all elements."""
        return int(self._values["count"])

    @property
    def nan_count(self) -> int:
        """Number of NaN elements."""
        return int(self._values["nan_count"])

    @property
    def pos_inf_count(self) -> int:
        """Number of +Inf elements."""
        return int(self._values["pos_inf_count"])

    @property
    def neg_inf_count(self) -> int:
        """Number of -Inf elements."""
        return int(self._values["neg_inf_count"])

    @property
    def zero_count(self) -> int:
        """Number of elements that are +0 or -0."""
        return int(self._values["zero_count"])

    @property
    def subnormal_count(self) -> int:
        """Number of elements that are subnormal in the tensor's own dtype: tiny, but not zero."""
        return int(self._values["subnormal_count"])

    @property
    def finite_count(self) -> int:
        """Number of elements that are neither NaN nor Inf."""
        return self.count - self.nan_count - self.pos_inf_count - self.neg_inf_count

    @property
    def log2_counts(self) -> npt.NDArray[np.uint64]:
        """Histogram of finite non-zero |x|, 64 bins, read-only.

        Bin i counts 2^(i-40) <= |x| < 2^(i-39). The first bin also counts all smaller values, the last bin
        all larger values.
        """
        histogram: npt.NDArray[np.uint64] = self._values["log2_counts"]
        return histogram

    # ---- over finite values ----

    @property
    def min(self) -> float:
        """Smallest value."""
        return float(self._values["min"])

    @property
    def max(self) -> float:
        """Largest value."""
        return float(self._values["max"])

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return float(self._values["mean"])

    @property
    def m2(self) -> float:
        """Sum of (x - mean)^2, i.e. variance * finite_count. Inf if squares exceed the range of float64."""
        return float(self._values["m2"])

    @property
    def variance(self) -> float:
        """Population variance."""
        return self.m2 / self.finite_count if self.finite_count else math.nan

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return math.sqrt(self.variance)

    @property
    def sum(self) -> float:
        """Sum, computed from the mean. The error is at most 1e-11 times the sum of |x|, also for integers."""
        return self.mean * self.finite_count if self.finite_count else 0.0

    @property
    def l1(self) -> float:
        """L1 norm: sum of |x|."""
        return float(self._values["abs_sum"])

    @property
    def square_sum(self) -> float:
        """Sum of x^2. Inf if squares exceed the range of float64."""
        return float(self._values["square_sum"])

    @property
    def l2(self) -> float:
        """L2 norm: root of the sum of x^2."""
        return math.sqrt(self.square_sum)

    @property
    def abs_min(self) -> float:
        """Smallest |x|."""
        return float(self._values["abs_min"])

    @property
    def abs_max(self) -> float:
        """Largest |x|."""
        return float(self._values["abs_max"])

    @property
    def abs_sum(self) -> float:
        """Sum of |x|; the same as l1."""
        return self.l1

    @property
    def abs_mean(self) -> float:
        """Mean of |x|."""
        return self.l1 / self.finite_count if self.finite_count else math.nan

    @property
    def abs_variance(self) -> float:
        """Population variance of |x|. Error if both signs occur: at most 1e-11 times the mean square."""
        if not self.min < 0 < self.max:
            return self.variance  # all values have the same sign
        return max(0.0, self.variance + (self.mean - self.abs_mean) * (self.mean + self.abs_mean))

    @property
    def abs_std(self) -> float:
        """Population standard deviation of |x|."""
        return math.sqrt(self.abs_variance)

    def reduction(self, name: str, *, absolute: bool = False) -> float:
        """A reduction with the same result as NumPy: NaN and Inf among the values propagate.

        Args:
            name: min, max, mean, std, variance, sum, l1 or l2.
            absolute: Reduce |x| instead of x.

        Raises:
            ConfigError: The name is unknown, or is "prod", which cannot be computed from statistics.
        """
        from tdcore.errors import ConfigError
        from tdcore.trial.reductions import checked_name, from_statistics

        value = from_statistics(checked_name(name), absolute, self._values)
        if value is None:
            raise ConfigError(f"reduction {name!r} cannot be computed from statistics; it needs the values")
        return value


def tensor_stats(x: object, *, threads: int = 1) -> TensorStats:
    """Statistics of one tensor in one pass over its values, without a copy, for any strides.

    Tensors of 256 KiB or more are read without the GIL. No other thread may write to `x` during the call.

    Args:
        x: A torch tensor in host memory, a NumPy array, an object with __dlpack__, or a number. Types: bool,
            integers, float64, float32, float16, bfloat16, float8 (e4m3fn, e5m2). Integers above 2^53 are
            rounded to float64.
        threads: Number of threads for tensors of more than a million elements. The result does not depend on
            it.

    Raises:
        TypeError: The value cannot be read (a GPU tensor, a sparse or complex tensor). The message has the
            remedy.
    """
    return TensorStats.from_bytes(_core.stats([x], threads=threads))


def merge_stats(parts: Iterable[TensorStats]) -> TensorStats:
    """Statistics of all values of the parts, as if the parts had been one tensor. Parts are merged in order.

    Means and m2 are merged with the method of Chan, Golub and LeVeque (1979), so large means lose no
    precision. Without parts the result is the statistics of an empty tensor.
    """
    values: dict[str, Any] = TensorStats.from_bytes(_core.stats([np.empty(0)]))._values | {}
    for part in parts:
        _merge(values, part)
    return TensorStats(values)


def _merge(into: dict[str, Any], part: TensorStats) -> None:
    other = part._values
    mine = into["count"] - into["nan_count"] - into["pos_inf_count"] - into["neg_inf_count"]
    theirs = part.finite_count
    for name in _COUNTS:
        into[name] += other[name]
    into["log2_counts"] = into["log2_counts"] + other["log2_counts"]
    if theirs == 0:
        return
    if mine == 0:
        into.update({name: value for name, value in other.items() if name not in (*_COUNTS, "log2_counts")})
        return
    total = mine + theirs
    delta = other["mean"] - into["mean"]
    into["m2"] += other["m2"] + delta * delta * (mine / total) * theirs
    if math.isfinite(delta):
        into["mean"] += delta * (theirs / total)
    else:
        into["mean"] = into["mean"] * (mine / total) + other["mean"] * (theirs / total)
    for name in ("abs_sum", "square_sum"):
        into[name] += other[name]
    for name in ("min", "abs_min"):
        into[name] = min(into[name], other[name])
    for name in ("max", "abs_max"):
        into[name] = max(into[name], other[name])
