"""What a saved step owes until an optimizer steps, and what such a step pays. Threads: one at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch.optimizer import Known
from tdcore.hooks.pytorch.scaler import ScaleRecord
from tdcore.hooks.pytorch.selection import Selection

__all__ = ["Memo", "Owed", "Payment"]


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

    __slots__ = ("done", "inside_step", "plan", "scalers", "stamp", "stepped", "watched", "weights_done")

    def __init__(self, stamp: Stamp, plan: Plan, *, inside_step: bool) -> None:
        self.stamp = stamp
        self.plan = plan
        self.inside_step = inside_step  # its forward ran in the closure of an optimizer
        self.weights_done = False
        self.watched = False  # the order of its gradients is being noted
        self.done: frozenset[int] = frozenset()  # positions paid for by an optimizer
        self.stepped: list[Known] = []  # optimizers that did
        self.scalers: list[ScaleRecord] = []
