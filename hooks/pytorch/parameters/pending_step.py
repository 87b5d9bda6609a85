"""PendingStep: state of a saved training step until the next step begins. StepCapture: one optimizer's part.

Threads: one at a time.
"""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.format.layout import TensorKind
from tdcore.hooks.clock import StepId
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.model.model_view import ModelView
from tdcore.hooks.pytorch.model.opt_in_series import any_requested
from tdcore.hooks.pytorch.parameters.grad_scaler import ScaleRecord
from tdcore.hooks.pytorch.parameters.optimizers import OptimizerEntry, owned_by
from tdcore.hooks.pytorch.parameters.selection import Selection, select

__all__ = [
    "Absent",
    "CachedCapture",
    "CaptureKinds",
    "PendingStep",
    "StepCapture",
    "is_zero",
    "kinds_of",
    "plan_step_capture",
]

_REQUIRES_GRAD = attrgetter("requires_grad")
_KINDS = (
    TensorKind.WEIGHT,
    TensorKind.BIAS,
    TensorKind.GRADIENT,
    TensorKind.OPTIMIZER_STATE,
    TensorKind.HYPERPARAMETER,
)


class Absent(IntEnum):
    """Reason why a gradient has no value: AbsentReason of csrc/ring/record.hpp."""

    NONE = 0
    NO_BACKWARD = 1
    NOT_STEPPED = 2
    CLEARED = 3
    ACCUMULATED = 4
    SCALER_SKIPPED = 5
    UNKNOWN = 6


class CaptureKinds(NamedTuple):
    """Whether a plan may select tensors of each kind. anything: any tensor of parameters or optimizers."""

    anything: bool
    weights: bool
    gradients: bool
    state: bool
    numbers: bool
    series: bool


def kinds_of(plan: Plan) -> CaptureKinds:
    """The kinds that a plan may select; computed once for each plan."""
    known: CaptureKinds | None = plan.cache.get("kinds")
    if known is None:
        may = plan.may_take
        known = plan.cache["kinds"] = CaptureKinds(
            anything=any(map(may, _KINDS)) or any_requested(plan),
            weights=may(TensorKind.WEIGHT) or may(TensorKind.BIAS),
            gradients=may(TensorKind.GRADIENT),
            state=may(TensorKind.OPTIMIZER_STATE),
            numbers=may(TensorKind.HYPERPARAMETER),
            series=any_requested(plan),
        )
    return known


class StepCapture(NamedTuple):
    """Capture at an optimizer's step.

    Attributes:
        positions: Positions of the optimizer's parameters in the view.
        owned: The same positions as a set.
    """

    selection: Selection
    positions: list[int]
    names: list[str]
    owned: frozenset[int]


class CachedCapture(NamedTuple):
    """A StepCapture, and the inputs from which it was computed."""

    question: tuple[Any, ...]
    capture: StepCapture


class PendingStep:
    """A saved training step of one root, whose gradients are captured when optimizers step."""

    closure = False  # an optimizer evaluates the model in a closure
    ran = False  # the root had a training forward in this step
    weights_done = False
    watched = False  # the order of the step's gradients is recorded

    def __init__(self, step_id: StepId, plan: Plan, kinds: CaptureKinds) -> None:
        self.step_id = step_id
        self.plan = plan
        self.kinds = kinds
        self.done: frozenset[int] = frozenset()  # positions whose gradient was captured or has a row
        self.captures: dict[int, int] = {}  # number of captures of each optimizer, by its index
        self.came = 0  # number of ready gradients at the last capture
        self.calls = 0  # the highest call of a gradient so far
        self.stepped: list[OptimizerEntry] = []  # optimizers that have stepped
        self.scalers: list[ScaleRecord] = []


def plan_step_capture(
    pending: PendingStep,
    view: ModelView,
    known: OptimizerEntry,
    optimizer: Optimizer,
    parameters: list[nn.Parameter],
) -> StepCapture:
    """Return the capture of the parameters that this optimizer holds, at its step. Stores the last result."""
    owned = list(map(id, owned_by(optimizer)))
    trainable = list(map(_REQUIRES_GRAD, parameters))
    weights = not pending.weights_done and pending.kinds.weights
    question = (pending.plan, view, weights, owned, view.ids, trainable)
    cached: CachedCapture | None = known.cached
    if cached is not None and cached.question == question:  # plans and views are compared by identity
        return cached.capture
    mine = set(owned)
    positions = [position for position, identity in enumerate(view.ids) if identity in mine]
    gradients = [position for position in positions if trainable[position]]
    everything = list(range(len(parameters))) if weights else []
    selection = select(view, pending.plan, everything, gradients)
    names = [view.parameters[position].name for position in positions]
    capture = StepCapture(selection, positions, names, frozenset(positions))
    known.cached = CachedCapture(question, capture)
    return capture


def is_zero(gradient: Any) -> bool:
    """Whether a plain gradient in host memory has only zeros; False on a device."""
    if (
        type(gradient) is not torch.Tensor
        or gradient.device.type != "cpu"
        or gradient.layout != torch.strided
    ):
        return False
    return not bool(gradient.detach().any())
