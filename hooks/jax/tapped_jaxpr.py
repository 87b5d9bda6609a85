"""Lifts the marked values of a traced step out of it: a jaxpr whose results are the taps alone.

    jit, remat        the tap becomes a further result
    scan              a further result with the iterations in front
    shard_map, pmap   a further result with the values of all devices, joined along the first axis
    custom_jvp, custom_vjp   the function in it takes its place

Taps in while loops, conditions and other operations are not lifted; their numbers are returned. The
computation that is repeated in the backward of a remat repeats its taps, which are left out.
Threads: the training thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var, jaxpr_as_fun
from jax.sharding import PartitionSpec

from tdcore.hooks.jax.taps import TAP

__all__ = ["LiftedTap", "LiftedTaps", "Scanned", "Sharded", "lift"]

_CUSTOM = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_DEBUG = frozenset({"debug_callback", "debug_print"})
_JIT = frozenset({"jit", "pjit"})
_REMAT = frozenset({"remat", "remat2", "checkpoint"})


@dataclass(frozen=True, slots=True)
class Scanned:
    """The tap has one value for each iteration, along a new first axis."""

    length: int


@dataclass(frozen=True, slots=True)
class Sharded:
    """The tap has one value for each position in the mesh, joined along the first axis.

    axes: names of the axes of the mesh. sizes: numbers of devices along them.
    """

    axes: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.sizes)


@dataclass(frozen=True, slots=True)
class LiftedTap:
    """A result of the lifted jaxpr. levels: from the inner to the outer."""

    number: int
    levels: tuple[Scanned | Sharded, ...] = ()


@dataclass(frozen=True, slots=True)
class LiftedTaps:
    """The taps of a step.

    Attributes:
        function: Takes the constants and the arguments of the step, and returns the values of the taps.
        consts: The constants.
        taps: One for each result.
        unreachable: Numbers of taps that cannot be lifted.
        effects: Effects of the step that a second execution would repeat, as words.
    """

    function: Any
    consts: list[Any]
    taps: list[LiftedTap]
    unreachable: frozenset[int]
    effects: tuple[str, ...]


def lift(closed: Any) -> LiftedTaps:
    """Return the taps of a traced step."""
    jaxpr = _without_debugging(closed.jaxpr)
    work = _Lifting()
    lifted, taps = work.lift(jaxpr)
    outvars = lifted.outvars[len(jaxpr.outvars) :]
    whole = lifted.replace(invars=[*lifted.constvars, *lifted.invars], constvars=[], outvars=outvars)
    effects = tuple(sorted({type(each).__name__ for each in whole.effects}))
    reached = {each.number for each in taps}
    return LiftedTaps(
        jaxpr_as_fun(ClosedJaxpr(whole, [])),
        list(closed.consts),
        taps,
        frozenset(work.unreachable - reached),
        effects,
    )


class _Lifting:
    """State of one lift()."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.unreachable: set[int] = set()

    def lift(self, jaxpr: Any, repeats: bool = False) -> tuple[Any, list[LiftedTap]]:
        """The jaxpr with its taps as further results. repeats: it computes again what a forward computed."""
        if not _has_taps(jaxpr):
            return jaxpr, []
        eqns: list[Any] = []
        taps: list[LiftedTap] = []
        outvars: list[Any] = []
        pending = list(jaxpr.eqns)
        while pending:
            eqn = pending.pop(0)
            name = eqn.primitive.name
            if eqn.primitive is TAP:
                number = eqn.params["number"]
                if not (repeats and number in self.seen):
                    self.seen.add(number)
                    taps.append(LiftedTap(number))
                    outvars.append(eqn.invars[0])
            elif name in _CUSTOM and _has_taps_of(eqn):
                pending[:0] = _inlined(eqn)
                continue
            elif _has_taps_of(eqn):
                eqn, inner, results = self._descend(eqn, name, repeats)
                taps += inner
                outvars += results
            eqns.append(eqn)
        whole = jaxpr.replace(eqns=eqns, outvars=[*jaxpr.outvars, *outvars])
        return whole, taps

    def _descend(self, eqn: Any, name: str, repeats: bool) -> tuple[Any, list[LiftedTap], list[Any]]:
        if name not in _JIT | _REMAT | {"scan", "shard_map"}:
            self.unreachable |= set(_numbers_in(eqn))
            return eqn, [], []
        repeats = repeats or (name in _REMAT and bool(eqn.params.get("differentiated")))
        body, found = self.lift(_open(eqn.params["jaxpr"]), repeats)
        count = len(found)
        avals = [each.aval for each in body.outvars[len(body.outvars) - count :]]
        params = {**eqn.params, "jaxpr": _as_before(eqn.params["jaxpr"], body)}
        if name in _JIT:
            params["out_shardings"] = (*params["out_shardings"], *[_unspecified()] * count)
            params["out_layouts"] = (*params["out_layouts"], *[None] * count)
            params["donated_invars"] = (False,) * len(params["donated_invars"])
        elif name == "scan":
            scanned = Scanned(eqn.params["length"])
            avals = [jax.core.ShapedArray((scanned.length, *aval.shape), aval.dtype) for aval in avals]
            found = [LiftedTap(each.number, (*each.levels, scanned)) for each in found]
        elif name == "shard_map":
            devices = _devices_of(eqn.params)
            params["out_specs"] = (*params["out_specs"], *[PartitionSpec(devices.axes)] * count)
            avals = [
                jax.core.ShapedArray((aval.shape[0] * devices.count, *aval.shape[1:]), aval.dtype)
                for aval in avals
            ]
            found = [LiftedTap(each.number, (*each.levels, devices)) for each in found]
        results = [Var(aval) for aval in avals]
        return eqn.replace(params=params, outvars=[*eqn.outvars, *results]), found, results


def _devices_of(params: Any) -> Sharded:
    """The positions in the mesh at which the function of a shard_map runs."""
    manual = params.get("manual_axes", params.get("newly_manual_axes", params["mesh"].axis_names))
    axes = tuple(axis for axis in params["mesh"].axis_names if axis in manual)
    return Sharded(axes, tuple(params["mesh"].shape[axis] for axis in axes))


def _unspecified() -> Any:
    """The value of JAX for a result whose sharding the compiler chooses."""
    (eqn,) = jax.make_jaxpr(jax.jit(lambda value: value + 1))(0.0).eqns
    return eqn.params["out_shardings"][0]


def _open(jaxpr: Any) -> Any:
    return jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr


def _as_before(jaxpr: Any, body: Any) -> Any:
    return ClosedJaxpr(body, jaxpr.consts) if isinstance(jaxpr, ClosedJaxpr) else body


def _inner(eqn: Any) -> Iterator[Any]:
    """The jaxprs in the parameters of an equation."""
    for value in eqn.params.values():
        for each in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(each, (Jaxpr, ClosedJaxpr)):
                yield _open(each)


def _numbers_in(eqn: Any) -> Iterator[int]:
    if eqn.primitive is TAP:
        yield eqn.params["number"]
    for jaxpr in _inner(eqn):
        for each in jaxpr.eqns:
            yield from _numbers_in(each)


def _has_taps_of(eqn: Any) -> bool:
    return next(_numbers_in(eqn), None) is not None


def _has_taps(jaxpr: Any) -> bool:
    return any(map(_has_taps_of, jaxpr.eqns))


def _inlined(eqn: Any) -> list[Any]:
    """The equations of the function in a custom derivative, with the variables of its place."""
    closed = eqn.params.get("call_jaxpr", eqn.params.get("fun_jaxpr"))
    jaxpr = _open(closed)
    known: dict[Any, Any] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    consts = closed.consts if isinstance(closed, ClosedJaxpr) else []
    known.update({var: Literal(value, var.aval) for var, value in zip(jaxpr.constvars, consts, strict=True)})

    def of(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else known[atom]

    eqns = []
    for each in jaxpr.eqns:
        for var in each.outvars:
            known[var] = Var(var.aval)
        eqns.append(
            each.replace(invars=list(map(of, each.invars)), outvars=[known[var] for var in each.outvars])
        )
    passed = [(outer, of(inner)) for outer, inner in zip(eqn.outvars, jaxpr.outvars, strict=True)]
    return eqns + [_same(outer, inner) for outer, inner in passed]


def _same(outer: Any, inner: Any) -> Any:
    """An equation that gives one more variable the value of another."""
    eqns = jax.make_jaxpr(lambda value: jax.lax.optimization_barrier(value))(0.0).eqns
    return eqns[0].replace(invars=[inner], outvars=[outer])


def _without_debugging(jaxpr: Any) -> Any:
    """The jaxpr without calls of debug.print and debug.callback, which a second execution would repeat."""
    if not any("Debug" in type(each).__name__ for each in jaxpr.effects):
        return jaxpr
    eqns = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _DEBUG:
            continue
        params = {name: _parameter_without_debugging(value) for name, value in eqn.params.items()}
        eqns.append(eqn.replace(params=params, effects=_real(eqn.effects)))
    return jaxpr.replace(eqns=eqns, effects=_real(jaxpr.effects))


def _parameter_without_debugging(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_parameter_without_debugging, value))
    if isinstance(value, ClosedJaxpr):
        return ClosedJaxpr(_without_debugging(value.jaxpr), value.consts)
    return _without_debugging(value) if isinstance(value, Jaxpr) else value


def _real(effects: Any) -> frozenset[Any]:
    return frozenset(each for each in effects if "Debug" not in type(each).__name__)
