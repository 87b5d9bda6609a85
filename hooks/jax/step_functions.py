"""The second function of a compiled step: it takes the same arguments, and returns the tensors to record.

The step is traced once more, within a context that separates JAX's caches, so that the step's own compiled
function is not affected. The marked values are lifted out of that trace, and compiled alone: the results of
the step itself are not computed unless a tensor depends on them. Arguments are never donated.
Threads: the training thread.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tdcore.hooks.jax.collector import Collector, ModuleNames, TapName
from tdcore.hooks.jax.interception import collecting
from tdcore.hooks.jax.returned_parameters import new_values
from tdcore.hooks.jax.step_values import Leaf, Path, StepInputs, StepNames
from tdcore.hooks.jax.tapped_jaxpr import LiftedTap, lift
from tdcore.hooks.jax.update_ratios import requests_ratios
from tdcore.hooks.jax_arrays import is_numeric
from tdcore.hooks.plan import Plan

__all__ = ["CapturingFunctions", "Tapped", "UncapturableStepError"]

_KEPT = 8  # capturing functions of one step
_trace_number = jax.make_user_context(default_value=None)  # part of the keys of JAX's caches
_numbers = itertools.count(1)


class UncapturableStepError(Exception):
    """Raised while a step is traced: it must not run twice."""


class Tapped(NamedTuple):
    """A recorded value: its name, the loops and devices around it, and the value."""

    name: TapName
    lifted: LiftedTap
    value: Any


class _Function(NamedTuple):
    call: Callable[..., Any]
    consts: list[Any]
    taps: list[LiftedTap]
    names: dict[int, TapName]
    new_values: dict[int, list[int]]


class CapturingFunctions:
    """Makes and keeps the capturing functions of one step.

    Args:
        step: The step.
        further: Paths of trees of parameters that gradients have shown; filled when the step is traced.
        modules: Names of modules.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
        own_loss: The script returns the loss itself.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        further: set[Path],
        modules: ModuleNames,
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
        *,
        own_loss: bool,
    ) -> None:
        self._step = step
        self._further = further
        self._modules = modules
        self._note = note
        self._fault = fault
        self._own_loss = own_loss
        self._made: OrderedDict[Any, _Function] = OrderedDict()
        self._numbers_are_static = False

    def run(self, plan: Plan, inputs: StepInputs) -> list[Tapped]:
        """Compute the tensors that the plan selects. Raises UncapturableStepError, and errors of the step."""
        function, arrays = self._function_for(plan, inputs)
        if not function.taps:
            return []
        values = function.call(function.consts, *(inputs.leaves[place].value for place in arrays))
        return [
            Tapped(function.names[tap.number], tap, value)
            for tap, value in zip(function.taps, values, strict=True)
        ]

    def new_values(self, plan: Plan, inputs: StepInputs) -> dict[int, list[int]]:
        """Positions of new parameters among the leaves of the step's result; see returned_parameters.py.

        Empty for a step that could not be traced.

        Returns:
            A list by position of the parameter in the leaves of the arguments.
        """
        made = self._made.get(self._key(plan, inputs, *self._split(inputs)))
        return {} if made is None else made.new_values

    def _function_for(self, plan: Plan, inputs: StepInputs) -> tuple[_Function, list[int]]:
        """The function for these arguments, and the places of the arrays among them that it takes."""
        arrays, static = self._split(inputs)
        key = self._key(plan, inputs, arrays, static)
        if key not in self._made:
            try:
                made = self._trace(plan, inputs, arrays)
            except UncapturableStepError:
                raise
            except Exception:
                if not any(map(_is_number, inputs.leaves)) or self._numbers_are_static:
                    raise
                self._numbers_are_static = True  # they are static arguments, or the step branches on them
                return self._function_for(plan, inputs)
            self._made[key] = made
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key], arrays

    def _key(self, plan: Plan, inputs: StepInputs, arrays: list[int], static: tuple[Any, ...]) -> Any:
        selection = tuple((each.name, *each.selection) for each in plan.collections)
        types = tuple(jax.typeof(inputs.leaves[place].value) for place in arrays)
        surroundings = jax.sharding.get_abstract_mesh(), jax.config.jax_enable_x64
        return selection, inputs.structure[0], _hashable(inputs.structure[1]), types, static, surroundings

    def _split(self, inputs: StepInputs) -> tuple[list[int], tuple[Any, ...]]:
        """Places of the arrays, and the other leaves with their places."""
        arrays, static = [], []
        for place, leaf in enumerate(inputs.leaves):
            value = leaf.value
            number = _is_number(leaf) and not self._numbers_are_static
            if number or isinstance(value, (jax.Array, np.ndarray, np.generic)):
                arrays.append(place)
            else:
                static.append((place, _hashable(value)))
        return arrays, tuple(static)

    def _trace(self, plan: Plan, inputs: StepInputs, arrays: list[int]) -> _Function:
        names = StepNames(inputs.leaves, self._further)
        collector = Collector(plan, names, self._modules, self._note, self._fault, own_loss=self._own_loss)

        places: list[int] = []  # of the results, among the leaves of the step's result

        def traced(*values: Any) -> list[Any]:
            leaves = [leaf.value for leaf in inputs.leaves]
            for place, value in zip(arrays, values, strict=True):
                leaves[place] = value
            args, kwargs = inputs.rebuild(leaves)
            result = self._step(*args, **kwargs)
            if not requests_ratios(plan):
                return []
            returned = jax.tree_util.tree_leaves(result)
            places.extend(place for place, value in enumerate(returned) if is_numeric(value))
            return [returned[place] for place in places]

        with _trace_number(next(_numbers)), collecting(collector):
            closed = jax.make_jaxpr(traced)(*(inputs.leaves[place].value for place in arrays))
        lifted = lift(closed)
        if lifted.effects:
            raise UncapturableStepError(
                f"the step has effects that must not happen twice: {', '.join(lifted.effects)}"
            )
        for number in sorted(lifted.unreachable):
            self._note(
                f"{collector.taps[number].name}: it is computed in a loop of unknown length, a condition or "
                "another operation that cannot return it"
            )
        call = jax.jit(lambda consts, *values: lifted.function(*consts, *values))
        found = {
            arrays[argument]: [places[each] for each in results]
            for argument, results in new_values(closed, range(len(arrays))).items()
        }
        return _Function(call, lifted.consts, lifted.taps, collector.taps, found)


def _is_number(leaf: Leaf) -> bool:
    return type(leaf.value) in (int, float, complex)


def _hashable(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value
