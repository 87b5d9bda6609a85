"""What a saved step owes until an optimizer steps, and what such a step pays. Threads: one at a time."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.model import ModelView
from tdcore.hooks.pytorch.optimizer import Known, Optimizers, owned_by
from tdcore.hooks.pytorch.scaler import ScaleRecord
from tdcore.hooks.pytorch.selection import Selection, select
from tdcore.hooks.pytorch.series import asks
from tdcore.layout import TensorKind

__all__ = ["Asked", "Memo", "Owed", "Payment", "asked", "payment_of", "versions_of"]

_REQUIRES_GRAD, _VERSION = attrgetter("requires_grad"), attrgetter("_version")
_ADDRESS = torch.Tensor.data_ptr
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
    weights: bool
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
            weights=may(TensorKind.WEIGHT) or may(TensorKind.BIAS),
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
    versions: list[int] | None = None  # of the parameters, as its forward began; None: not known

    def __init__(self, stamp: Stamp, plan: Plan, asked: Asked, inside_step: bool, weights_done: bool) -> None:
        self.stamp = stamp
        self.plan = plan
        self.asked = asked
        self.inside_step = inside_step  # its forward ran in the closure of an optimizer
        self.weights_done = weights_done or not asked.weights
        self.stepped: list[Known] = []  # optimizers that did
        self.scalers: list[ScaleRecord] = []


def versions_of(parameters: list[nn.Parameter]) -> list[int] | None:
    """Of all what changes in place add to, then where their values are. None: not known (inference)."""
    try:
        return [*map(_VERSION, parameters), *map(_ADDRESS, parameters)]
    except (RuntimeError, ValueError):  # ValueError: lazy ones, before their first forward
        return None


def payment_of(
    owed: Owed,
    view: ModelView,
    optimizers: Optimizers,
    known: Known,
    optimizer: Optimizer,
    parameters: list[nn.Parameter],
) -> Payment:
    """What this optimizer's step pays for. Remembered: a usual step asks the same as the one before."""
    ids = view.ids
    owned = list(map(id, owned_by(optimizer)))
    trainable = list(map(_REQUIRES_GRAD, parameters))
    question = (owed.plan, view, owed.weights_done, owed.done, owned, ids, trainable)
    memo: Memo | None = known.memo
    if (
        memo is not None
        and memo.question == question  # plans and views are equal only when they are the same
        and (
            not memo.foreign
            or memo.about_others == _about_others(optimizers, known, memo.foreign, parameters)
        )
    ):
        return memo.payment
    mine = set(owned)
    foreign = [position for position, identity in enumerate(ids) if identity not in mine]
    about_others = others, has_gradient = _about_others(optimizers, known, foreign, parameters)
    left = {
        position
        for position, has in zip(foreign, has_gradient, strict=True)
        if ids[position] in others or (trainable[position] and not has)
    }
    positions = [
        position for position in range(len(ids)) if position not in owed.done and position not in left
    ]
    gradients = [position for position in positions if trainable[position]]
    selection = select(view, owed.plan, [] if owed.weights_done else positions, gradients)
    names = [view.parameters[position].name for position in positions]
    payment = Payment(selection, positions, names, frozenset(positions))
    known.memo = Memo(question, foreign, about_others, payment)
    return payment


def _about_others(
    optimizers: Optimizers, known: Known, foreign: list[int], parameters: list[nn.Parameter]
) -> tuple[set[int], list[bool]]:
    """Ids of what other optimizers own, and which parameters that are not of this one have gradients."""
    if not foreign:
        return set(), []
    has_gradient = [parameters[position].grad is not None for position in foreign]
    return optimizers.owned_by_others(known), has_gradient
