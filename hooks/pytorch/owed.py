"""What a saved step owes until an optimizer steps, and what such a step pays. Threads: one at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.optimizer import Known
from tdcore.hooks.pytorch.scaler import ScaleRecord
from tdcore.hooks.pytorch.selection import Selection
from tdcore.hooks.pytorch.series import asks
from tdcore.layout import TensorKind

__all__ = ["Asked", "Memo", "Owed", "Payment", "asked"]

_KINDS = (
    TensorKind.WEIGHT,
    TensorKind.BIAS,
    TensorKind.GRADIENT,
    TensorKind.OPTIMIZER_STATE,
    TensorKind.HYPERPARAMETER,
)


class Asked(NamedTuple):
    """Whether a plan may take any of these. anything: of the parameters, or of their optimizers."""

    anything: bool
    gradients: bool
    state: bool
    numbers: bool
    series: bool


def asked(plan: Plan) -> Asked:
    """Found out once for each plan."""
    known: Asked | None = plan.cache.get("asked")
    if known is None:
        may = plan.may_take
        known = plan.cache["asked"] = Asked(
            anything=any(map(may, _KINDS)) or asks(plan),
            gradients=may(TensorKind.GRADIENT),
            state=may(TensorKind.OPTIMIZER_STATE),
            numbers=may(TensorKind.HYPERPARAMETER),
            series=asks(plan),
        )
    return known


class Payment(NamedTuple):
    """What one step of an optimizer pays for. positions: in the view's parameters. paid: those as a set."""

    selection: Selection
    positions: list[int]
    names: list[str]
    paid: frozenset[int]


class Memo(NamedTuple):
    """A payment, and what it depends on. foreign: positions of parameters that other optimizers may own."""

    question: tuple[Any, ...]
    foreign: list[int]
    about_others: tuple[set[int], list[bool]]
    payment: Payment


class Owed:
    """A saved step whose weights or gradients are still to be captured."""

    watched = False  # the order of its gradients is being noted
    done: frozenset[int] = frozenset()  # positions paid for by an optimizer

    def __init__(self, stamp: Stamp, plan: Plan, asked: Asked, inside_step: bool, weights_done: bool) -> None:
        self.stamp = stamp
        self.plan = plan
        self.asked = asked
        self.inside_step = inside_step  # its forward ran in the closure of an optimizer
        self.weights_done = weights_done
        self.stepped: list[Known] = []  # optimizers that did
        self.scalers: list[ScaleRecord] = []
