"""Signs of an update that no optimizer made: weights that changed, gradients that were cleared.

Asked at a training forward that follows a backward, for models without a known optimizer only. Values are
compared in host memory only, of a few small parameters, since reading them elsewhere would wait for the
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
    """Without those that are spread over ranks, which no operator may touch, and those without values yet."""
    return [one for one in parameters if type(one) is nn.Parameter]


class UpdateSigns:
    """Of one model. ever: there was a sign before, so the absence of one means that no update was made."""

    def __init__(self) -> None:
        self.ever = False
        self._weights: list[int] | None = None
        self._samples: list[tuple[int, torch.Tensor]] = []
        self._left: list[tuple[weakref.ref[Any], int] | None] = []  # gradients as the last backward left them

    def look(self, parameters: Sequence[torch.Tensor]) -> None:
        """A training step begins."""
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
        """Whether there is one since look(), now that a backward has come."""
        parameters = _plain(parameters)
        sign = (
            self._weights != _weights(parameters)
            or any(not torch.equal(copy, parameters[position].detach()) for position, copy in self._samples)
            or self._cleared(parameters)
        )
        self.ever = self.ever or sign
        return sign

    def backward_ended(self, parameters: Sequence[torch.Tensor]) -> None:
        """A backward has ended that reached the model."""
        self._left = _left(_plain(parameters))

    def _cleared(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether all gradients that were there are gone, or were set to zero."""
        gradients: list[Any] = list(map(_GRADIENT, parameters))
        pairs = zip(gradients, self._left, strict=False)
        there = [(now, before) for now, before in pairs if before is not None]
        return bool(there) and all(_is_cleared(now, *before) for now, before in there)


def _left(parameters: Sequence[torch.Tensor]) -> list[tuple[weakref.ref[Any], int] | None]:
    """The gradients as they are, and what changes in place add to."""
    gradients: list[Any] = list(map(_GRADIENT, parameters))
    return [None if one is None else (weakref.ref(one), int(one._version)) for one in gradients]


def _is_cleared(now: Any, before: weakref.ref[Any], version: int) -> bool:
    if now is None:
        return True
    changed = version != int(now._version)
    return (changed or before() is not now) and is_zero(now)


def _weights(parameters: Sequence[torch.Tensor]) -> list[int] | None:
    """What in-place changes add to, and where the values are. None: not known (inference, lazy ones)."""
    try:
        return [*map(_VERSION, parameters), *map(_ADDRESS, parameters)]
    except (RuntimeError, ValueError):
        return None
