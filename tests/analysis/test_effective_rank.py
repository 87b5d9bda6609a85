"""Effective rank and stable rank, compared with matrices whose singular values are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.analysis.effective_rank import rank_history, ranks_of
from tests.trial.writer import RunWriter


def with_singular_values(sizes: list[float], seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    left, _ = np.linalg.qr(random.normal(size=(len(sizes) + 3, len(sizes))))
    right, _ = np.linalg.qr(random.normal(size=(len(sizes), len(sizes))))
    return left @ np.diag(sizes) @ right


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8), st.integers(0, 99), st.sampled_from([1e-30, 1e30])
)
def test_both_ranks_follow_from_the_singular_values_and_not_from_their_scale(
    sizes: list[float], seed: int, scale: float
) -> None:
    found = ranks_of(with_singular_values(sizes, seed) * scale)
    shares = np.array(sizes) / np.sum(sizes)
    assert found.effective == pytest.approx(np.exp(-(shares * np.log(shares)).sum()), rel=1e-6)
    assert found.stable == pytest.approx((np.array(sizes) ** 2).sum() / max(sizes) ** 2, rel=1e-6)
    assert found.largest == len(sizes)


def test_equal_singular_values_have_their_number_as_rank_and_zeros_have_none() -> None:
    assert ranks_of(np.eye(7)) == pytest.approx((7.0, 7.0, 7))
    assert ranks_of(np.outer([1.0, 2.0], [3.0, 4.0, 5.0]))[:2] == pytest.approx((1.0, 1.0))
    assert ranks_of(np.zeros((3, 2))) == (0.0, 0.0, 2)
    assert ranks_of(np.full((7, 4), 0.1), axis=1, centred=True) == (0.0, 0.0, 4)


def test_channels_of_images_are_an_axis_and_the_mean_can_be_left_out() -> None:
    images = np.random.default_rng(0).normal(size=(64, 3, 8, 8)) + 100
    assert ranks_of(images, axis=1).effective < 1.2
    assert ranks_of(images, axis=1, centred=True).effective == pytest.approx(3.0, rel=1e-3)
    joined = np.moveaxis(images, 1, -1).reshape(-1, 3)
    assert ranks_of(images, axis=1) == pytest.approx(ranks_of(joined, axis=1))


@pytest.mark.parametrize(
    ("values", "message"),
    [(np.ones((2, 0)), "no elements"), (np.array([[np.inf]]), "infinite"), (np.float32(1), "single number")],
)
def test_arrays_without_a_rank_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ranks_of(values)
    with pytest.raises(ValueError, match="no axis 2"):
        ranks_of(np.ones((2, 2)), axis=2)


def test_the_ranks_of_a_tensor_are_returned_for_all_steps(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step, sizes in enumerate(([1.0, 1.0, 1.0], [1.0, 1e-6, 1e-6])):
        run.add("fc.weight", with_singular_values(sizes), step=step, kind="weight")
        run.flush()
    run.end()
    found = rank_history(td.create_trial(tmp_path / "run"), "fc.weight")
    assert [ranks.effective for ranks in found.values()] == pytest.approx([3.0, 1.0], rel=1e-4)
