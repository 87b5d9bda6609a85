"""What gradient scalers (torch.amp.GradScaler) tell: the scale, and whether they let a step happen.

A scaler is found by looking through all objects: as the first training step begins that is saved, and again
when a saved step had no gradients and no scaler is known. One that is made later has to be registered. It
is asked without waiting for a device:

    the scale       a copy of the scaler's own tensor
    step skipped    a scaler keeps, until its update(), what became of each optimizer; whoever holds that
                    record still has it afterwards. "Stepped", without a step that was seen: it found Inf.

Both are private to torch. Where they are missing, the scale of a fused step is still known, and a skipped
step reads as one without gradients.
Threads: the training thread, or the autograd thread that runs an optimizer; one at a time. Keeps no scaler or
optimizer alive; the records are kept from a saved step's start until it is paid for.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from tdcore.hooks.plan import Batch, Plan
from tdcore.hooks.pytorch.living import living
from tdcore.hooks.pytorch.optimizer import Known
from tdcore.layout import TensorKind

__all__ = ["GRAD_SCALER", "Rows", "ScaleRecord", "Scalers"]

_LOOKS = 3
GRAD_SCALER: type = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

Rows = tuple[list[Any], Batch]


class ScaleRecord:
    """One scaler as a step that is saved begins."""

    __slots__ = ("scale", "states")

    def __init__(self, scaler: Any) -> None:
        scale = _scale(scaler)
        self.scale = scale.clone() if scale is not None else getattr(scaler, "_init_scale", None)
        self.states: Mapping[int, Mapping[str, Any]] = getattr(scaler, "_per_optimizer_states", {})

    def skipped(self, optimizer: Optimizer) -> bool:
        """Of an optimizer that has not stepped: whether that is because the scaler found Inf or NaN."""
        stage = self.states[id(optimizer)].get("stage") if id(optimizer) in self.states else None
        return getattr(stage, "name", None) == "STEPPED"

    def rows(self, optimizer: Optimizer, prefix: str, plan: Plan) -> list[Rows]:
        """What to write of a step that was skipped."""
        return _rows(optimizer, prefix, plan, self.scale, 1.0)


class Scalers:
    """The enabled gradient scalers of this process."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._looks = 0

    def look(self, *, again: bool = False) -> None:
        """Looks through all objects if it never did, or (again) up to three times while none is known."""
        if self._looks and not (again and self._looks < _LOOKS and not self.alive):
            return
        self._looks += 1
        found = list(map(weakref.ref, living(GRAD_SCALER)))
        self._known = found or self._known

    def add(self, scaler: Any) -> None:
        """A scaler that the training says it has."""
        self._looks = max(self._looks, 1)
        if scaler not in self.alive:
            self._known.append(weakref.ref(scaler))

    @property
    def alive(self) -> list[Any]:
        """Those that still exist and scale."""
        scalers = [reference() for reference in self._known]
        return [scaler for scaler in scalers if scaler is not None and scaler.is_enabled()]

    def records(self) -> list[ScaleRecord]:
        """What will tell, later, what became of the step that begins now. Looks for them the first time."""
        if not self._looks:
            self.look()
        return [ScaleRecord(scaler) for scaler in self.alive] if self._known else []

    def in_use(self) -> list[torch.Tensor]:
        """Scales of those that have scaled a loss."""
        scales = [_scale(scaler) for scaler in self.alive] if self._known else []
        return [scale for scale in scales if scale is not None]

    def at_step(
        self, optimizer: Optimizer, known: Known, plan: Plan
    ) -> tuple[torch.Tensor | None, list[Rows]]:
        """An optimizer is about to step: by what its gradients are still to be divided, and rows to write."""
        pending, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not self._known and pending is None and found_inf is None:
            return None, []  # no scaler anywhere
        scale = divisor = pending if isinstance(pending, torch.Tensor) else None
        for scaler in self.alive if self._known else ():
            if id(optimizer) in getattr(scaler, "_per_optimizer_states", ()):
                scale = scale if scale is not None else _scale(scaler)
                found_inf = found_inf if found_inf is not None else 0.0
        return divisor, _rows(optimizer, known.prefix, plan, scale, found_inf)


def _scale(scaler: Any) -> torch.Tensor | None:
    """None: it has scaled nothing yet, or does not tell."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def _rows(optimizer: Optimizer, prefix: str, plan: Plan, scale: Any, found_inf: Any) -> list[Rows]:
    found: list[Rows] = []
    for what, value in (("grad_scale", scale), ("found_inf", found_inf)):
        if value is not None:
            name = f"{prefix}/{what}"
            want = plan.insist(name, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
            found.append(([value if isinstance(value, torch.Tensor) else np.float64(value)], Batch([want])))
    return found
