"""Measures of drift, compared with SciPy and direct computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.analysis.drift import drift, drift_of_steps, kolmogorov_smirnov, population_stability, wasserstein
from tests.trial.writer import RunWriter

stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")
_MANY = settings(max_examples=60, deadline=None)
# Few different values, so that ties are frequent.
_SAMPLES = st.lists(st.integers(-5, 5).map(float) | st.floats(-1e6, 1e6), min_size=2, max_size=40)


@_MANY
@given(_SAMPLES, _SAMPLES)
def test_statistics_and_distances_are_those_of_scipy(one: list[float], other: list[float]) -> None:
    assert kolmogorov_smirnov(one, other) == pytest.approx(
        stats.ks_2samp(one, other, method="asymp").statistic
    )
    assert wasserstein(one, other) == pytest.approx(
        stats.wasserstein_distance(one, other), rel=1e-9, abs=1e-9
    )
    (found,) = drift(np.array(one)[:, None], np.array(other)[:, None])
    size = np.sqrt(len(one) * len(other) / (len(one) + len(other)))
    assert found.p_value == pytest.approx(special.kolmogorov(size * found.ks), rel=1e-9, abs=1e-12)


@_MANY
@given(_SAMPLES, _SAMPLES, st.integers(1, 12))
def test_population_stability_is_the_sum_over_its_bins(
    one: list[float], other: list[float], bins: int
) -> None:
    edges = sorted({float(np.quantile(one, place)) for place in np.linspace(0, 1, bins + 1)[1:-1]})
    if edges and min(other) < edges[0] == min(one):  # equal values fill the first bin
        edges = [float(np.nextafter(edges[0], -np.inf)), *edges]
    expected = 0.0
    for low, high in zip([-np.inf, *edges], [*edges, np.inf], strict=True):
        before, now = (
            (sum(low < value <= high for value in sample) + 0.5) / (len(sample) + 0.5 * (len(edges) + 1))
            for sample in (one, other)
        )
        expected += (now - before) * np.log(now / before)
    assert population_stability(one, other, bins=bins) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert population_stability(one, one, bins=bins) == 0


def test_a_constant_feature_that_falls_is_as_unstable_as_one_that_rises() -> None:
    constant = np.zeros(50)
    for moved in (constant - 1, constant + 1):
        assert population_stability(constant, moved) > 5


def test_the_features_that_moved_are_named_and_are_first() -> None:
    random = np.random.default_rng(0)
    before, now = random.normal(size=(400, 5)), random.normal(size=(300, 5))
    now[:, 2] = now[:, 2] * 3 + 5
    now[:, 4] += 0.8
    found = drift(before, now, features=list("abcde"))
    assert [each.feature for each in found[:2]] == ["c", "e"]
    assert [each.moved for each in found] == [True, True, False, False, False]
    assert found[0].text.startswith("c: median ")


@_MANY
@given(st.integers(0, 9999))
def test_samples_of_one_distribution_have_not_moved(seed: int) -> None:
    random = np.random.default_rng(seed)
    found = drift(random.normal(size=(200, 8)), random.normal(size=(100, 8)), level=1e-9)
    assert not any(each.moved for each in found)


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    before, now = np.arange(10.0)[:, None], np.array([[1.0], [np.nan], [np.inf], [2.0]])
    (found,) = drift(before, now)
    assert (found.missing_before, found.missing) == (0.0, 0.5)
    assert found.ks == kolmogorov_smirnov(before, [1.0, 2.0])
    (nothing_left,) = drift(before, np.full((3, 1), np.nan))
    assert nothing_left.moved
    assert nothing_left.missing == 1.0


@pytest.mark.parametrize(
    ("reference", "values", "features", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), None, "values has 4 features and reference has 3"),
        (np.ones((2, 3)), np.ones((2, 3)), ["a"], "features has 1 names"),
        (np.ones((0, 3)), np.ones((2, 3)), None, "no samples"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(reference: Any, values: Any, features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drift(reference, values, features=features)
    with pytest.raises(ValueError, match="at least one value"):
        wasserstein([], [1.0])


def test_steps_of_a_run_are_compared(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = [random.normal(size=(30, 2)) + np.array([0, 4 * (step >= 3)]) for step in range(6)]
    run = RunWriter(tmp_path / "run")
    for step, each in enumerate(values):
        run.add("Net_input_0", each, step=step, kind="input")
        run.flush()
    run.end()
    trial = td.create_trial(tmp_path / "run")
    found = drift_of_steps(trial, "Net_input_0", range(3), range(3, 6), mode=td.modes.TRAIN)
    assert found == drift(np.concatenate(values[:3]), np.concatenate(values[3:]))
    assert [each.moved for each in found] == [True, False]
    with pytest.raises(ValueError, match="reference of Net_input_0 has no steps"):
        drift_of_steps(trial, "Net_input_0", [], [3], mode=td.modes.TRAIN)
