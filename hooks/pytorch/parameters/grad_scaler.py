"""Gradient scalers (torch.amp.GradScaler): their scale, and the optimizer steps that they skip.

Scalers are searched among all live objects when the first saved training step begins, and again when a saved
step had no gradients and no scaler is known. A scaler that is created later must be registered. The
attributes of a scaler are read without waiting for a device:

    the scale       a copy of the scaler's own tensor
    still scaled    gradients whose optimizer does not step (one of two optimizers, or an incomplete
                    accumulation at the end) are divided by the scale at the start of the step, unless the
                    record below contains "unscaled"
    step skipped    until its update(), a scaler keeps a record of each optimizer; a reference to the record
                    stays valid afterwards. If the record contains "stepped", and no step was observed, the
                    scaler found Inf or NaN

The tensor and the records are private to torch. Without them, the scale of a fused step is still known, and a
skipped step is recorded like a step without gradients.

Threads: the training thread, or the autograd thread that runs an optimizer; one at a time. Keeps no scaler or
optimizer alive; the records are kept from the start of a saved step until its optimizers have stepped.
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
from tdcore.hooks.plan import CaptureSpec, Plan
from tdcore.hooks.pytorch.model.introspection import LiveObjects
from tdcore.hooks.pytorch.parameters.optimizers import OptimizerEntry, owned_by

__all__ = ["GRAD_SCALER", "NamedValues", "ScaleRecord", "Scalers"]

_LOOKS = 3
_SEVERAL = (
    "several gradient scalers are in use: gradients whose optimizer does not step are not captured, "
    "because the scale of each gradient is not known"
)
GRAD_SCALER: type = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

NamedValues = tuple[list[Any], CaptureSpec]


class ScaleRecord:
    """State of one scaler at the start of a saved step."""

    __slots__ = ("_scaler", "scale", "states")

    def __init__(self, scaler: Any) -> None:
        self._scaler = weakref.ref(scaler)
        scale = _scale(scaler)
        self.scale = scale.clone() if scale is not None else getattr(scaler, "_init_scale", None)
        self.states: Mapping[int, Mapping[str, Any]] = getattr(scaler, "_per_optimizer_states", {})

    def skipped(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer has not stepped because the scaler found Inf or NaN."""
        return self.has_checked(optimizer) and self._stage(optimizer) == "STEPPED"

    def has_checked(self, optimizer: Optimizer) -> bool:
        """Whether the scaler has checked the gradients of the optimizer in this step."""
        return id(optimizer) in self.states

    @property
    def used(self) -> bool:
        """Whether the attributes of the scaler show that it has scaled a loss."""
        scaler = self._scaler()
        return isinstance(self.scale, torch.Tensor) or (scaler is not None and _scale(scaler) is not None)

    def remaining_scale(self, optimizer: Optimizer) -> Any:
        """Return the factor that is still in the gradients of a checked optimizer; None: no factor."""
        return None if self._stage(optimizer) in ("UNSCALED", "STEPPED") else self.scale

    def _stage(self, optimizer: Optimizer) -> str | None:
        return getattr(self.states[id(optimizer)].get("stage"), "name", None)

    def rows(self, optimizer: Optimizer, prefix: str, plan: Plan) -> list[NamedValues]:
        """Rows for a skipped step."""
        return _rows(optimizer, prefix, plan, self.scale, 1.0)


class Scalers:
    """The enabled gradient scalers of this process."""

    def __init__(self) -> None:
        self.found: list[weakref.ref[Any]] = []  # found or registered scalers
        self._looks = 0
        self._without: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that step without a scaler

    def look(self, objects: LiveObjects | None = None, *, again: bool = False) -> None:
        """Search all objects once for scalers.

        Args:
            objects: The objects to search; None: all live objects.
            again: Search up to three times while no scaler is known.
        """
        if self._looks and not (again and self._looks < _LOOKS and not self.alive):
            return
        self._looks += 1
        found = list(map(weakref.ref, (objects or LiveObjects(GRAD_SCALER)).instances(GRAD_SCALER)))
        self.found = found or self.found

    def add(self, scaler: Any) -> None:
        """Add a scaler that the script registers."""
        self._looks = max(self._looks, 1)
        if scaler not in self.alive:
            self.found.append(weakref.ref(scaler))

    def states(self) -> list[tuple[weakref.ref[Any], Mapping[int, Any]]]:
        """Records of each scaler by id of the optimizer. An update() of the scaler replaces them."""
        found: list[tuple[weakref.ref[Any], Mapping[int, Any]]] = []
        for reference in self.found:
            states = getattr(reference(), "_per_optimizer_states", None)
            if states is not None:
                found.append((reference, states))
        return found

    @property
    def alive(self) -> list[Any]:
        """Scalers that still exist and are enabled."""
        scalers = [reference() for reference in self.found]
        return [scaler for scaler in scalers if scaler is not None and scaler.is_enabled()]

    def records(self) -> list[ScaleRecord]:
        """Return a record of each scaler at the start of a step. The first call searches for scalers."""
        if not self._looks:
            self.look()
        return [ScaleRecord(scaler) for scaler in self.alive] if self.found else []

    def in_use(self) -> list[torch.Tensor]:
        """Scales of the scalers that have scaled a loss."""
        scales = [_scale(scaler) for scaler in self.alive] if self.found else []
        return [scale for scale in scales if scale is not None]

    def at_step(
        self, optimizer: Optimizer, known: OptimizerEntry, plan: Plan
    ) -> tuple[torch.Tensor | None, list[NamedValues]]:
        """Return the remaining scale of the gradients before an optimizer steps, and further rows."""
        pending, found_inf = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
        if not self.found and pending is None and found_inf is None:
            return None, []  # there is no scaler
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
        note: Callable[[str], None],
    ) -> dict[int, Any]:
        """Return remaining scales of gradients whose optimizer has not stepped; None: not scaled.

        A gradient that several scalers may have scaled is left out, and a message is logged. An optimizer
        that usually steps without a scaler has no scale.

        Args:
            records: Records of the step.
            optimizers: The optimizers.
            parameters: The parameters.
            positions: Positions in `parameters`.
            note: Logs a message once and stores it in the notes.
        """
        by_parameter: dict[int, Any] = {}  # key: id of the parameter
        for optimizer in optimizers:
            knowing = next((record for record in records if record.has_checked(optimizer)), None)
            if knowing is not None:
                by_parameter |= dict.fromkeys(
                    map(id, owned_by(optimizer)), knowing.remaining_scale(optimizer)
                )
            elif optimizer in self._without:
                by_parameter = dict.fromkeys(map(id, owned_by(optimizer))) | by_parameter
        used = [record.scale for record in records if record.used]
        usual = used[0] if used else None
        scales = {position: by_parameter.get(id(parameters[position]), usual) for position in positions}
        unknown = [position for position in positions if id(parameters[position]) not in by_parameter]
        if len(used) > 1 and unknown:
            note(_SEVERAL)
            scales = {position: scale for position, scale in scales.items() if position not in unknown}
        return scales


def _scale(scaler: Any) -> torch.Tensor | None:
    """Return the scale tensor; None if no loss was scaled yet, or if torch does not provide the scale."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def _rows(optimizer: Optimizer, prefix: str, plan: Plan, scale: Any, found_inf: Any) -> list[NamedValues]:
    found: list[NamedValues] = []
    for what, value in (("grad_scale", scale), ("found_inf", found_inf)):
        if value is not None:
            name = f"{prefix}/{what}"
            spec = plan.always(name, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
            found.append(
                ([value if isinstance(value, torch.Tensor) else np.float64(value)], CaptureSpec([spec]))
            )
    return found
