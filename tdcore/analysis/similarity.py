"""Similarity of two representations of the same samples: linear centered kernel alignment (CKA).

CKA compares activations of two layers, of two networks, or of one layer at two steps. It is 1 for
representations that differ by a rotation, a scale or a shift, and near 0 for unrelated ones. The two
representations may have different numbers of features. Stateless functions; any thread.

Sources: S. Kornblith et al., Similarity of neural network representations revisited, ICML 2019. T. Nguyen, M.
Raghu, S. Kornblith, Do wide and deep networks learn the same things?, ICLR 2021 (minibatch CKA).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.matrices import Floats, centred, samples_first
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["layer_similarity", "linear_cka", "minibatch_cka"]

_FEWEST = 4  # samples in a batch of the unbiased estimator


def linear_cka(x: Any, y: Any) -> float:
    """Linear CKA of two representations of the same samples.

    With fewer samples than features the value is too high, also for unrelated representations. Then use
    minibatch_cka(), whose estimator is not biased.

    Args:
        x, y: Arrays (samples, ...). Further axes are joined to one axis of features.

    Returns:
        A number from 0 to 1; NaN if one of the representations is constant.

    Raises:
        ValueError: The arrays have different numbers of samples, or elements that are not finite.
    """
    x, y = _pair(x, y)
    x, y = centred(x), centred(y)
    if max(x.shape[1], y.shape[1]) <= len(x):
        shared, own, other = x.T @ y, x.T @ x, y.T @ y
        return _ratio(float((shared**2).sum()), float((own**2).sum()), float((other**2).sum()))
    own, other = x @ x.T, y @ y.T
    return _ratio(float((own * other).sum()), float((own**2).sum()), float((other**2).sum()))


def minibatch_cka(batches: Iterable[tuple[Any, Any]]) -> float:
    """Linear CKA from batches, each with its own samples, so that no array of all samples is needed.

    The estimator of each batch is unbiased, so the batch size only changes the noise of the result. Noise can
    make it slightly negative or larger than 1.

    Args:
        batches: Pairs of arrays (samples, ...), with at least 4 samples per batch.

    Returns:
        The similarity; NaN without batches, or if the samples of one representation do not differ.

    Raises:
        ValueError: See linear_cka(); also for a batch with fewer than 4 samples.
    """
    sums = np.zeros(3)
    for first, second in batches:
        x, y = _pair(first, second)
        if len(x) < _FEWEST:
            raise ValueError(f"a batch has {len(x)} samples; at least {_FEWEST} are needed")
        one, other = _without_diagonal(x), _without_diagonal(y)
        sums += [_hsic(one, other), _hsic(one, one), _hsic(other, other)]
    return _ratio(*sums.tolist())


def layer_similarity(
    trial: Trial,
    names: Sequence[str],
    *,
    mode: ModeKeys = ModeKeys.GLOBAL,
    steps: Iterable[int] | None = None,
) -> Floats:
    """Minibatch CKA between all pairs of tensors of a run. Each step is one batch.

    Args:
        trial: The run, with saved values of the tensors.
        names: Names of tensors whose first axis holds the samples of the step, such as module outputs.
        mode: Mode of the steps.
        steps: Steps of the mode. None: all steps at which all tensors were saved.

    Returns:
        A symmetric matrix (names, names), with ones in the diagonal.

    Raises:
        TensorUnavailable, TensorUnavailableForStep: A tensor has no values at one of the steps.
        ValueError: See minibatch_cka(). There are no common steps.
    """
    tensors = [trial.tensor(name) for name in names]
    common = set.intersection(*({*tensor.steps(mode)} for tensor in tensors)) if tensors else set()
    chosen = sorted(common) if steps is None else list(steps)
    if not chosen:
        raise ValueError(f"the tensors {', '.join(names)} have no common step")
    sums = np.zeros((len(names), len(names)))
    for step in chosen:
        kernels = []
        for tensor in tensors:
            values = samples_first(tensor.value(step, mode), f"{tensor.name} at step {step}")
            if len(values) < _FEWEST:
                raise ValueError(f"{tensor.name} has {len(values)} samples at step {step}; 4 are needed")
            kernels.append(_without_diagonal(values))
        if len({len(kernel) for kernel in kernels}) > 1:
            raise ValueError(f"at step {step} the tensors have different numbers of samples")
        for row, one in enumerate(kernels):
            for column, other in enumerate(kernels[: row + 1]):
                sums[row, column] += _hsic(one, other)
    sums += np.tril(sums, -1).T
    with np.errstate(divide="ignore", invalid="ignore"):
        own = np.sqrt(np.diagonal(sums))
        found: Floats = sums / np.outer(own, own)
    return found


def _pair(x: Any, y: Any) -> tuple[Floats, Floats]:
    x, y = samples_first(x, "x"), samples_first(y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} samples and y has {len(y)}; both need the same samples")
    return x, y


def _ratio(shared: float, own: float, other: float) -> float:
    return shared / (math.sqrt(own) * math.sqrt(other)) if own > 0 and other > 0 else float("nan")


def _without_diagonal(values: Floats) -> Floats:
    """Products of all pairs of samples; a sample is not paired with itself."""
    points = centred(values)  # changes nothing but rounding
    products: Floats = points @ points.T
    np.fill_diagonal(products, 0.0)
    return products


def _hsic(one: Floats, other: Floats) -> float:
    """Unbiased estimate of the Hilbert-Schmidt independence criterion (Song et al., JMLR 2012), from products
    without their diagonal."""
    n = len(one)
    rows, columns = one.sum(axis=0), other.sum(axis=0)
    cross = float(rows @ columns)
    total = float(rows.sum()) * float(columns.sum()) / ((n - 1) * (n - 2))
    return (float((one * other).sum()) + total - 2 * cross / (n - 2)) / (n * (n - 3))
