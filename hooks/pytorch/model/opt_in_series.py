"""Series of tensors that cost extra work: captured only where a collection requests them, not by `save_all`.

    backward_gradient/<parameter>     the gradient after each backward
    microbatch_gradient/<parameter>   the gradient of one backward alone
    weight_update/<parameter>         the change of the weight in the optimizer's step
    update_ratio/<parameter>          norm of the weight update, divided by the norm of the weight before it

A collection requests a series by its own name (backward_gradients, ...), or by a pattern or name that
contains the name of the series. A pattern such as "fc1" requests no series. A requested series that cannot be
captured is logged once and noted in collections.json under "not_captured". Pure functions of their arguments;
results are stored in the plan.
"""

from __future__ import annotations

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan, TensorSpec
from tdcore.hooks.pytorch.model.model_view import ModelView

__all__ = ["BACKWARD", "MICROBATCH", "RATIO", "UPDATE", "any_requested", "requested"]

BACKWARD, MICROBATCH = "backward_gradient", "microbatch_gradient"
UPDATE, RATIO = "weight_update", "update_ratio"


def any_requested(plan: Plan) -> bool:
    """Return whether any of the series is requested."""
    known: bool | None = plan.cache.get("series")
    if known is None:
        words = (BACKWARD, MICROBATCH, UPDATE, RATIO)
        known = any(collection.speaks_of(word) for collection in plan.collections for word in words)
        plan.cache["series"] = known
    return known


def requested(plan: Plan, view: ModelView, series: str) -> dict[int, TensorSpec]:
    """Return the specs of the series by position of the parameter, for the requested parameters only."""
    key = series, view.root_name
    known = plan.cache.get(key)
    if known is not None and known[0] is view:
        answer: dict[int, TensorSpec] = known[1]
        return answer
    asking = [collection for collection in plan.collections if collection.speaks_of(series)]
    found: dict[int, TensorSpec] = {}
    for position, (parameter, _, origin) in enumerate(view.parameters if asking else ()):
        name = f"{series}/{parameter}"
        if any(collection.belongs(name, TensorKind.CUSTOM, origin) for collection in asking):
            spec = plan.spec(name, TensorKind.CUSTOM, origin)
            if spec is not None:
                found[position] = spec
    plan.cache[key] = (view, found)
    return found
