"""Reductions agree with NumPy, from statistics and from values."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tdcore.errors import ConfigError, TensorUnavailableForStep
from tdcore.trial import create_trial
from tdcore.trial.reductions import REDUCTIONS, from_statistics, from_values
from tests.trial.writer import RunWriter, statistics

Array = npt.NDArray[Any]


def expected(name: str, absolute: bool, x: Array) -> float:
    """Return NumPy's result."""
    x = np.abs(x) if absolute else x
    if x.size == 0 and name not in ("sum", "prod", "l1", "l2"):
        return math.nan
    with np.errstate(all="ignore"):
        if name == "l1":
            return float(np.abs(x).sum())
        if name == "l2":
            return float(np.sqrt(np.square(x).sum()))
        return float(getattr(np, "var" if name == "variance" else name)(x))


_VALUES = hnp.arrays(
    np.float64,
    st.integers(0, 20),
    elements=st.floats(-1e8, 1e8, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0]),
)


@settings(deadline=None)
@given(values=_VALUES)
def test_reductions_from_statistics_are_those_of_numpy(values: Array) -> None:
    row = statistics(values)
    size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
    for name in REDUCTIONS:
        for absolute in (False, True):
            got = from_statistics(name, absolute, row)
            if name == "prod":
                assert got is None
                continue
            tolerance = 1e-12 * (1 + size) * (1 + size if name == "variance" else 1) * (len(values) + 1)
            if name == "std":
                tolerance = 1e-6 * (1 + size)
            want = expected(name, absolute, values)
            assert got == pytest.approx(want, rel=1e-9, abs=tolerance, nan_ok=True), (name, absolute)


@settings(deadline=None)
@given(values=_VALUES)
def test_reductions_from_values_are_those_of_numpy(values: Array) -> None:
    for name in REDUCTIONS:
        for absolute in (False, True):
            got = from_values(name, absolute, values)
            assert got == pytest.approx(expected(name, absolute, values), rel=1e-12, nan_ok=True), (
                name,
                absolute,
            )


def test_variance_of_magnitudes_survives_a_large_mean(run: RunWriter) -> None:
    values = -(1e9 + np.arange(100) % 5)
    run.add("x", values, step=0, payload=False)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    assert tensor.reduction_value(0, "variance", abs=True) == pytest.approx(np.abs(values).var(), rel=1e-9)


def test_reduction_without_statistics_comes_from_the_values(run: RunWriter) -> None:
    values = np.array([1.5, -2.0, 4.0]).astype(ml_dtypes.bfloat16)
    run.add("x", values, step=0, stats=False)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    assert tensor.reduction_value(0, "max") == 4.0
    assert tensor.reduction_value(0, "min", abs=True) == 1.5
    assert tensor.reduction_value(0, "prod") == -12.0
    assert tensor.reduction_values(0) == {}


def test_saved_product_is_used(run: RunWriter) -> None:
    run.add("x", np.array([2.0, -3.0]), step=0, payload=False)
    run.add("x/prod", np.array(-6.0), step=0, kind="reduction")
    run.add("x/abs_prod", np.array(6.0), step=0, kind="reduction", payload=False)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    assert tensor.reduction_value(0, "prod") == -6.0
    assert tensor.reduction_value(0, "prod", abs=True) == 6.0
    assert tensor.reduction_values(0)["prod", False] == -6.0
    assert len(tensor.reduction_values(0)) == 2 * len(REDUCTIONS)


def test_product_that_was_not_saved_is_unavailable(run: RunWriter) -> None:
    run.add("x", np.array([2.0, -3.0]), step=0, payload=False)
    run.flush()
    with pytest.raises(TensorUnavailableForStep, match="without its values"):
        create_trial(run.root).tensor("x").reduction_value(0, "prod")


def test_reduction_of_parts_is_that_of_the_whole(run: RunWriter) -> None:
    values = np.random.default_rng(0).standard_normal(1000)
    run.add("x", values, step=0, parts=7, payload=False)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    for name in ("min", "max", "mean", "std", "variance", "sum", "l1", "l2"):
        assert tensor.reduction_value(0, name) == pytest.approx(expected(name, False, values), rel=1e-10)


def test_complex_values_have_norms_but_no_order(run: RunWriter) -> None:
    run.add("x", np.array([3 + 4j, 0j]), step=0)
    run.flush()
    tensor = create_trial(run.root).tensor("x")
    assert tensor.reduction_value(0, "l2") == 5.0
    assert tensor.reduction_value(0, "max", abs=True) == 5.0
    with pytest.raises(ConfigError, match="complex"):
        tensor.reduction_value(0, "min")


def test_unknown_reduction_says_which_there_are(run: RunWriter) -> None:
    run.add("x", np.ones(1), step=0)
    run.flush()
    with pytest.raises(ConfigError, match="min, max, mean"):
        create_trial(run.root).tensor("x").reduction_value(0, "median")
