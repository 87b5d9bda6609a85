"""UpdateSigns: detection of updates without an optimizer, from changed weights and cleared gradients.

The detection is used only for models without a known optimizer, at a training forward after a backward. Only
values of a few small parameters in host memory are compared, because reading values of a device waits for the
device. Threads: the training thread. Keeps copies of a few small parameters, and no parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from tdcore.hooks.pytorch.parameters.pending_step import is_zero

__all__ = ["UpdateSigns"]

_VERSION, _GRADIENT = attrgetter("_version"), attrgetter("grad")
_ADDRESS = torch.Tensor.data_ptr
_SAMPLES, _SAMPLE_ELEMENTS = 3, 65_536


def _plain(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The parameters on which operators may be called: neither sharded nor lazy."""
    return [one for one in parameters if type(one) is nn.Parameter]


class UpdateSigns:
    """Signs of updates of one model.

    ever: Whether a sign was ever detected. If so, the absence of signs means that there was no update.
    """

    def __init__(self) -> None:
        self.ever = False
        self._weights: list[int] | None = None
        self._samples: list[tuple[int, torch.Tensor]] = []
        self._left: list[tuple[weakref.ref[Any], int] | None] = []  # gradients after the last backward

    def look(self, parameters: Sequence[torch.Tensor]) -> None:
        """Store the weights when a training step begins."""
        parameters = _plain(parameters)
        self._left = _left(parameters)
        self._weights = _weights(parameters)
        small = [
            (one.numel(), position)
            for position, one in enumerate(parameters)
            if one.requires_grad and one.device.type == "cpu" and 0 < one.numel() <= _SAMPLE_ELEMENTS
        ]
        with torch.no_grad():
            self._samples = [
                (position, parameters[position].detach().clone()) for _, position in sorted(small)[:_SAMPLES]
            ]

    def seen(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether there is a sign of an update since look(). Called after a backward."""
        parameters = _plain(parameters)
        sign = (
            self._weights != _weights(parameters)
            or any(not torch.equal(copy, parameters[position].detach()) for position, copy in self._samples)
            or self._cleared(parameters)
        )
        self.ever = self.ever or sign
        return sign

    def backward_ended(self, parameters: Sequence[torch.Tensor]) -> None:
        """Store the gradients at the end of a backward that reached the model."""
        self._left = _left(_plain(parameters))

    def _cleared(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether all stored gradients were deleted or set to zero."""
        gradients: list[Any] = list(map(_GRADIENT, parameters))
        pairs = zip(gradients, self._left, strict=False)
        there = [(now, before) for now, before in pairs if before is not None]
        return bool(there) and all(_is_cleared(now, *before) for now, before in there)


def _left(parameters: Sequence[torch.Tensor]) -> list[tuple[weakref.ref[Any], int] | None]:
    """The current gradients with their version counters."""
    gradients: list[Any] = list(map(_GRADIENT, parameters))
    return [None if one is None else (weakref.ref(one), int(one._version)) for one in gradients]


def _is_cleared(now: Any, before: weakref.ref[Any], version: int) -> bool:
    if now is None:
        return True
    changed = version != int(now._version)
    return (changed or before() is not now) and is_zero(now)


def _weights(parameters: Sequence[torch.Tensor]) -> list[int] | None:
    """Version counters and addresses of the weights. None: unknown (inference tensors, lazy parameters)."""
    try:
        return [*map(_VERSION, parameters), *map(_ADDRESS, parameters)]
    except (RuntimeError, ValueError):
        return None
