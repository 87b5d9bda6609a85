"""State of a saved training step until the next one begins, and what one optimizer's step captures of it.

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
from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.model import ModelView
from tdcore.hooks.pytorch.optimizer import Known, owned_by
from tdcore.hooks.pytorch.scaler import ScaleRecord
from tdcore.hooks.pytorch.selection import Selection, select
from tdcore.hooks.pytorch.series import asks

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
    """Why a gradient has no value: AbsentReason of csrc/ring/record.hpp."""

    NONE = 0
    NO_BACKWARD = 1
    NOT_STEPPED = 2
    CLEARED = 3
    ACCUMULATED = 4
    SCALER_SKIPPED = 5
    UNKNOWN = 6


class CaptureKinds(NamedTuple):
    """Whether a plan may take any of these. anything: of the parameters, or of their optimizers."""

    anything: bool
    weights: bool
    gradients: bool
    state: bool
    numbers: bool
    series: bool


def kinds_of(plan: Plan) -> CaptureKinds:
    """Computed once for each plan."""
    known: CaptureKinds | None = plan.cache.get("kinds")
    if known is None:
        may = plan.may_take
        known = plan.cache["kinds"] = CaptureKinds(
            anything=any(map(may, _KINDS)) or asks(plan),
            weights=may(TensorKind.WEIGHT) or may(TensorKind.BIAS),
            gradients=may(TensorKind.GRADIENT),
            state=may(TensorKind.OPTIMIZER_STATE),
            numbers=may(TensorKind.HYPERPARAMETER),
            series=asks(plan),
        )
    return known


class StepCapture(NamedTuple):
    """What one step of an optimizer captures. positions: in the view's parameters. owned: those as a set."""

    selection: Selection
    positions: list[int]
    names: list[str]
    owned: frozenset[int]


class CachedCapture(NamedTuple):
    """A StepCapture, and what it depends on."""

    question: tuple[Any, ...]
    capture: StepCapture


class PendingStep:
    """A saved training step of one root: its gradients are captured when optimizers step."""

    closure = False  # an optimizer evaluates the model in it
    ran = False  # the root had a training forward in it
    weights_done = False
    watched = False  # the order of its gradients is being noted

    def __init__(self, stamp: Stamp, plan: Plan, kinds: CaptureKinds) -> None:
        self.stamp = stamp
        self.plan = plan
        self.kinds = kinds
        self.done: frozenset[int] = frozenset()  # positions whose gradient was captured or has a row
        self.captures: dict[int, int] = {}  # how often each optimizer was captured, by its index
        self.came = 0  # how many gradients had come at the last capture
        self.calls = 0  # the highest call of a gradient so far
        self.stepped: list[Known] = []  # optimizers that did
        self.scalers: list[ScaleRecord] = []


def plan_step_capture(
    pending: PendingStep, view: ModelView, known: Known, optimizer: Optimizer, parameters: list[nn.Parameter]
) -> StepCapture:
    """What this optimizer's step captures: the parameters that it holds. Remembers the last answer."""
    owned = list(map(id, owned_by(optimizer)))
    trainable = list(map(_REQUIRES_GRAD, parameters))
    weights = not pending.weights_done and pending.kinds.weights
    question = (pending.plan, view, weights, owned, view.ids, trainable)
    cached: CachedCapture | None = known.cached
    if cached is not None and cached.question == question:  # plans and views are equal only when the same
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
    """Whether a plain gradient in host memory holds zeros only; False on a device."""
    if (
        type(gradient) is not torch.Tensor
        or gradient.device.type != "cpu"
        or gradient.layout != torch.strided
    ):
        return False
    return not bool(gradient.detach().any())
