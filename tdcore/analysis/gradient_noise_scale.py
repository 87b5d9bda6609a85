"""Gradient noise scale: the batch size from which larger batches bring little, from captured gradients.

The gradients of several micro-batches, or of several workers, differ because they are computed from different
samples. Their spread, relative to their mean, is the noise scale. Training with a batch size far below it is
limited by noise; far above it, larger batches waste samples. Stateless functions; any thread.

Source: S. McCandlish, J. Kaplan, D. Amodei et al., An empirical model of large-batch training, 2018, appendix
A.1: the "simple" noise scale, the trace of the gradients' covariance divided by the squared gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.analysis.matrices import samples_first
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["NoiseScale", "noise_scale", "noise_scale_of_microbatches", "noise_scale_of_workers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """Unbiased estimates from the gradients of parts of a batch.

    Attributes:
        gradient_square: Squared L2 norm of the true gradient. Noise can make the estimate negative.
        trace: Trace of the covariance of the gradient of one sample.
        steps: Number of steps whose estimates were averaged.
    """

    gradient_square: float
    trace: float
    steps: int = 1

    @property
    def samples(self) -> float:
        """The noise scale, in samples; infinite if the gradient cannot be distinguished from noise."""
        return self.trace / self.gradient_square if self.gradient_square > 0 else float("inf")


def noise_scale(parts: Any, part_samples: int) -> NoiseScale:
    """Noise scale of one step, from the mean gradients of equal parts of its batch.

    Args:
        parts: Array (parts, ...): the gradient of each part, a mean over its samples. All parameters of a
            model can be joined in the last axis.
        part_samples: Number of samples in each part.

    Raises:
        ValueError: There are fewer than 2 parts, a part has no samples, or elements are not finite.
    """
    gradients = samples_first(parts, "parts")
    number = len(gradients)
    if number < 2:
        raise ValueError(f"there are {number} parts; the spread of gradients needs at least 2")
    if part_samples < 1:
        raise ValueError(f"part_samples is {part_samples}; a part has at least 1 sample")
    small = float((gradients**2).sum(axis=1).mean())
    big = float((gradients.mean(axis=0) ** 2).sum())
    # E|mean of B samples|^2 = |gradient|^2 + trace / B, for one part and for all parts together.
    trace = (small - big) * part_samples * number / (number - 1)
    return NoiseScale(gradient_square=(number * big - small) / (number - 1), trace=trace)


def noise_scale_of_microbatches(
    trial: Trial,
    parameters: Sequence[str],
    part_samples: int,
    *,
    divided: bool = True,
    steps: Iterable[int] | None = None,
) -> NoiseScale:
    """Noise scale of a training with gradient accumulation, from the collection `microbatch_gradients`.

    The estimates of all steps are averaged before they are divided, which reduces the noise of the result.

    Args:
        trial: The run, with saved values of `microbatch_gradient/<parameter>`.
        parameters: Names of parameters, whose gradients are joined.
        part_samples: Number of samples in each micro-batch.
        divided: Whether the loss of a micro-batch was divided by the number of micro-batches, as usual.
        steps: TRAIN steps. None: all steps at which the gradients of the first parameter were saved.

    Raises:
        TensorUnavailable, TensorUnavailableForStep: A gradient was not saved, or a parameter has fewer
            micro-batches than another one at the same step.
        ValueError: See noise_scale().
    """
    names = [f"microbatch_gradient/{name}" for name in parameters]
    chosen = _steps(trial, names, steps)
    table = trial.rows(names, steps=chosen, mode=ModeKeys.TRAIN, columns=["mode_step", "call"])
    calls: dict[int, int] = {}
    for step, call in zip(*(table.column(each).to_pylist() for each in ("mode_step", "call")), strict=True):
        calls[step] = max(calls.get(step, 0), call + 1)
    found = []
    for step in chosen:
        number = calls.get(step, 1)  # without rows, value() raises the error
        parts = [
            [trial.tensor(name).value(step, ModeKeys.TRAIN, call=call).ravel() for name in names]
            for call in range(number)
        ]
        joined = np.stack([np.concatenate(part).astype(np.float64) for part in parts])
        found.append(noise_scale(joined * number if divided else joined, part_samples))
    return _mean(found)


def noise_scale_of_workers(
    trial: Trial, names: Sequence[str], part_samples: int, *, steps: Iterable[int] | None = None
) -> NoiseScale:
    """Noise scale of a training on several workers, from gradients before they were averaged over workers.

    Args:
        trial: The run of all workers.
        names: Names of tensors with the worker's own gradient, such as `microbatch_gradient/fc.weight`.
        part_samples: Number of samples of each worker per step.
        steps: TRAIN steps. None: all steps at which the first tensor was saved.

    Raises:
        TensorUnavailable, TensorUnavailableForStep: A gradient was not saved.
        ValueError: See noise_scale().
    """
    found = []
    for step in _steps(trial, names, steps):
        workers = trial.tensor(names[0]).workers(step, ModeKeys.TRAIN)
        parts = [
            np.concatenate([trial.tensor(name).value(step, ModeKeys.TRAIN, worker).ravel() for name in names])
            for worker in workers
        ]
        found.append(noise_scale(np.stack(parts), part_samples))
    return _mean(found)


def _steps(trial: Trial, names: Sequence[str], steps: Iterable[int] | None) -> list[int]:
    if not names:
        raise ValueError("no gradient was named")
    chosen = trial.tensor(names[0]).steps(ModeKeys.TRAIN) if steps is None else list(steps)
    if not chosen:
        raise ValueError(f"the run has no TRAIN step with {names[0]}")
    return chosen


def _mean(found: Sequence[NoiseScale]) -> NoiseScale:
    return NoiseScale(
        gradient_square=float(np.mean([each.gradient_square for each in found])),
        trace=float(np.mean([each.trace for each in found])),
        steps=len(found),
    )
