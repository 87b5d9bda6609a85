"""Selection: which weights and gradients one native call takes, in which order, under which names.

Every answer is remembered in the plan: most steps ask what the one before asked.
Threads: one at a time.
"""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import NamedTuple

from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.model import ModelView

__all__ = ["Selection", "awaited", "in_order", "select"]

_REQUIRES_GRAD = attrgetter("requires_grad")


class Selection(NamedTuple):
    """Positions in the view's parameters that one call takes. batch: of both lists in a row."""

    weights: list[int]
    gradients: list[int]
    batch: Batch


def select(view: ModelView, plan: Plan, weights: list[int], gradients: list[int]) -> Selection:
    """Those of the positions that the plan wants."""
    key = ("selection", view.root_name, bool(weights), bool(gradients))
    known = plan.cache.get(key)
    if known is None or known[0] is not view or known[1:3] != (weights, gradients):
        chosen_weights, wants = _wanted(view, plan, weights, gradient=False)
        chosen_gradients, more = _wanted(view, plan, gradients, gradient=True)
        selection = Selection(chosen_weights, chosen_gradients, Batch(wants + more))
        known = plan.cache[key] = (view, weights, gradients, selection)
    answer: Selection = known[3]
    return answer


def awaited(view: ModelView, plan: Plan, parameters: list[nn.Parameter]) -> list[int]:
    """Positions of those that may get a gradient which the plan wants."""
    trainable = list(map(_REQUIRES_GRAD, parameters))
    known = plan.cache.get(("awaited", view.root_name))
    if known is None or known[0] is not view or known[1] != trainable:
        positions = list(compress(range(len(trainable)), trainable))
        chosen = _wanted(view, plan, positions, gradient=True)[0]
        known = plan.cache["awaited", view.root_name] = (view, trainable, chosen)
    answer: list[int] = known[2]
    return answer


def in_order(view: ModelView, plan: Plan, selection: Selection, places: tuple[int, ...] | None) -> Selection:
    """The same with its gradients in another order. places: of the first, the second, ...; None: as it is."""
    if places is None:
        return selection
    known = plan.cache.get(("in order", view.root_name))
    if known is None or known[0] is not selection or known[1] != places:
        first = len(selection.weights)
        gradients = list(map(selection.gradients.__getitem__, places))
        batch = selection.batch.rearranged([*range(first), *(first + place for place in places)])
        known = plan.cache["in order", view.root_name] = (
            selection,
            places,
            Selection(selection.weights, gradients, batch),
        )
    answer: Selection = known[2]
    return answer


def _wanted(
    view: ModelView, plan: Plan, positions: list[int], *, gradient: bool
) -> tuple[list[int], list[Want]]:
    chosen: list[int] = []
    wants: list[Want] = []
    for position in positions:
        name, kind, origin = view.parameters[position]
        if gradient:
            name, kind = f"gradient/{name}", TensorKind.GRADIENT
        want = plan.want(name, kind, origin)
        if want is not None:
            chosen.append(position)
            wants.append(want)
    return chosen, wants
