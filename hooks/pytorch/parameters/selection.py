"""Selection: weights and gradients that one native call captures, with their order and names.

Selections are stored in the plan, because most steps have the same selection as the previous step.
Threads: one at a time.
"""

from __future__ import annotations

from itertools import compress
from operator import attrgetter
from typing import NamedTuple

from torch import nn

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import CaptureSpec, Plan, Spec
from tdcore.hooks.pytorch.model.model_view import ModelView, Parameter

__all__ = ["Selection", "awaited", "in_order", "select"]

_REQUIRES_GRAD = attrgetter("requires_grad")
_NAME, _KIND, _ORIGIN = map(attrgetter, Parameter._fields)


class Selection(NamedTuple):
    """Weights and gradients that one call captures.

    Attributes:
        weights, gradients: Positions of the parameters whose weight or gradient is captured.
        capture_spec: Specs of the weights, followed by those of the gradients.
    """

    weights: list[int]
    gradients: list[int]
    capture_spec: CaptureSpec


def select(view: ModelView, plan: Plan, weights: list[int], gradients: list[int]) -> Selection:
    """Return the selection of the given weights and gradients that the plan selects."""
    key = ("selection", view.root_name, bool(weights), bool(gradients))
    known = plan.cache.get(key)
    if known is None or known[0] is not view or known[1:3] != (weights, gradients):
        chosen_weights, specs = _selected(view, plan, weights, gradient=False)
        chosen_gradients, more = _selected(view, plan, gradients, gradient=True)
        selection = Selection(chosen_weights, chosen_gradients, CaptureSpec(specs + more))
        known = plan.cache[key] = (view, weights, gradients, selection)
    answer: Selection = known[3]
    return answer


def awaited(view: ModelView, plan: Plan, parameters: list[nn.Parameter]) -> list[int]:
    """Return the positions of parameters that may get a gradient that the plan selects."""
    trainable = list(map(_REQUIRES_GRAD, parameters))
    known = plan.cache.get(("awaited", view.root_name))
    if known is None or known[0] is not view or known[1] != trainable:
        positions = list(compress(range(len(trainable)), trainable))
        chosen = _selected(view, plan, positions, gradient=True)[0]
        known = plan.cache["awaited", view.root_name] = (view, trainable, chosen)
    answer: list[int] = known[2]
    return answer


def in_order(view: ModelView, plan: Plan, selection: Selection, places: tuple[int, ...] | None) -> Selection:
    """Return the selection with its gradients in another order.

    places: Indices of the gradients in the new order; None: unchanged.
    """
    if places is None:
        return selection
    known = plan.cache.get(("in order", view.root_name))
    if known is None or known[0] is not selection or known[1] != places:
        first = len(selection.weights)
        gradients = list(map(selection.gradients.__getitem__, places))
        capture_spec = selection.capture_spec.permuted([*range(first), *(first + place for place in places)])
        known = plan.cache["in order", view.root_name] = (
            selection,
            places,
            Selection(selection.weights, gradients, capture_spec),
        )
    answer: Selection = known[2]
    return answer


def _selected(
    view: ModelView, plan: Plan, positions: list[int], *, gradient: bool
) -> tuple[list[int], list[Spec]]:
    chosen = list(map(view.parameters.__getitem__, positions))
    names, kinds, origins = (list(map(field, chosen)) for field in (_NAME, _KIND, _ORIGIN))
    if gradient:
        names, kinds = [f"gradient/{name}" for name in names], [TensorKind.GRADIENT] * len(names)
    specs = plan.specs(names, kinds, origins)
    selected = [spec for spec in specs if spec is not None]
    if len(selected) == len(specs):
        return positions, selected
    return [position for position, spec in zip(positions, specs, strict=True) if spec is not None], selected
