"""Finds the new parameters among the results of a traced step.

A result is the new value of a parameter if it is the parameter with something added to it:

    weight - rate * gradient          found
    weight + update, clipped          found
    where(finite, new, weight)        found
    scan over steps, weight carried   found
    a gradient, a moving average      not found: the weight is a factor in it

So gradients and averages that the step also returns are never taken for parameters, whatever their names and
shapes are. An unchanged copy, such as the former parameters in the state of L-BFGS, is not the new value if
another result is. Pure functions, any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from jax.extend.core import ClosedJaxpr, Literal

__all__ = ["new_values"]

Sources = frozenset[tuple[int, bool]]  # positions of arguments, and whether something is added to them

_NONE: Sources = frozenset()
_ANY_OPERAND = frozenset({"add", "add_any", "max", "min"})
_FIRST_OPERAND = frozenset(
    {
        "broadcast_in_dim", "convert_element_type", "copy", "copy_p", "mesh_cast", "pcast", "pvary",
        "reduce_precision", "reshape", "reshard", "sharding_constraint", "squeeze", "tdcore_tap",
    }
)  # fmt: skip
_EACH_OPERAND = frozenset({"device_put", "optimization_barrier"})
_CALLS = frozenset(
    {
        "checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
        "custom_vjp_call_jaxpr", "jit", "pjit", "remat", "remat2", "shard_map",
    }
)  # fmt: skip


def new_values(closed: Any, arguments: Iterable[int]) -> dict[int, list[int]]:
    """Positions of the results that are an argument plus something, by position of the argument.

    Args:
        closed: The traced step.
        arguments: Positions of the arguments that are parameters.
    """
    jaxpr = closed.jaxpr
    wanted = set(arguments)
    sources = _flow(jaxpr, [_itself(at) if at in wanted else _NONE for at in range(len(jaxpr.invars))])
    changed: dict[int, list[int]] = defaultdict(list)
    unchanged: dict[int, list[int]] = defaultdict(list)
    for position, (result, reached) in enumerate(zip(jaxpr.outvars, sources, strict=True)):
        for argument in {argument for argument, _ in reached}:
            aval = jaxpr.invars[argument].aval
            if (aval.shape, aval.dtype) == (result.aval.shape, result.aval.dtype):
                (changed if (argument, True) in reached else unchanged)[argument].append(position)
    return {**{argument: copies[:1] for argument, copies in unchanged.items()}, **changed}


def _itself(argument: int) -> Sources:
    return frozenset({(argument, False)})


def _added_to(*operands: Sources) -> Sources:
    """Sources of the sum of these operands and others."""
    return frozenset((argument, True) for each in operands for argument, _ in each)


def _flow(jaxpr: Any, arguments: Sequence[Sources]) -> list[Sources]:
    """Sources of each result: the arguments that it equals, or to which the function adds something."""
    known: dict[Any, Sources] = dict(zip(jaxpr.invars, arguments, strict=True))

    def of(atom: Any) -> Sources:
        return _NONE if isinstance(atom, Literal) else known.get(atom, _NONE)

    for eqn in jaxpr.eqns:
        operands = [of(each) for each in eqn.invars]
        if any(operands):
            known.update(zip(eqn.outvars, _through(eqn, operands), strict=True))
    return [of(each) for each in jaxpr.outvars]


def _through(eqn: Any, operands: list[Sources]) -> list[Sources]:
    name, count = eqn.primitive.name, len(eqn.outvars)
    if name in _ANY_OPERAND:
        return [_added_to(*operands)]
    if name == "sub":
        return [_added_to(operands[0])]
    if name in _FIRST_OPERAND:
        return [operands[0] if _same_size(eqn) else _NONE]
    if name in _EACH_OPERAND and len(operands) == count:
        return operands
    if name == "select_n":
        return [_NONE.union(*operands[1:])]
    if name == "clamp":
        return [_added_to(operands[1])]
    if name == "cond":
        branches = [_flow(each.jaxpr, operands[1:]) for each in eqn.params["branches"]]
        return [_NONE.union(*each) for each in zip(*branches, strict=True)]
    if name == "scan":
        before, carried = eqn.params["num_consts"], eqn.params["num_carry"]
        return _carried(eqn.params["jaxpr"].jaxpr, operands, before, before, carried, count)
    if name == "while":
        before = eqn.params["body_nconsts"]
        skipped = eqn.params["cond_nconsts"] + before
        return _carried(eqn.params["body_jaxpr"].jaxpr, operands, before, skipped, count, count)
    if name in _CALLS:
        called = next(eqn.params[each] for each in ("jaxpr", "call_jaxpr", "fun_jaxpr") if each in eqn.params)
        body = called.jaxpr if isinstance(called, ClosedJaxpr) else called
        if len(body.invars) == len(operands):
            return _flow(body, operands)
    return [_NONE] * count


def _carried(
    body: Any, operands: list[Sources], before: int, skipped: int, carried: int, count: int
) -> list[Sources]:
    """Sources of the results of a loop. A carried value keeps its sources if each iteration adds to it.

    Args:
        body: The function of one iteration.
        operands: Sources of the operands of the loop.
        before: Number of arguments of the body in front of the carried values.
        skipped: Number of operands of the loop in front of the carried values.
        carried: Number of carried values.
        count: Number of results of the loop, the carried values first.
    """
    places = range(before, before + carried)
    inner = _flow(body, [_itself(at) if at in places else _NONE for at in range(len(body.invars))])
    kept = []
    for number, place in enumerate(places):
        first = operands[skipped + number]
        if (place, True) in inner[number]:
            kept.append(_added_to(first))
        else:
            kept.append(first if (place, False) in inner[number] else _NONE)
    return kept + [_NONE] * (count - carried)


def _same_size(eqn: Any) -> bool:
    return bool(prod(eqn.invars[0].aval.shape) == prod(eqn.outvars[0].aval.shape))
