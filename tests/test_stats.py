"""tensor_stats compared with float64 NumPy: hypothesis for values, examples for special cases."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tdcore import _core
from tdcore.errors import ConfigError
from tdcore.stats import STATS_DTYPE, TensorStats, merge_stats, tensor_stats

Array = npt.NDArray[Any]

FLOATS: list[Any] = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
FLOAT8: list[Any] = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
INTEGERS: list[Any] = [np.bool_, *(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8))]


def expected_histogram(finite: Array) -> Array:
    magnitudes = np.abs(finite[finite != 0])
    bins = np.clip(np.frexp(magnitudes)[1] - 1 + 40, 0, 63)
    return np.bincount(bins, minlength=64).astype(np.uint64)


def assert_matches_numpy(values: Array) -> None:
    stats = tensor_stats(values)
    with np.errstate(invalid="ignore"):  # signalling NaN
        x = np.ravel(values).astype(np.float64)
    finite = x[np.isfinite(x)]
    half = values.dtype.itemsize == 2 and values.dtype.kind not in "iu"
    relative = 1e-6 if half else 1e-11
    assert stats.count == x.size
    assert stats.nan_count == np.isnan(x).sum()
    assert stats.pos_inf_count == np.isposinf(x).sum()
    assert stats.neg_inf_count == np.isneginf(x).sum()
    assert stats.zero_count == (finite == 0).sum()
    assert stats.finite_count == finite.size
    np.testing.assert_array_equal(stats.log2_counts, expected_histogram(finite))
    if finite.size == 0:
        assert all(
            map(math.isnan, (stats.min, stats.max, stats.mean, stats.std, stats.abs_min, stats.abs_max))
        )
        assert stats.sum == stats.l1 == stats.l2 == 0
        return
    magnitude = np.abs(finite)
    assert (stats.min, stats.max) == (finite.min(), finite.max())
    assert (stats.abs_min, stats.abs_max) == (magnitude.min(), magnitude.max())
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        l1 = math.fsum(magnitude) if magnitude.max() < 1e300 else magnitude.sum()
        assert stats.l1 == pytest.approx(l1, rel=relative)
        total = math.fsum(finite) if magnitude.max() < 1e300 else finite.sum()
        if math.isfinite(total) and magnitude.max() < 1e307:
            # The sum is mean x count, and a subnormal mean is rounded to a multiple of 2^-1074.
            assert stats.sum == pytest.approx(total, rel=0, abs=relative * l1 + finite.size * 2.0**-1074)
        squares = float(np.square(finite).sum())
        assert stats.square_sum == pytest.approx(squares, rel=relative, abs=1e-300)
        assert stats.l2 == pytest.approx(math.sqrt(squares), rel=relative, abs=1e-150)
        if magnitude.max() < 1e150:
            mean = total / finite.size
            m2 = math.fsum(np.square(finite - mean))
            eps = 2.0**-24 if half else 2.0**-53
            noise = 8 * eps * math.sqrt(squares * m2) + 8 * eps * eps * squares + 1e-300
            assert stats.m2 == pytest.approx(m2, rel=relative, abs=noise)
            assert stats.std == pytest.approx(finite.std(), rel=1e-5, abs=1e-6 * magnitude.max() + 1e-150)


def elements(dtype: Any) -> st.SearchStrategy[float]:
    width = 64 if dtype is np.float64 else 32 if dtype is np.float32 else 16
    special = st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0])
    return st.one_of(st.floats(width=width), special)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_statistics_of_floats_match_numpy(dtype: Any, data: st.DataObject) -> None:
    values = data.draw(st.lists(elements(dtype), min_size=0, max_size=150))
    repeat = data.draw(st.sampled_from([1, 1, 31, 100]))
    with np.errstate(all="ignore"):
        array = np.array(values * repeat, dtype=np.float64).astype(dtype)
    assert_matches_numpy(array)


@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(0, 9000))
def test_statistics_of_random_bits_match_numpy(dtype: Any, seed: int, size: int) -> None:
    raw = np.random.default_rng(seed).bytes(size * np.dtype(dtype).itemsize)
    assert_matches_numpy(np.frombuffer(raw, dtype=dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_statistics_of_integers_match_numpy(dtype: Any, data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=40))
    assert_matches_numpy(data.draw(hnp.arrays(dtype, shape)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_strides_give_the_statistics_of_the_same_values(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=20))
    base = np.random.default_rng(data.draw(st.integers(0, 999))).normal(size=shape).astype(np.float32)
    view: Array = base.transpose(data.draw(st.permutations(range(base.ndim))))
    view = view[tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1, -3]))) for _ in view.shape)]
    if data.draw(st.booleans()):
        view = np.broadcast_to(view, (3, *view.shape))
    assert_matches_numpy(view)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_merged_parts_are_the_statistics_of_the_whole(data: st.DataObject) -> None:
    values = np.array(data.draw(st.lists(elements(np.float32), max_size=300)), dtype=np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, values.size), max_size=4)))
    merged = merge_stats(tensor_stats(part) for part in np.split(values, cuts))
    whole = tensor_stats(values)
    for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count"):
        assert getattr(merged, name) == getattr(whole, name)
    np.testing.assert_array_equal(merged.log2_counts, whole.log2_counts)
    for name in ("min", "max", "abs_min", "abs_max"):
        assert getattr(merged, name) == pytest.approx(getattr(whole, name), rel=0, abs=0, nan_ok=True)
    scale = whole.l1 / max(whole.finite_count, 1)
    assert merged.mean == pytest.approx(whole.mean, rel=0, abs=1e-12 * scale, nan_ok=True)
    assert merged.l1 == pytest.approx(whole.l1, rel=1e-12)
    assert merged.m2 == pytest.approx(whole.m2, rel=1e-9, abs=1e-12 * whole.square_sum)


@pytest.mark.parametrize(
    "values",
    [
        np.float32(1e6) + np.random.default_rng(0).normal(0, 0.05, 20_001).astype(np.float32),
        np.full(5000, np.nan, np.float32),
        np.full(5000, -np.inf, np.float16),
        np.where(np.arange(9000) % 3 == 0, -np.inf, 1.5).astype(np.float32),
        np.full(3001, 1e16),
        np.full(3001, 0.1, ml_dtypes.bfloat16),
        np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max] * 2000, np.float32),
        np.array([np.finfo(np.float64).max] * 3001),
        np.logspace(-30, 30, 4001, dtype=np.float32),
        np.arange(2**53, 2**53 + 3000, dtype=np.int64),
        np.full(2100, 2**64 - 1, np.uint64),
        np.array([7.25], np.float32),
        np.array(-3.5),
        np.zeros((0, 4), np.float32),
        np.zeros(2049, np.float32),
        np.full(2**20 + 3, 255, np.uint8),
        np.full(2**20 + 3, -128, np.int8),
        np.where(np.arange(9000) % 3 == 0, -np.inf, 300.0).astype(ml_dtypes.bfloat16),
        np.where(np.arange(9000) % 5 == 0, np.nan, 1e-14).astype(ml_dtypes.bfloat16),
    ],
    ids=lambda values: f"{values.dtype}-{values.size}",
)
def test_awkward_values_match_numpy(values: Array) -> None:
    assert_matches_numpy(values)


def test_subnormals_are_counted_in_the_tensors_own_dtype() -> None:
    assert tensor_stats(np.array([1e-40, 1e-38, 0, 1], np.float32)).subnormal_count == 2
    assert tensor_stats(np.array([1e-40, 1e-38, 0, 1], np.float64)).subnormal_count == 0
    assert tensor_stats(np.array([5e-324, 1], np.float64)).subnormal_count == 1
    assert tensor_stats(np.array([6e-8, 6e-5, 1], np.float16)).subnormal_count == 2
    assert tensor_stats(np.array([0.002, 1], ml_dtypes.float8_e4m3fn)).subnormal_count == 1


def test_reductions_are_those_of_the_finite_values() -> None:
    stats = tensor_stats(np.array([1.0, -3.0, np.nan, np.inf], np.float32))
    assert (stats.min, stats.max, stats.mean, stats.sum) == (-3, 1, -1, -2)
    assert (stats.std, stats.variance, stats.l1, stats.l2) == (2, 4, 4, math.sqrt(10))
    assert (stats.abs_min, stats.abs_max, stats.abs_mean, stats.abs_sum) == (1, 3, 2, 4)
    assert (stats.abs_std, stats.abs_variance) == (1, 1)


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["min", "max", "mean", "std", "variance", "sum", "l1", "l2"])
@pytest.mark.parametrize("bad", [[], [math.nan], [math.inf], [-math.inf], [math.inf, -math.inf]], ids=str)
def test_reduction_poisons_as_numpy_does(name: str, absolute: bool, bad: list[float]) -> None:
    values = np.array([1.5, -2.5, 4.0, *bad])
    x = np.abs(values) if absolute else values
    functions: dict[str, Any] = {
        "min": np.min,
        "max": np.max,
        "mean": np.mean,
        "std": np.std,
        "variance": np.var,
        "sum": np.sum,
        "l1": lambda v: np.abs(v).sum(),
        "l2": lambda v: math.sqrt(np.square(v).sum()),
    }
    with np.errstate(invalid="ignore"):
        want = float(functions[name](x))
    assert tensor_stats(values).reduction(name, absolute=absolute) == pytest.approx(want, nan_ok=True)


def test_reduction_refuses_what_statistics_do_not_tell() -> None:
    with pytest.raises(ConfigError, match="prod"):
        tensor_stats(np.ones(3)).reduction("prod")


def test_threads_do_not_change_a_bit() -> None:
    values = np.random.default_rng(1).normal(size=2_500_000).astype(np.float32)
    assert tensor_stats(values) == tensor_stats(values, threads=3)


def test_every_simd_level_agrees() -> None:
    code = (
        "import sys, numpy as np; from tdcore.stats import tensor_stats\n"
        "x = np.random.default_rng(2).normal(size=70_001)\n"
        "x[::7] = 0; x[5::1000] = np.nan; x[6::1000] = -np.inf\n"
        "for t in 'f8', 'f4', 'f2', 'i4':\n"
        "    with np.errstate(all='ignore'): y = (x * 100).astype(t)\n"
        "    sys.stdout.buffer.write(tensor_stats(y).to_bytes())\n"
    )
    answers = []
    for level in ("portable", "avx2", "avx512"):
        environment = {**os.environ, "TDCORE_SIMD": level}
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
        answers.append(np.frombuffer(out.stdout, STATS_DTYPE))
    for answer in answers[1:]:
        for name in STATS_DTYPE.names or ():
            exact = name not in ("mean", "m2", "abs_sum", "square_sum")
            np.testing.assert_allclose(answer[name], answers[0][name], rtol=0 if exact else 1e-6, atol=0)


def test_statistics_are_immutable_values() -> None:
    stats = tensor_stats(np.arange(5.0))
    assert stats == tensor_stats(np.arange(5.0)[::-1])
    assert stats != tensor_stats(np.arange(6.0))
    assert pickle.loads(pickle.dumps(stats)) == stats
    assert TensorStats.from_bytes(stats.to_bytes()) == stats
    assert hash(stats) == hash(tensor_stats(np.arange(5.0)))
    assert repr(stats) == "TensorStats(count=5, min=0, max=4, mean=2, std=1.41421)"
    with pytest.raises(AttributeError, match="immutable"):
        stats.count = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        stats.log2_counts[0] = 1


def test_no_parts_merge_to_the_statistics_of_no_values() -> None:
    nothing = merge_stats([])
    assert nothing.count == 0
    assert math.isnan(nothing.mean)


def test_complex_tensors_are_refused_with_a_reason() -> None:
    with pytest.raises(TypeError, match=r"tensors\[0\]"):
        tensor_stats(np.ones(3, np.complex64))


def test_the_dtype_describes_the_native_struct() -> None:
    assert STATS_DTYPE.itemsize == len(_core.stats([np.ones(1)])) == 624
    assert _core.simd_level() in ("avx512", "avx2", "neon", "portable")
