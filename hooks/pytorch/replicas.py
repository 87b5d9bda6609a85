"""Replicas: copies of the root that nn.DataParallel runs in threads; that on the first device is the clock.

Threads: those of the replicas; one at a time starts a step.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import nn

from tdcore.hooks.pytorch.series import noting
from tdcore.modes import ModeKeys

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.hook import Hook

__all__ = ["Replicas"]

_INNER = (
    "outputs and inputs of modules are not captured, because replicas run the registered module: register "
    "the nn.DataParallel to capture them"
)
_TRAIN, _EVAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value


class Replicas:
    """Those of one hook's first root."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def on_forward(self, hook: Hook, replica: nn.Module) -> None:
        """The forward of a copy begins."""
        held = (value for module in replica.modules() for value in module.__dict__.values())
        device = next((value.device for value in held if isinstance(value, torch.Tensor)), None)
        if hook._by_hand or (device is not None and device.index):
            return
        noting(hook._notes, hook._warn)(_INNER)
        with self._lock:
            hook._check_control()
            hook._guarded("steps", hook._start_step, _TRAIN if replica.training else _EVAL)
            if hook._clock.plan is not None and hook._parameters is not None:
                hook._guarded("parameters", hook._parameters.current_view)
                hook._guarded("parameters", hook._parameters.end_forward)
