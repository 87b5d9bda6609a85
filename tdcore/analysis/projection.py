"""Projections of stored activations to a few axes, such as a latent space while it is trained.

    trajectory = projection.Trajectory(components=2)
    for step in run.tensor(name).steps(mode):
        points = trajectory.add(run.tensor(name).value(step, mode))      # (samples, 2), aligned

Principal component analysis is computed in float64 on NumPy. The signs of its axes are arbitrary, so the
projections of two steps are comparable only if they are aligned. t-SNE is that of scikit-learn. Stateless
functions; an object belongs to one thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tdcore.analysis.matrices import Floats, centred, samples_first
from tdcore.errors import ConfigError

__all__ = ["Moments", "Pca", "Trajectory", "align", "pca", "separation", "tsne"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pca:
    """Principal axes of points.

    Attributes:
        mean: Mean of the points, shape (features,).
        axes: Orthonormal axes, shape (components, features), by decreasing variance. The element with the
            largest magnitude of each axis is positive.
        variance: Variance of the points along each axis, shape (components,), with the divisor samples - 1.
        total_variance: Sum of the variances of all features.
    """

    mean: Floats
    axes: Floats
    variance: Floats
    total_variance: float

    @property
    def explained(self) -> Floats:
        """Share of the total variance along each axis, shape (components,); NaN if all points are equal."""
        with np.errstate(invalid="ignore"):
            found: Floats = self.variance / np.float64(self.total_variance)
        return found

    def project(self, points: Any) -> Floats:
        """Coordinates along the axes. points: (samples, ...), flattened to (samples, features)."""
        found: Floats = (_flat(points) - self.mean) @ self.axes.T
        return found


class Moments:
    """Count, mean and scatter matrix of points that arrive in batches; memory of features x features numbers.

    Source: T. Chan, G. Golub, R. LeVeque, Algorithms for computing the sample variance, 1983 (the merge).
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Floats = np.zeros(0)
        self._scatter: Floats = np.zeros((0, 0))

    def add(self, points: Any) -> None:
        """Add a batch, shape (samples, ...).

        Raises ValueError if its number of features differs, or an element is not finite.
        """
        batch = _flat(points)
        if not len(batch):
            return
        mean = batch[0] + (batch - batch[0]).mean(axis=0)  # without rounding errors for equal points
        scatter = centred(batch).T @ centred(batch)
        if self.count and mean.shape != self._mean.shape:
            raise ValueError(f"the batch has {len(mean)} features, earlier ones have {len(self._mean)}")
        if self.count:
            total = self.count + len(batch)
            apart = mean - self._mean
            scatter = self._scatter + scatter + np.outer(apart, apart) * (self.count * len(batch) / total)
            mean = self._mean + apart * (len(batch) / total)
        self.count += len(batch)
        self._mean, self._scatter = mean, scatter

    def pca(self, components: int = 2) -> Pca:
        """Principal axes of all points so far. Raises ValueError for fewer than two points."""
        if self.count < 2 or not 1 <= components <= len(self._mean):
            raise ValueError(
                f"{components} axes of {self.count} points with {len(self._mean)} features cannot be computed"
            )
        variance, vectors = np.linalg.eigh(self._scatter / (self.count - 1))
        axes = vectors[:, ::-1][:, :components].T
        largest = axes[np.arange(components), np.abs(axes).argmax(axis=1)]
        return Pca(
            mean=self._mean,
            axes=axes * np.where(largest < 0, -1.0, 1.0)[:, np.newaxis],
            variance=np.maximum(variance[::-1][:components], 0.0),
            total_variance=float(np.trace(self._scatter) / (self.count - 1)),
        )


def pca(points: Any, components: int = 2) -> Pca:
    """Principal axes of points, shape (samples, ...). Raises ValueError as Moments.pca()."""
    moments = Moments()
    moments.add(points)
    return moments.pca(components)


def align(points: Any, reference: Any) -> Floats:
    """Rotate or reflect points about the origin, so that they are as near as possible to a reference.

    Args:
        points: Coordinates, shape (samples, components).
        reference: Coordinates of the same samples in the same order, same shape.

    Returns:
        The rotated points. Distances between points do not change.

    Raises:
        ValueError: The shapes differ.

    Source: P. Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 1966.
    """
    moved, fixed = np.asarray(points, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if moved.shape != fixed.shape or moved.ndim != 2:
        raise ValueError(f"points have shape {moved.shape}, the reference has {fixed.shape}")
    left, _, right = np.linalg.svd(moved.T @ fixed)
    found: Floats = moved @ left @ right
    return found


class Trajectory:
    """Projections of the same samples at successive steps, each aligned with the one before.

    Args:
        components: Number of axes.
    """

    def __init__(self, components: int = 2) -> None:
        self.components = components
        self.explained: list[Floats] = []
        self._last: Floats | None = None

    def add(self, points: Any) -> Floats:
        """Coordinates of the samples at the next step. points: (samples, ...), the same samples in each step.

        Raises ValueError as pca() and align().
        """
        axes = pca(points, self.components)
        found = axes.project(points)
        if self._last is not None:
            found = align(found, self._last)
        self._last = found
        self.explained.append(axes.explained)
        return found


def tsne(points: Any, *, start: Any = None, perplexity: float = 30.0, seed: int = 0) -> Floats:
    """Two coordinates of each point by t-SNE, which keeps neighbours near each other. Uses scikit-learn.

    Args:
        points: Shape (samples, ...).
        start: Coordinates to start from, shape (samples, 2), such as those of the step before, so that the
            two pictures are comparable. None: the first two principal components.
        perplexity: Effective number of neighbours of a point; less than the number of samples.
        seed: Seed of the random numbers.

    Raises:
        ConfigError: scikit-learn is not installed.
        ValueError: The number of samples is too small for the perplexity.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise ConfigError("t-SNE needs scikit-learn: pip install scikit-learn") from error
    flat = _flat(points)
    begin = pca(flat, 2).project(flat) if start is None else np.asarray(start, dtype=np.float64)
    spread = float(begin[:, 0].std()) or 1.0
    method = TSNE(init=(begin / spread * 1e-4).astype(np.float32), perplexity=perplexity, random_state=seed)
    return np.asarray(method.fit_transform(flat), dtype=np.float64)


def separation(points: Any, labels: Any) -> float:
    """Share of the points whose nearest other point has the same label.

    Args:
        points: Shape (samples, ...), at least two samples.
        labels: Label of each sample.

    Raises:
        ValueError: There are fewer than two samples, not one label for each, or an element is not finite.
    """
    flat, names = _flat(points), np.asarray(labels)
    if len(flat) < 2 or names.shape != (len(flat),):
        raise ValueError(f"{len(flat)} points have labels of shape {names.shape}; give at least two points")
    flat = centred(flat)  # points far from the origin lose no digits
    squares = np.square(flat).sum(axis=1)
    distance = squares[:, np.newaxis] + squares - 2 * flat @ flat.T
    np.fill_diagonal(distance, np.inf)
    return float(np.mean(names[distance.argmin(axis=1)] == names))


def _flat(points: Any) -> Floats:
    if np.ndim(points) < 2:
        raise ValueError(f"points have shape {np.shape(points)}; the first axis must be the samples")
    return samples_first(points, "points")
