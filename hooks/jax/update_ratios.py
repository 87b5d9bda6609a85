"""Relative size of the update of each parameter in a step, if requested.

    update_ratio/<parameter>    norm of the update / norm of the parameter before it

Both are L2 norms, summed in float64. In a saved step the requested parameters are copied before the script's
function runs, because the function may donate or change them. The update is the difference between the
parameters that the function returns and these copies. It is computed on the devices of the parameters, in
their precision; for half precision in float32. The ratio of a parameter of zeros is infinite (NaN if the
parameter does not change). The ratio of a parameter with NaN or Inf is NaN.
Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.jax.step_values import NamedLeaf
from tdcore.hooks.plan import Plan, TensorSpec

__all__ = ["RATIO", "CopiedParameter", "copied_parameters", "ratio_of", "requests_ratios"]

RATIO = "update_ratio"

_HALF = frozenset({"bfloat16", "float16"})
_TYPES = frozenset({*_HALF, "float32", "float64", "complex64", "complex128"})


class CopiedParameter(NamedTuple):
    """A parameter before the step. position: in the leaves of the arguments."""

    position: int
    name: str
    before: jax.Array
    spec: TensorSpec


def requests_ratios(plan: Plan) -> bool:
    """Whether a collection requests update ratios."""
    return any(each.speaks_of(RATIO) for each in plan.collections)


def copied_parameters(plan: Plan, named: Sequence[NamedLeaf], values: Sequence[Any]) -> list[CopiedParameter]:
    """Copies of the parameters whose ratios are requested.

    Args:
        plan: Selects the ratios.
        named: Parameters and state of the step.
        values: The leaves of the arguments.
    """
    asking = [each for each in plan.collections if each.speaks_of(RATIO)]
    found = []
    for leaf in named if asking else ():
        value = values[leaf.position]
        name = f"{RATIO}/{leaf.name}"
        if (
            leaf.kind not in (TensorKind.WEIGHT, TensorKind.BIAS)
            or value.dtype.name not in _TYPES
            or not getattr(value, "is_fully_addressable", True)
            or not any(each.belongs(name, TensorKind.CUSTOM) for each in asking)
        ):
            continue
        spec = plan.spec(name, TensorKind.CUSTOM)
        if spec is not None:
            before = value.copy() if isinstance(value, jax.Array) else jnp.array(value)
            found.append(CopiedParameter(leaf.position, name, before, spec.whole))
    return found


def ratio_of(before: jax.Array, after: Any) -> Any:
    """The ratio as a float64 array without dimensions."""
    after = after if isinstance(after, jax.Array) else jnp.asarray(after)
    with jax.enable_x64(True):
        return np.asarray(_ratio(jax.device_put(before, after.sharding), after))


def _computed_ratio(before: jax.Array, after: jax.Array) -> jax.Array:
    wide = jnp.float32 if before.dtype.name in _HALF else before.dtype
    ratio = _norm(after.astype(wide) - before.astype(wide)) / _norm(before)
    return jnp.where(jnp.isfinite(before).all() & jnp.isfinite(after).all(), ratio, jnp.nan)


_ratio = jax.jit(_computed_ratio)


def _norm(values: jax.Array) -> jax.Array:
    parts = (values.real, values.imag) if jnp.iscomplexobj(values) else (values,)
    return jnp.sqrt(sum(jnp.square(each.astype(jnp.float64)).sum() for each in parts))
