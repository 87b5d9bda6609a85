"""Effective rank and stable rank of weights and activations: how many directions a matrix really uses.

A rank that falls during a training, or activations that use few of their dimensions, show a collapse of the
representation. Stateless functions; any thread.

Sources: O. Roy, M. Vetterli, The effective rank, EUSIPCO 2007. M. Rudelson, R. Vershynin, Sampling from large
matrices, Journal of the ACM 2007 (stable rank).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tdcore.analysis import matrices
from tdcore.analysis.matrices import Floats, features_last
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["Ranks", "rank_history", "ranks_of"]


class Ranks(NamedTuple):
    """Ranks of a matrix.

    Attributes:
        effective: Exponential of the entropy (natural logarithm) of the singular values, divided by their
            sum. It is k for k equal singular values.
        stable: Sum of the squared singular values, divided by the largest square. Never above the rank.
        largest: The highest possible rank: the smaller side of the matrix.

    All are 0 for a matrix of zeros.
    """

    effective: float
    stable: float
    largest: int


def ranks_of(values: Any, *, axis: int = 0, centred: bool = False) -> Ranks:
    """Effective rank and stable rank of an array, as a matrix of one axis by all other axes.

    Args:
        values: Weights or activations.
        axis: The axis of the features. 0: output features of a PyTorch weight. 1: channels of activations
            (samples, channels, ...). -1: features of activations (samples, tokens, features).
        centred: Subtract the mean of each feature, which for activations is often a large direction.

    Raises:
        ValueError: The array has no such axis, is empty, or has elements that are not finite.
    """
    matrix = features_last(values, axis)
    if not matrix.size:
        raise ValueError(f"the array of shape {np.shape(values)} has no elements")
    if centred:
        matrix = matrices.centred(matrix)
    sizes = np.linalg.svd(_scaled(matrix), compute_uv=False)
    largest = min(matrix.shape)
    if not sizes[0] > 0:
        return Ranks(0.0, 0.0, largest)
    shares = sizes[sizes > 0] / sizes.sum()
    entropy = -float((shares * np.log(shares)).sum())
    return Ranks(float(np.exp(entropy)), float(((sizes / sizes[0]) ** 2).sum()), largest)


def rank_history(
    trial: Trial, name: str, *, mode: ModeKeys = ModeKeys.GLOBAL, axis: int = 0, centred: bool = False
) -> dict[int, Ranks]:
    """Ranks of a tensor at all steps of a mode at which its values were saved: step -> ranks.

    Args:
        trial: The run.
        name: Name of the tensor.
        mode: Mode of the steps.
        axis, centred: See ranks_of().

    Raises:
        TensorUnavailable: The run has no such tensor.
        ValueError: See ranks_of(). Values that are not finite have no rank.
    """
    values = trial.tensor(name).values(mode)
    return {step: ranks_of(each, axis=axis, centred=centred) for step, each in values.items()}


def _scaled(matrix: Floats) -> Floats:
    """The matrix with a largest magnitude of 1, so that squares neither overflow nor vanish."""
    largest = float(np.abs(matrix).max())
    return matrix / largest if largest > 0 else matrix
