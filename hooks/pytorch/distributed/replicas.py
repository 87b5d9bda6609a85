"""Replicas: copies of the root that nn.DataParallel runs in threads. The first copy starts the steps.

Threads: the threads of the replicas; one at a time starts a step.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch
from torch import nn

from tdcore.hooks.run_notes import note_once

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.steps.driver import TrainingDriver
    from tdcore.hooks.pytorch.steps.root import Root

__all__ = ["Replicas"]

_INNER = (
    "outputs and inputs of modules are not captured, because replicas of the registered module run: register "
    "the nn.DataParallel to capture them"
)


class Replicas:
    """Replicas of a hook's first root."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def on_forward(self, hook: TrainingDriver, root: Root, replica: nn.Module) -> None:
        """Handle the start of a replica's forward."""
        held = (value for module in replica.modules() for value in module.__dict__.values())
        device = next((value.device for value in held if isinstance(value, torch.Tensor)), None)
        if root.has_inner or hook._by_hand or (device is not None and device.index):
            return
        note_once(hook._notes, hook._warn)(_INNER)
        with self._lock:
            hook._check_control()
            hook._guarded("steps", self._begin, hook, root, replica)

    @staticmethod
    def _begin(hook: TrainingDriver, root: Root, replica: nn.Module) -> None:
        trains = hook._find_step(root, replica)
        plan = hook._clock.plan
        if plan is not None:
            root.parameters.current_view()
            root.parameters.begin_forward(hook._clock.now.step_id, plan, trains=trains)
