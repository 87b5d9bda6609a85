"""Ranking of filters for pruning, from captured weights and gradients.

    found = pruning.importance(run, ["Net_conv1.weight", "Net_conv2.weight"])
    keep = pruning.kept_filters(found, remove=6)         # name -> numbers of the filters that remain

The importance of a filter estimates how much the loss changes when the filter is set to zero: the square of
the sum of weight times gradient over the filter, as a mean over the captured steps.

Source: P. Molchanov et al., Importance estimation for neural network pruning, CVPR 2019; scaling of layers:
P. Molchanov et al., Pruning convolutional neural networks for resource efficient inference, ICLR 2017.
Any thread; for `importance`, the threads of the Trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.classes import Ints
from tdcore.analysis.matrices import Floats
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Tensor, Trial

__all__ = ["importance", "kept_filters", "taylor"]


def taylor(weight: Any, gradient: Any) -> Floats:
    """First-order estimate of the importance of each filter, at one step.

    Args:
        weight: Weight of a layer, shape (filters, ...).
        gradient: Gradient of the loss, same shape.

    Returns:
        Square of the sum of weight * gradient of each filter, float64, shape (filters,), in squared units of
        the loss.

    Raises:
        ValueError: The shapes differ.
    """
    w, g = (np.asarray(each, dtype=np.float64) for each in (weight, gradient))
    if w.shape != g.shape or w.ndim == 0:
        raise ValueError(f"weight has shape {w.shape}, gradient {g.shape}; both must be (filters, ...)")
    found: Floats = np.square((w * g).reshape(len(w), -1).sum(axis=1))
    return found


def importance(
    trial: Trial, names: Iterable[str], *, mode: ModeKeys = ModeKeys.TRAIN, steps: Iterable[int] | None = None
) -> dict[str, Floats]:
    """Mean importance of the filters of some layers over the captured steps.

    Args:
        trial: The run, with the values of the weights and of their gradients.
        names: Names of the weights. The gradient of "Net_conv.weight" is "gradient/Net_conv.weight".
        mode: Mode of the steps.
        steps: Steps of the mode. None: all steps at which weight and gradient were saved.

    Returns:
        For each name taylor(), float64, shape (filters,).

    Raises:
        TensorUnavailable: The run has no such weight, or no gradient of it.
        TensorUnavailableForStep: A value was not saved at a step of `steps`.
        ValueError: Weight and gradient were saved at no common step.
    """
    wanted = None if steps is None else list(steps)
    return {
        name: _mean_over_steps(trial.tensor(name), trial.tensor(f"gradient/{name}"), mode, wanted)
        for name in names
    }


def _mean_over_steps(weight: Tensor, gradient: Tensor, mode: ModeKeys, steps: list[int] | None) -> Floats:
    if steps is None:
        steps = sorted(set(weight.steps(mode)) & set(gradient.steps(mode)))
    if not steps:
        raise ValueError(f"{weight.name!r} and its gradient were saved at no common step of mode {mode.name}")
    found = [taylor(weight.value(step, mode), gradient.value(step, mode)) for step in steps]
    return np.asarray(np.mean(found, axis=0), dtype=np.float64)


def kept_filters(found: Mapping[str, Floats], *, remove: int, at_least: int = 1) -> dict[str, Ints]:
    """Select the filters that remain when the least important ones of all layers are removed.

    The importances of a layer are divided by their L2 norm, which makes layers comparable.

    Args:
        found: Name of each layer -> importance of its filters, as from importance().
        remove: Number of filters to remove. Fewer are removed if the layers have not enough of them.
        at_least: Number of filters that each layer keeps.

    Returns:
        For each layer the numbers of the remaining filters, ascending.

    Raises:
        ValueError: An importance is NaN or infinite, or a number is negative.
    """
    if remove < 0 or at_least < 0:
        raise ValueError(f"remove is {remove} and at_least is {at_least}; both must be 0 or more")
    candidates: list[tuple[float, str, int]] = []
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise ValueError(f"an importance of {name!r} is NaN or infinite")
        order = np.argsort(values, kind="stable")[: max(0, len(values) - at_least)]
        norm = float(np.linalg.norm(values)) or 1.0
        candidates += [(float(values[each]) / norm, name, int(each)) for each in order]
    removed = sorted(candidates)[:remove]
    return {
        name: np.setdiff1d(np.arange(len(values)), [number for _, layer, number in removed if layer == name])
        for name, values in found.items()
    }
