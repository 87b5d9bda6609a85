"""Projections equal those of scikit-learn, batches equal all points, and aligned points do not flip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from tdcore.analysis import projection

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def digits() -> Any:
    return load_digits().data[:300]


def test_axes_and_variances_equal_those_of_scikit_learn(digits: Any) -> None:
    theirs, own = PCA(5, svd_solver="full").fit(digits), projection.pca(digits.reshape(300, 8, 8), 5)
    np.testing.assert_allclose(own.variance, theirs.explained_variance_, rtol=1e-9)
    np.testing.assert_allclose(own.explained, theirs.explained_variance_ratio_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(np.sum(own.axes * theirs.components_, axis=1)), 1.0, rtol=1e-9)
    np.testing.assert_allclose(np.abs(own.project(digits)), np.abs(theirs.transform(digits)), atol=1e-8)
    assert (own.axes[np.arange(5), np.abs(own.axes).argmax(axis=1)] > 0).all()


@given(st.lists(st.integers(0, 9), min_size=2, max_size=6), st.floats(-1e3, 1e3))
def test_batches_have_the_axes_of_all_points(sizes: list[int], shift: float) -> None:
    points = np.random.default_rng(1).normal(size=(sum(sizes) + 2, 4)) * [4, 3, 2, 1] + shift
    moments = projection.Moments()
    for batch in np.split(points, np.cumsum(sizes)):
        moments.add(batch)
    assert moments.count == len(points)
    whole, found = np.cov(points.T), moments.pca(4)
    np.testing.assert_allclose(found.axes.T @ np.diag(found.variance) @ found.axes, whole, atol=1e-8)
    np.testing.assert_allclose(found.mean, points.mean(axis=0), atol=1e-9)


@given(st.floats(0, 6.28), st.booleans())
def test_turned_and_reflected_points_are_aligned_with_their_reference(angle: float, reflected: bool) -> None:
    reference = np.random.default_rng(2).normal(size=(20, 2)) * [3, 1]
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    moved = reference @ turn * ([1, -1] if reflected else [1, 1])
    np.testing.assert_allclose(projection.align(moved, reference), reference, atol=1e-9)


def test_a_trajectory_keeps_the_directions_of_the_step_before() -> None:
    first = RANDOM.normal(size=(60, 6)) * [9, 5, 1, 1, 1, 1]
    trajectory = projection.Trajectory()
    points = trajectory.add(first)
    later = trajectory.add(-first[:, ::-1] + 40)  # another orientation and position of the same points
    np.testing.assert_allclose(later, points, atol=1e-9)
    assert len(trajectory.explained) == 2


def test_tsne_keeps_clusters_apart_and_is_the_same_twice() -> None:
    labels = np.repeat([0, 1, 2], 20)
    points = np.eye(3)[labels] * 20 + RANDOM.normal(size=(60, 3))
    found = projection.tsne(points, perplexity=10)
    assert found.shape == (60, 2)
    assert projection.separation(found, labels) == 1.0
    np.testing.assert_array_equal(projection.tsne(points, perplexity=10), found)


def test_separation_is_the_share_of_nearest_points_with_the_same_label() -> None:
    points = np.array([[0.0], [1.0], [10.0], [11.5], [30.0]])
    for shift in (0.0, 1e9):
        assert projection.separation(points + shift, [0, 0, 1, 0, 1]) == pytest.approx(2 / 5)


@pytest.mark.parametrize("number", [1.0, 0.1])
def test_equal_points_have_no_variance_and_do_not_fail(number: float) -> None:
    points, moments = np.full((10, 3), number), projection.Moments()
    for batch in (points[:3], points[3:]):
        moments.add(batch)
    for found in (projection.pca(points), moments.pca()):
        assert found.variance.tolist() == [0.0, 0.0]
        assert np.isnan(found.explained).all()
    assert not projection.Trajectory().add(points).any()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: projection.pca(np.ones((1, 3))), "cannot be computed"),
        (lambda: projection.pca(np.ones((4, 3)), 4), "cannot be computed"),
        (lambda: projection.pca(np.ones(4)), "the first axis"),
        (lambda: projection.pca(np.full((4, 3), np.nan)), "12 elements that are NaN"),
        (lambda: projection.separation(np.full((4, 2), np.inf), [0] * 4), "8 elements that are NaN"),
        (lambda: projection.align(np.ones((4, 2)), np.ones((3, 2))), "the reference has"),
        (lambda: projection.separation(np.ones((4, 2)), [0]), "at least two points"),
    ],
)
def test_points_that_cannot_be_projected_are_refused(call: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        call()
