"""Data for tests of rules: 3000 rows, with and without a fault. The second half is for validation."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["clusters", "leaking", "mislabelled", "problem", "rare", "without_relation"]

ROWS = 3000
_WEIGHTS = np.array([1.0, -1.0, 0.8, 0.6, -0.9, 0.7, 0.5, -0.6])


def problem(*, noise: float = 0.1) -> tuple[Any, Any]:
    """Two classes of equal size, to which all eight features contribute."""
    random = np.random.default_rng(0)
    values = random.normal(size=(ROWS, 8))
    score = values @ _WEIGHTS + noise * random.normal(size=ROWS)
    return values, (score > np.median(score)).astype(int)


def leaking() -> tuple[Any, Any]:
    """The same problem, with the label in feature 3."""
    values, labels = problem()
    values[:, 3] = labels + 0.01 * values[:, 3]
    return values, labels


def without_relation() -> tuple[Any, Any]:
    """The same problem with its labels in random order."""
    values, labels = problem()
    return values, np.random.default_rng(3).permutation(labels)


def rare() -> tuple[Any, Any]:
    """Labels with 3 % of ones, with little relation to the features."""
    values, _ = problem()
    score = values[:, 0] + 2.0 * np.random.default_rng(2).normal(size=ROWS)
    return values, (score > np.quantile(score, 0.97)).astype(int)


def clusters() -> tuple[Any, Any]:
    """Points around one centre per class of four."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 4, ROWS)
    return 3.0 * random.normal(size=(4, 8))[labels] + random.normal(size=(ROWS, 8)), labels


def mislabelled() -> tuple[Any, Any]:
    """The same points; half of the labels 1 and 2 are exchanged."""
    values, labels = clusters()
    mixed = np.isin(labels, (1, 2)) & (np.random.default_rng(1).random(ROWS) < 0.5)
    return values, np.where(mixed, 3 - labels, labels)
