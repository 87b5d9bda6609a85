"""Linear and minibatch CKA, compared with direct computations in float64, and their invariances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.analysis.similarity import layer_similarity, linear_cka, minibatch_cka
from tests.trial.writer import RunWriter

_MANY = settings(max_examples=40, deadline=None)
_SEEDS = st.integers(0, 2**32 - 1)


def direct_cka(x: Any, y: Any) -> float:
    """The definition: centred Gram matrices, and their normalised inner product."""
    n = len(x)
    centre = np.eye(n) - np.ones((n, n)) / n
    one, other = centre @ x @ x.T @ centre, centre @ y @ y.T @ centre
    return float(np.trace(one @ other) / np.sqrt(np.trace(one @ one) * np.trace(other @ other)))


def direct_unbiased(x: Any, y: Any) -> float:
    """The unbiased HSIC as sums over distinct samples, with loops."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    first = sum(k[i, j] * m[i, j] for i, j in pairs) / (n * (n - 1))
    triples = [(i, j, q) for i, j in pairs for q in range(n) if q not in (i, j)]
    third = sum(k[i, j] * m[i, q] for i, j, q in triples) / (n * (n - 1) * (n - 2))
    fours = [(i, j, q, r) for i, j, q in triples for r in range(n) if r not in (i, j, q)]
    second = sum(k[i, j] * m[q, r] for i, j, q, r in fours) / (n * (n - 1) * (n - 2) * (n - 3))
    return float(first + second - 2 * third)


@_MANY
@given(_SEEDS, st.integers(3, 12), st.integers(1, 20), st.integers(1, 20))
def test_linear_cka_equals_its_definition(seed: int, samples: int, first: int, second: int) -> None:
    random = np.random.default_rng(seed)
    x, y = random.normal(size=(samples, first)), random.normal(size=(samples, second))
    assert linear_cka(x, y) == pytest.approx(direct_cka(x, y), rel=1e-9)
    assert linear_cka(x.astype(np.float32), y) == pytest.approx(direct_cka(x, y), rel=1e-4)


@_MANY
@given(_SEEDS, st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_a_rotation_a_scale_and_a_shift_change_nothing(seed: int, scale: float, shift: float) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(20, 6))
    rotation, _ = np.linalg.qr(random.normal(size=(6, 6)))
    changed = scale * x @ rotation + shift
    assert linear_cka(x, changed) == pytest.approx(1.0)
    assert minibatch_cka([(x, changed)]) == pytest.approx(1.0)


@_MANY
@given(_SEEDS)
def test_minibatch_cka_equals_the_sums_over_distinct_samples(seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [(random.normal(size=(n, 3)), random.normal(size=(n, 2))) for n in (4, 6)]
    shared, own, other = (
        sum(direct_unbiased(pair[one], pair[two]) for pair in batches)
        for one, two in ((0, 1), (0, 0), (1, 1))
    )
    expected = shared / np.sqrt(own * other) if own > 0 and other > 0 else np.nan
    assert minibatch_cka(batches) == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_unrelated_wide_representations_are_alike_for_linear_cka_and_unlike_for_minibatch_cka() -> None:
    random = np.random.default_rng(0)
    batches = [(random.normal(size=(32, 500)), random.normal(size=(32, 500))) for _ in range(20)]
    assert linear_cka(*batches[0]) > 0.9
    assert abs(minibatch_cka(batches)) < 0.05


def test_images_are_joined_to_features_and_a_constant_has_no_similarity() -> None:
    x = np.random.default_rng(0).normal(size=(8, 2, 3, 3))
    assert linear_cka(x, x.reshape(8, -1)) == pytest.approx(1.0)
    assert np.isnan(minibatch_cka([]))
    for number in (1.0, 0.1, 1e20):  # the mean of equal numbers can differ from the number
        constant = np.full((7, 4), number)
        assert np.isnan(linear_cka(x[:7], constant))
        assert np.isnan(minibatch_cka([(x[:7], constant)]))


@pytest.mark.parametrize("scale", [1e-70, 1e70])
def test_very_small_and_very_large_numbers_have_the_same_similarity(scale: float) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 12, 3))
    assert linear_cka(x * scale, y * scale) == pytest.approx(linear_cka(x, y))
    assert minibatch_cka([(x * scale, y * scale)]) == pytest.approx(minibatch_cka([(x, y)]))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.ones((3, 2)), np.ones((4, 2)), "3 samples and y has 4"),
        (np.array([[np.nan], [1.0]]), np.ones((2, 1)), "1 elements that are NaN"),
        (np.float64(3), np.ones((2, 1)), "x is a single number"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(x: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        linear_cka(x, y)
    with pytest.raises(ValueError, match="a batch has 3 samples"):
        minibatch_cka([(np.ones((3, 1)), np.ones((3, 1)))])


def test_layers_of_a_run_are_compared_in_pairs(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    run = RunWriter(tmp_path / "run")
    steps = [random.normal(size=(16, 5)).astype(np.float32) for _ in range(3)]
    unrelated = [random.normal(size=(16, 4)).astype(np.float32) for _ in range(3)]
    for step, (values, others) in enumerate(zip(steps, unrelated, strict=True)):
        run.add("a_output_0", values, step=step, kind="output")
        run.add("b_output_0", values * 3 + 1, step=step, kind="output")
        run.add("c_output_0", others, step=step, kind="output")
        run.flush()
    run.end()
    found = layer_similarity(
        td.create_trial(tmp_path / "run"), [f"{name}_output_0" for name in "abc"], mode=td.modes.TRAIN
    )
    assert found == pytest.approx(found.T)
    assert np.diagonal(found) == pytest.approx(1.0)
    assert found[0, 1] == pytest.approx(1.0, rel=1e-5)
    assert found[0, 2] == pytest.approx(minibatch_cka(zip(steps, unrelated, strict=True)), rel=1e-6)
