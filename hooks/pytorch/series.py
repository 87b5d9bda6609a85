"""Series that cost extra work, so that only those who name them get them: `save_all` asks for none.

    backward_gradient/<parameter>     the gradient as each backward left it
    microbatch_gradient/<parameter>   what one backward alone gave
    weight_update/<parameter>         what the optimizer's step changed
    update_ratio/<parameter>          the norm of that, divided by the norm of the weight before

A collection asks for one when it is called so (backward_gradients, ...), or when a pattern or name that it
was given speaks of it. A pattern such as "fc1" asks for what a step has anyway, and for none of these.
What of a series that was asked for cannot be captured is said once, and noted in collections.json under
"not_captured". Pure functions of their arguments; answers are kept in the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import Plan, Want
from tdcore.hooks.pytorch.model import ModelView

__all__ = ["BACKWARD", "MICROBATCH", "RATIO", "UPDATE", "asks", "chosen", "noting"]

BACKWARD, MICROBATCH = "backward_gradient", "microbatch_gradient"
UPDATE, RATIO = "weight_update", "update_ratio"


def asks(plan: Plan) -> bool:
    """Whether any of the series is asked for."""
    known: bool | None = plan.cache.get("series")
    if known is None:
        words = (BACKWARD, MICROBATCH, UPDATE, RATIO)
        known = any(collection.speaks_of(word) for collection in plan.collections for word in words)
        plan.cache["series"] = known
    return known


def chosen(plan: Plan, view: ModelView, series: str) -> dict[int, Want]:
    """How to capture the series, by position of the parameter; nothing for those that are not asked for."""
    key = series, view.root_name
    known = plan.cache.get(key)
    if known is not None and known[0] is view:
        answer: dict[int, Want] = known[1]
        return answer
    asking = [collection for collection in plan.collections if collection.speaks_of(series)]
    found: dict[int, Want] = {}
    for position, (parameter, _, origin) in enumerate(view.parameters if asking else ()):
        name = f"{series}/{parameter}"
        if any(collection.belongs(name, TensorKind.CUSTOM, origin) for collection in asking):
            want = plan.want(name, TensorKind.CUSTOM, origin)
            if want is not None:
                found[position] = want
    plan.cache[key] = (view, found)
    return found


def noting(notes: dict[str, Any], warn: Callable[[str], None]) -> Callable[[str], None]:
    """Says once, and notes, what is not captured. notes: of collections.json."""

    def say(message: str) -> None:
        noted = notes.get("not_captured", [])
        if message not in noted:
            notes["not_captured"] = [*noted, message]
        warn(message)

    return say
