"""Collector: the tensors of one saved step, marked while the step is traced, or received while it runs.

Threads: the thread that traces or runs the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.jax.step_values import StepNames, flat_paths, is_object
from tdcore.hooks.jax.taps import mark, runs_at_once
from tdcore.hooks.jax.update_ratios import requests_ratios
from tdcore.hooks.jax_arrays import is_numeric
from tdcore.hooks.plan import Plan

__all__ = ["Collector", "ModuleNames", "TapName"]

_UPDATES = "weight_updates"


class TapName(NamedTuple):
    """A tap. scalar: the value was marked with one further axis. source: the function of a gradient."""

    kind: TensorKind
    name: str
    origin: str = ""
    scalar: bool = False
    source: str = ""


class ModuleNames:
    """Names of modules, for all steps of a hook: names of modules below a second root contain its class."""

    def __init__(self) -> None:
        self._roots: list[str] = []
        self.seen: set[str] = set()
        self.classes: set[str] = set()

    def name(self, root: str, path: tuple[str, ...]) -> str:
        """The name of a module at a path below a root of this class."""
        if root not in self._roots:
            self._roots.append(root)
        prefix = (root,) if not path or self._roots[0] != root else ()
        return "/".join((*prefix, *path))


class Collector:
    """Tensors of one step.

    Args:
        plan: Selects the tensors.
        names: Names of the arguments of the step.
        modules: Names of modules.
        note: Stores a message about tensors that cannot be captured.
        fault: Handles an error of tdcore.
        at_once: The step is not compiled: its values are received while it runs.
        own_loss: The script returns the loss itself: the differentiated functions have none.
    """

    def __init__(
        self,
        plan: Plan,
        names: StepNames,
        modules: ModuleNames,
        note: Callable[[str], None],
        fault: Callable[[str, Exception], None],
        *,
        at_once: bool = False,
        own_loss: bool = False,
    ) -> None:
        self.plan = plan
        self.modules = modules
        self.taps: dict[int, TapName] = {}
        self.values: list[tuple[int, Any]] = []  # of a step that is not compiled
        self.in_update = self.in_gradient = 0
        self.in_modules: list[Any] = []  # of nnx, that are called now
        self.in_linen: list[Any] = []
        self._names = names
        self._note = note
        self._fault = fault
        self._at_once = at_once
        self._own_loss = own_loss

    def guarded(self, part: str, call: Callable[..., Any], value: Any, *args: Any) -> Any:
        """The result of a function of tdcore, or the unchanged value after an error in it."""
        try:
            return call(value, *args)
        except Exception as error:
            self._fault(part, error)
            return value

    def add(self, value: Any, name: str, kind: TensorKind, origin: str = "", source: str = "") -> Any:
        """Mark a tensor that the plan selects. Returns the value that takes its place in a trace."""
        if not is_numeric(value) or not (self.plan.may_take(kind) and self.plan.takes(name, kind, origin)):
            return value
        receive = None
        if self._at_once:
            if not runs_at_once():
                self._note(f"{name}: {_COMPILED}")
                return value
            receive = self._receive
        numbers_before = len(self.values)
        number, marked = mark(value, receive)
        self.taps[number] = TapName(kind, name, origin, np.ndim(value) == 0, source)
        if self._at_once and len(self.values) == numbers_before:
            self._note(f"{name}: {_COMPILED}")
        return value if self._at_once else marked

    def add_tree(self, tree: Any, name: str, kind: TensorKind, origin: str = "") -> Any:
        """Mark the tensors of a tree as "<name>_0", "<name>_1", ..."""
        if not self.plan.may_take(kind):
            return tree
        leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf=is_object)
        number = 0
        for place, leaf in enumerate(leaves):
            if is_numeric(leaf):
                leaves[place] = self.add(leaf, f"{name}_{number}", kind, origin)
                number += 1
        return self._with(tree, structure, leaves)

    def add_named(self, tree: Any, name: str) -> Any:
        """Mark the tensors of a tree that the script has named, with their paths behind the name."""
        kind = TensorKind.CUSTOM
        if name.startswith("gradient/") or name == "gradient":
            kind = TensorKind.GRADIENT
        elif "loss" in name.lower():
            kind = TensorKind.LOSS
        paths, leaves, structure = flat_paths(tree)
        marked = [
            self.add(leaf, "/".join((name, *path)), kind) for path, leaf in zip(paths, leaves, strict=True)
        ]
        return self._with(tree, structure, marked)

    def module(self, values: Any, end: str, root: str, path: tuple[str, ...], origin: str) -> Any:
        """Mark the inputs or outputs of a module. end: "input" or "output"."""
        name = self.modules.name(root, path)
        self.modules.seen.add(name)
        self.modules.classes.add(f"{origin}_{end}")
        kind = TensorKind.INPUT if end == "input" else TensorKind.OUTPUT
        return self.add_tree(values, f"{name}_{end}", kind, origin)

    def loss(self, value: Any) -> Any:
        """Mark the value of a differentiated function."""
        if self._own_loss or not is_numeric(value) or np.ndim(value):
            return value
        return self.add(value, "loss", TensorKind.LOSS)

    def gradients(self, tree: Any, source: str) -> Any:
        """Mark gradients, with the names of their parameters. source: the function that has computed them."""
        if not self.plan.may_take(TensorKind.GRADIENT) and not self._is_new(tree):
            return tree
        paths, leaves, structure = flat_paths(tree)
        if not paths or not all(map(is_numeric, leaves)):
            return tree
        names = self._names.match(paths, [np.shape(each) for each in leaves])
        marked = [
            self.add(leaf, f"gradient/{name}", TensorKind.GRADIENT, source=source)
            for leaf, name in zip(leaves, names, strict=True)
        ]
        return self._with(tree, structure, marked)

    def updates(self, tree: Any) -> Any:
        """Mark the changes of the parameters, if the collection "weight_updates" is saved."""
        if not any(
            each.name == _UPDATES or each.speaks_of("weight_update") for each in self.plan.collections
        ):
            return tree
        paths, leaves, structure = flat_paths(tree)
        if not paths or not all(map(is_numeric, leaves)):
            return tree
        names = self._names.match(paths, [np.shape(each) for each in leaves])
        marked = [
            self.add(leaf, f"weight_update/{name}", TensorKind.CUSTOM)
            for leaf, name in zip(leaves, names, strict=True)
        ]
        return self._with(tree, structure, marked)

    def _with(self, tree: Any, structure: Any, marked: list[Any]) -> Any:
        """The tree with marked values. A step that is not compiled keeps its own objects."""
        return tree if self._at_once else jax.tree_util.tree_unflatten(structure, marked)

    def _is_new(self, tree: Any) -> bool:
        """Whether parameters may have to be found by their gradients."""
        kinds = (TensorKind.WEIGHT, TensorKind.BIAS)
        return any(map(self.plan.may_take, kinds)) or requests_ratios(self.plan)

    def _receive(self, number: int, value: Any) -> None:
        self.values.append((number, value))


_COMPILED = (
    "it is computed in a compiled function or a loop within the step; pass the compiled function to "
    "capture_step()"
)
