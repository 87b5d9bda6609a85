"""What gradient scalers (torch.amp.GradScaler) tell: the scale, and whether they let a step happen.

A scaler is found by looking through all objects: as the first training step begins that is saved, and again
when a saved step had no gradients and no scaler is known. One that is made later has to be registered. It
is asked without waiting for a device:

    the scale       a copy of the scaler's own tensor
    still scaled    gradients whose optimizer does not step (the other of two, half a window at the end) are
                    divided by the scale that the step began with, unless the record below says "unscaled"
    step skipped    a scaler keeps, until its update(), what became of each optimizer; whoever holds that
                    record still has it afterwards. "Stepped", without a step that was seen: it found Inf.

Both are private to torch. Where they are missing, the scale of a fused step is still known, and a skipped
step reads as one without gradients.
Threads: the training thread, or the autograd thread that runs an optimizer; one at a time. Keeps no scaler or
optimizer alive; the records are kept from a saved step's start until it is paid for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Batch, Plan
from tdcore.hooks.pytorch.living import living
from tdcore.hooks.pytorch.optimizer import Known, owned_by

__all__ = ["GRAD_SCALER", "Rows", "ScaleRecord", "Scalers"]

_LOOKS = 3
_SEVERAL = (
    "several gradient scalers are in use: gradients whose optimizer does not step are not captured, "
    "because it is not known by which scale they are multiplied"
)
GRAD_SCALER: type = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

Rows = tuple[list[Any], Batch]


class ScaleRecord:
    """One scaler as a step that is saved begins."""

    __slots__ = ("_scaler", "scale", "states")

    def __init__(self, scaler: Any) -> None:
        self._scaler = weakref.ref(scaler)
        scale = _scale(scaler)
        self.scale = scale.clone() if scale is not None else getattr(scaler, "_init_scale", None)
        self.states: Mapping[int, Mapping[str, Any]] = getattr(scaler, "_per_optimizer_states", {})

    def skipped(self, optimizer: Optimizer) -> bool:
        """Of an optimizer that has not stepped: whether that is because the scaler found Inf or NaN."""
        return self.knows(optimizer) and self._stage(optimizer) == "STEPPED"

    def knows(self, optimizer: Optimizer) -> bool:
        """Whether the scaler has looked at the gradients of the optimizer since."""
        return id(optimizer) in self.states

    @property
    def used(self) -> bool:
        """Whether it has scaled a loss, as far as it tells."""
        scaler = self._scaler()
        return isinstance(self.scale, torch.Tensor) or (scaler is not None and _scale(scaler) is not None)

    def left_on(self, optimizer: Optimizer) -> Any:
        """By what the gradients of an optimizer that it knows are still multiplied; None: by nothing."""
        return None if self._stage(optimizer) in ("UNSCALED", "STEPPED") else self.scale

    def _stage(self, optimizer: Optimizer) -> str | None:
        return getattr(self.states[id(optimizer)].get("stage"), "name", None)

    def rows(self, optimizer: Optimizer, prefix: str, plan: Plan) -> list[Rows]:
        """What to write of a step that was skipped."""
        return _rows(optimizer, prefix, plan, self.scale, 1.0)


class Scalers:
    """The enabled gradient scalers of this process."""

    def __init__(self) -> None:
        self.found: list[weakref.ref[Any]] = []  # or registered
        self._looks = 0
        self._without: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that step without a scaler

    def look(self, *, again: bool = False) -> None:
        """Looks through all objects if it never did, or (again) up to three times while none is known."""
        if self._looks and not (again and self._looks < _LOOKS and not self.alive):
            return
        self._looks += 1
        found = list(map(weakref.ref, living(GRAD_SCALER)))
        self.found = found or self.found

    def add(self, scaler: Any) -> None:
        """A scaler that the training says it has."""
        self._looks = max(self._looks, 1)
        if scaler not in self.alive:
            self.found.append(weakref.ref(scaler))

    def states(self) -> list[tuple[weakref.ref[Any], Mapping[int, Any]]]:
        """What each keeps of its iteration, by id of the optimizer: another object after its update()."""
        found: list[tuple[weakref.ref[Any], Mapping[int, Any]]] = []
        for reference in self.found:
            states = getattr(reference(), "_per_optimizer_states", None)
            if states is not None:
                found.append((reference, states))
        return found

    @property
    def alive(self) -> list[Any]:
        """Those that still exist and scale."""
        scalers = [reference() for reference in self.found]
        return [scaler for scaler in scalers if scaler is not None and scaler.is_enabled()]

    def records(self) -> list[ScaleRecord]:
        """What will tell, later, what became of the step that begins now. Looks for them the first time."""
        if not self._looks:
            self.look()
        return [ScaleRecord(scaler) for scaler in self.alive] if self.found else []

    def in_use(self) -> list[torch.Tensor]:
        """Scales of those that have scaled a loss."""
        scales = [_scale(scaler) for scaler in self.alive] if self.found else []
        return [scale for scale in scales if scale is not None]

    def at_step(
        self, optimizer: Optimizer, known: Known, plan: Plan
    ) -> tuple[torch.Tensor | None, list[Rows]]:
        """An optimizer is about to step: by what its gradients are still to be divided, and rows to write."""
        pending, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not self.found and pending is None and found_inf is None:
            return None, []  # no scaler anywhere
        scale = divisor = pending if isinstance(pending, torch.Tensor) else None
        if self.found:
            self._without.add(optimizer)
        for scaler in self.alive if self.found else ():
            if id(optimizer) in getattr(scaler, "_per_optimizer_states", ()):
                self._without.discard(optimizer)
                scale = scale if scale is not None else _scale(scaler)
                found_inf = found_inf if found_inf is not None else 0.0
        return divisor, _rows(optimizer, known.prefix, plan, scale, found_inf)

    def left_scaled(
        self,
        records: list[ScaleRecord],
        optimizers: list[Optimizer],
        parameters: list[nn.Parameter],
        positions: list[int],
        say: Callable[[str], None],
    ) -> dict[int, Any]:
        """By what gradients are still multiplied whose optimizer has not stepped; None: by nothing.

        records: of the step. positions: in parameters. One is left out, and that said, where several
        scalers may have scaled it. An optimizer that is used to step without a scaler has none.
        """
        told: dict[int, Any] = {}  # by id of the parameter
        for optimizer in optimizers:
            knowing = next((record for record in records if record.knows(optimizer)), None)
            if knowing is not None:
                told |= dict.fromkeys(map(id, owned_by(optimizer)), knowing.left_on(optimizer))
            elif optimizer in self._without:
                told = dict.fromkeys(map(id, owned_by(optimizer))) | told
        used = [record.scale for record in records if record.used]
        usual = used[0] if used else None
        scales = {position: told.get(id(parameters[position]), usual) for position in positions}
        unknown = [position for position in positions if id(parameters[position]) not in told]
        if len(used) > 1 and unknown:
            say(_SEVERAL)
            scales = {position: scale for position, scale in scales.items() if position not in unknown}
        return scales


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
