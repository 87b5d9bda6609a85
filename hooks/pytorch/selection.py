"""Which of a model's weights and gradients a plan wants. Remembers answers in the plan; any one thread."""

from __future__ import annotations

from typing import NamedTuple

from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.model import ModelView
from tdcore.layout import TensorKind

__all__ = ["Selection", "select"]


class Selection(NamedTuple):
    """Positions in the view's parameters that one call takes. batch: of both lists in a row."""

    weights: list[int]
    gradients: list[int]
    batch: Batch


def select(view: ModelView, plan: Plan, weights: list[int], gradients: list[int]) -> Selection:
    """Those of the positions that the plan wants. Remembers the last answers: steps ask the same again."""
    key = ("selection", bool(weights), bool(gradients))
    known = plan.cache.get(key)
    if known is None or known[0] is not view or known[1:3] != (weights, gradients):
        chosen_weights, wants = _wanted(view, plan, weights, gradient=False)
        chosen_gradients, more = _wanted(view, plan, gradients, gradient=True)
        selection = Selection(chosen_weights, chosen_gradients, Batch(wants + more))
        known = plan.cache[key] = (view, weights, gradients, selection)
    answer: Selection = known[3]
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
