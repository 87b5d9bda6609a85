"""Importance of filters equals a direct computation, and the least important filters are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tdcore.analysis import pruning
from tdcore.errors import TensorUnavailable
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

NAMES = ["conv1.weight", "conv2.weight"]


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, Any]:
    """Weights and gradients of two layers at three steps, written as a run."""
    random = np.random.default_rng(0)
    run = RunWriter(tmp_path)
    values: dict[str, Any] = {name: [] for name in NAMES}
    for step in range(3):
        for name, shape in zip(NAMES, [(4, 1, 3, 3), (6, 4, 3, 3)], strict=True):
            pair = [random.normal(size=shape).astype(np.float32) for _ in range(2)]
            values[name].append(pair)
            run.add(name, pair[0], step=step, kind="weight")
            run.add(f"gradient/{name}", pair[1], step=step, kind="gradient")
    run.flush()
    run.end()
    return values


@pytest.mark.parametrize("steps", [None, [0, 2]])
def test_importance_is_the_mean_over_the_steps(
    stored: dict[str, Any], tmp_path: Path, steps: list[int] | None
) -> None:
    found = pruning.importance(create_trial(tmp_path), NAMES, steps=steps)
    for name in NAMES:
        pairs = [stored[name][step] for step in (steps or range(3))]
        sums = [np.einsum("fcij,fcij->f", *(each.astype(np.float64) for each in pair)) for pair in pairs]
        np.testing.assert_allclose(found[name], np.mean(np.square(sums), axis=0), rtol=1e-12)


def test_absent_gradients_and_steps_are_refused(stored: dict[str, Any], tmp_path: Path) -> None:
    trial = create_trial(tmp_path)
    with pytest.raises(TensorUnavailable):
        pruning.importance(trial, ["conv3.weight"])
    with pytest.raises(ValueError, match="no common step"):
        pruning.importance(trial, NAMES, steps=[])
    with pytest.raises(ValueError, match="filters"):
        pruning.taylor(np.ones((2, 3)), np.ones((3, 2)))


LAYERS = st.lists(
    arrays.arrays(np.float64, st.integers(1, 6), elements=st.floats(0, 100)), min_size=1, max_size=4
)


@given(LAYERS, st.integers(0, 30), st.integers(0, 3))
def test_no_removed_filter_is_more_important_than_a_filter_that_could_have_been_removed(
    layers: list[Any], remove: int, at_least: int
) -> None:
    found = {str(number): values for number, values in enumerate(layers)}
    kept = pruning.kept_filters(found, remove=remove, at_least=at_least)
    room = sum(max(0, len(values) - at_least) for values in layers)
    assert sum(len(values) - len(kept[name]) for name, values in found.items()) == min(remove, room)
    scaled = {name: values / (np.linalg.norm(values) or 1.0) for name, values in found.items()}
    gone = [value for name in found for value in np.delete(scaled[name], kept[name])]
    for name, numbers in kept.items():
        assert len(numbers) >= min(at_least, len(found[name]))
        assert list(numbers) == sorted(set(numbers.tolist()))
        if len(numbers) > at_least:  # this layer could have lost one more
            assert not gone or min(scaled[name][numbers]) >= max(gone)


def test_importances_of_nan_and_negative_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        pruning.kept_filters({"a": np.array([1.0, np.nan])}, remove=1)
    with pytest.raises(ValueError, match="infinite"):
        pruning.kept_filters({"a": np.array([1.0, np.inf])}, remove=1)
    with pytest.raises(ValueError, match="0 or more"):
        pruning.kept_filters({"a": np.ones(2)}, remove=-1)
