"""Saliency maps by the method FullGrad, from captured inputs, gradients and biases.

The output f of a network of affine layers, ReLUs and pooling layers is exactly the sum of two kinds of terms:

    f(x) = sum(x * df/dx) + sum over all layers and positions of (bias * df/dz)

where z is the output of an affine layer. The first term shows which inputs, and the second which positions in
the layers caused the output. `maps` adds the magnitudes of all terms at each position of the image.

    found = saliency.from_trial(run, step, mode=ModeKeys.EVAL)
    found.total                    # equals the captured scores: the terms are complete
    found.maps()                   # (samples, height, width)

Source: S. Srinivas, F. Fleuret, Full-gradient representation for neural network visualization, NeurIPS 2019.
Any thread; for `from_trial`, the threads of the Trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.matrices import Floats, centred
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["FullGrad", "affine_bias", "from_trial", "resize", "share_inside"]

_PREFIX, _SUFFIX = "output_gradient/", "_output_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGrad:
    """The terms of a network's output for each sample.

    Attributes:
        inputs: x * df/dx, float64, shape (samples, channels, height, width).
        layers: For each layer by name bias * df/dz, float64, shape (samples, channels, ...). The channels of
            a linear layer are its output features.
    """

    inputs: Floats
    layers: dict[str, Floats]

    @property
    def total(self) -> Floats:
        """Sum of all terms of each sample, shape (samples,): the output f, except for rounding errors."""
        parts = [self.inputs, *self.layers.values()]
        found: Floats = np.sum([each.reshape(len(each), -1).sum(axis=1) for each in parts], axis=0)
        return found

    def maps(self) -> Floats:
        """Saliency of each pixel, float64, shape (samples, height, width).

        The magnitudes of the terms of each channel are scaled to the range 0 to 1 in each sample, resized to
        the size of the image, and added over all channels of the input and of all layers whose terms have a
        height and a width. A channel with constant magnitudes is zero.
        """
        size = self.inputs.shape[2:]
        spatial = [each for each in (self.inputs, *self.layers.values()) if each.ndim == 4]
        scaled = (resize(_scaled(np.abs(each)), size).sum(axis=1) for each in spatial)
        found: Floats = np.sum(list(scaled), axis=0)
        return found


def affine_bias(inputs: Any, outputs: Any) -> Floats:
    """Bias of a layer that multiplies and shifts each channel, such as batch normalisation in eval mode.

    Args:
        inputs: Captured inputs, shape (samples, channels, ...).
        outputs: Captured outputs, same shape.

    Returns:
        The intercept of the least-squares line through (input, output) of each channel, float64, shape
        (channels,). For a channel with constant inputs it is the mean of its outputs.

    Raises:
        ValueError: The shapes differ, or the points of a channel are not on a line.
    """
    x, y = (np.asarray(each, dtype=np.float64) for each in (inputs, outputs))
    if x.shape != y.shape or x.ndim < 2:
        raise ValueError(
            f"inputs have shape {x.shape}, outputs {y.shape}; both must be (samples, channels, ...)"
        )
    x, y = (np.moveaxis(each, 1, 0).reshape(each.shape[1], -1) for each in (x, y))
    mean_x, mean_y = x.mean(axis=1, keepdims=True), y.mean(axis=1, keepdims=True)
    from_mean = centred(x.T).T
    spread = np.square(from_mean).sum(axis=1, keepdims=True)
    product = (from_mean * (y - mean_y)).sum(axis=1, keepdims=True)
    slope = np.divide(product, spread, out=np.zeros_like(spread), where=spread > 0)
    bias = mean_y - slope * mean_x
    error = np.abs(slope * x + bias - y).max(initial=0.0)
    if error > 1e-3 * max(1.0, float(np.abs(y).max(initial=0.0))):
        raise ValueError(
            f"outputs differ by up to {error:.3g} from a line: the layer is not affine per channel"
        )
    found: Floats = bias[:, 0]
    return found


def from_trial(
    trial: Trial,
    step: int,
    *,
    mode: ModeKeys = ModeKeys.EVAL,
    inputs: str | None = None,
    input_gradient: str = "input_gradient",
) -> FullGrad:
    """Compute the terms of one captured step.

    Compare `total` with the captured scores. They differ if a layer has a bias that is not a parameter (batch
    normalisation with affine=False), runs more than once in a step, or is not affine.

    The run needs the values of the collections "weights", "biases", "inputs", "outputs" and
    "output_gradients", and the gradient of the model's input, which the script saves:
    hook.save_tensor("input_gradient", x.grad). The gradients must be those of the output to explain, such as
    the scores of the predicted classes.

    Args:
        trial: The run.
        step: Step of the mode.
        mode: Mode of the step.
        inputs: Name of the model's input. None: the input of the root module, such as Net_input_0.
        input_gradient: Name of its gradient.

    Raises:
        TensorUnavailable, TensorUnavailableForStep: A tensor was not saved, or not with its values.
        ValueError: The name of the input is not known, the run has no biases at this step, or the shapes of
            a layer do not fit.
    """
    names = trial.tensor_names(step=step, mode=mode)

    def value(name: str) -> Floats:
        return np.asarray(trial.tensor(name).value(step, mode), dtype=np.float64)

    roots, layers = _roots(names), {}
    for name in names:
        path = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
        biases = [each for each in (f"{root}{path}.bias" for root in roots) if each in names]
        if name == f"{_PREFIX}{path}{_SUFFIX}" and biases:
            layers[path] = _layer(value, biases[0], path)
    if not layers:
        raise ValueError(
            f"step {step} of mode {mode.name} has no layer with a bias and an output gradient; record the "
            'collections "biases" and "output_gradients" with their values'
        )
    gradient = value(input_gradient)
    x = value(_root_input(names, roots) if inputs is None else inputs)
    if x.shape != gradient.shape:
        raise ValueError(
            f"the input has shape {x.shape}, and its gradient {input_gradient!r} has {gradient.shape}"
        )
    return FullGrad(inputs=x * gradient, layers=layers)


def share_inside(maps: Any, box: tuple[slice, slice]) -> Floats:
    """Share of each map's saliency inside a box of pixels, shape (samples,); 0 for a map of zeros.

    Args:
        maps: From FullGrad.maps().
        box: Rows and columns.
    """
    values = np.asarray(maps, dtype=np.float64)
    whole = values.sum(axis=(1, 2))
    inside = values[:, box[0], box[1]].sum(axis=(1, 2))
    found: Floats = np.divide(inside, whole, out=np.zeros_like(whole), where=whole > 0)
    return found


def resize(images: Any, size: Sequence[int]) -> Floats:
    """Resize images by linear interpolation of the two axes, as interpolate(mode="bilinear") of PyTorch does.

    Args:
        images: Shape (..., height, width).
        size: New height and width.

    Returns:
        float64, shape (..., *size). Pixels are squares, whose centres are interpolated.
    """
    values = np.asarray(images, dtype=np.float64)
    rows, columns = (_weights(old, new) for old, new in zip(values.shape[-2:], size, strict=True))
    found: Floats = rows @ values @ columns.T
    return found


def _weights(old: int, new: int) -> Floats:
    """Matrix that interpolates `old` points at `new` places, shape (new, old)."""
    place = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0.0, old - 1.0)
    left = np.minimum(place.astype(np.int64), max(old - 2, 0))
    matrix = np.zeros((new, old))
    matrix[np.arange(new), left] = 1.0 - (place - left)
    if old > 1:
        matrix[np.arange(new), left + 1] = place - left
    return matrix


def _scaled(values: Floats) -> Floats:
    """Each image of (samples, channels, height, width) scaled to 0 to 1; constant images are zero."""
    low = values.min(axis=(2, 3), keepdims=True)
    span = values.max(axis=(2, 3), keepdims=True) - low
    found: Floats = np.divide(values - low, span, out=np.zeros_like(values), where=span > 0)
    return found


def _layer(value: Callable[[str], Floats], parameter: str, path: str) -> Floats:
    """bias * df/dz of a layer. parameter: the name of its bias."""
    gradient = value(f"{_PREFIX}{path}{_SUFFIX}")
    dimensions = value(f"{parameter.removesuffix('bias')}weight").ndim
    bias = value(parameter)
    if dimensions == 1:  # batch normalisation: its running mean is part of the bias
        bias = affine_bias(value(f"{path}_input_0"), value(f"{path}{_SUFFIX}"))
    axis = gradient.ndim - 1 if dimensions == 2 else 1  # the axis of the channels
    if gradient.ndim < 2 or bias.shape != (gradient.shape[axis],):
        raise ValueError(
            f"layer {path!r}: the bias has shape {bias.shape}, and the output gradient {gradient.shape}"
        )
    terms: Floats = bias.reshape(-1, *[1] * (gradient.ndim - 1 - axis)) * gradient
    return np.moveaxis(terms, axis, 1)


def _roots(names: Sequence[str]) -> list[str]:
    """The root modules, such as "Net_": modules whose names begin the names of parameters."""
    parameters = [each for each in names if each.endswith((".weight", ".bias")) and "/" not in each]
    modules = {
        each.removeprefix(_PREFIX).removesuffix(end)
        for end in ("input_0", "output_0")
        for each in names
        if each.endswith(f"_{end}")
    }
    return sorted(module for module in modules if any(each.startswith(module) for each in parameters))


def _root_input(names: Sequence[str], roots: Sequence[str]) -> str:
    """The input of the root module."""
    found = [f"{root}input_0" for root in roots if f"{root}input_0" in names]
    if len(found) != 1:
        raise ValueError(f"the model's input is one of {found or 'no tensors'}; set inputs=")
    return found[0]
