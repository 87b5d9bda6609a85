"""The arguments of a step: arrays with their paths, and the names of parameters and optimizer state.

    params/Dense_0/kernel              a leaf below "params" of a TrainState or a dictionary of variables
    model/hidden/kernel                a Param of an nnx module that is the argument "model"
    batch_stats/BatchNorm_0/mean       further state next to the parameters
    optimizer/0/mu/Dense_0/kernel      state of Optax

A tree of arrays without such marks is a parameter if the step computes a gradient of the same structure.
Threads: the training thread.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tdcore.format.layout import TensorKind
from tdcore.hooks.jax_arrays import is_numeric

__all__ = [
    "Leaf",
    "NamedLeaf",
    "Path",
    "StepInputs",
    "StepNames",
    "argument_names",
    "flat_paths",
    "is_object",
    "scalars_of",
]

Path = tuple[str, ...]

_OPTIMIZER = "opt_state"
_LEARNING_RATE = "learning_rate"


class Leaf(NamedTuple):
    """An array or a number in the arguments of a step. variable: class of its nnx.Variable, or None."""

    path: Path
    value: Any
    variable: type | None = None


class NamedLeaf(NamedTuple):
    """A parameter, or a value of the state, with its name. position: in the leaves of the arguments."""

    position: int
    name: str
    kind: TensorKind


class StepInputs:
    """The arguments of one call, split into arrays and the rest.

    Attributes:
        leaves: The arrays and numbers, in the order of rebuild().
        structure: The rest; equal for calls that may share a compiled function.
    """

    def __init__(self, names: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._names = names
        nnx = _nnx_in((args, kwargs))
        graph = None
        tree: Any = (args, kwargs)
        if nnx is not None:
            graph, tree = nnx.split(tree)
        found, structure = jax.tree_util.tree_flatten_with_path(tree)
        variables = _variables_of(nnx, tree) if nnx is not None else {}
        optimizers = _optimizers_in(tree)
        self.leaves = []
        for path, value in found:
            parts = tuple(map(_part, path))
            variable = next(
                (variables[parts[:n]] for n in range(len(parts), 0, -1) if parts[:n] in variables), None
            )
            if any(parts[: len(each)] == each for each in optimizers):
                parts = _below_optimizer(parts, optimizers)
            self.leaves.append(Leaf(self._renamed(_without_box(path, parts)), value, variable))
        self.structure = (structure, graph)

    def rebuild(self, values: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other values in the places of the leaves."""
        structure, graph = self.structure
        tree = jax.tree_util.tree_unflatten(structure, list(values))
        if graph is not None:
            tree = sys.modules["flax.nnx"].merge(graph, tree)
        args, kwargs = tree
        return args, kwargs

    def _renamed(self, parts: Path) -> Path:
        """The path with the name of the argument instead of its position."""
        place, which, *rest = parts
        if place == "0":
            number = int(which)
            which = self._names[number] if number < len(self._names) else f"argument_{number}"
        return (which, *rest)


class StepNames:
    """Names of the leaves of a step.

    Args:
        leaves: The leaves.
        further: Paths of further trees of parameters, as match() has found them in earlier calls.
    """

    def __init__(self, leaves: Sequence[Leaf], further: set[Path]) -> None:
        self._leaves = leaves
        self._further = further
        self._by_path = {leaf.path: leaf for leaf in leaves}
        self._roots: dict[Path, Path | None] = {}  # path of a leaf -> its tree of parameters

    @property
    def named(self) -> list[NamedLeaf]:
        """Parameters, state and optimizer state."""
        roots = {leaf.path: self._root(leaf) for leaf in self._leaves}
        containers = {root[:-1] for root in roots.values() if root is not None}
        optimizers: list[Path] = []
        found: list[NamedLeaf] = []
        for position, leaf in enumerate(self._leaves):
            if not is_numeric(leaf.value) or _is_random(leaf.variable):
                continue
            root = roots[leaf.path]
            if _OPTIMIZER in leaf.path:
                found.append(_of_optimizer(position, leaf.path, optimizers))
            elif root is not None:
                found.append(
                    NamedLeaf(position, self._name(leaf.path, root, roots.values()), self._kind(leaf))
                )
            else:
                owners = [each for each in containers if each and leaf.path[: len(each)] == each]
                if owners:
                    name = "/".join(leaf.path[len(max(owners, key=len)) :])
                    found.append(NamedLeaf(position, name, TensorKind.CUSTOM))
        return found

    def match(self, paths: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> list[str]:
        """Names of the parameters whose gradients have these paths; the paths alone if there are none."""
        known = {self._root(leaf) for leaf in self._leaves} - {None}
        prefixes = [
            leaf.path[: len(leaf.path) - len(paths[0])]
            for leaf in self._leaves
            if leaf.path[len(leaf.path) - len(paths[0]) :] == paths[0] and _OPTIMIZER not in leaf.path
        ]
        fitting = [each for each in prefixes if self._fits(each, paths, shapes)]
        if (
            not fitting
            and len({each[0] for each in paths if len(each) > 1}) == 1
            and min(map(len, paths)) > 1
        ):
            return self.match([each[1:] for each in paths], shapes)  # below a node of a library
        if not fitting:
            return ["/".join(each) or "parameter" for each in paths]
        prefix = min(fitting, key=lambda each: (each not in known, len(each)))
        if not any(prefix[: len(each)] == each for each in known if each is not None):
            self._further.add(prefix)
        roots = [self._root(leaf) for leaf in self._leaves]
        return [self._name(prefix + each, self._root_of(prefix + each) or prefix, roots) for each in paths]

    def holds(self, tree: Any) -> bool:
        """Whether the arguments have a tree of this structure: the step returns its next state."""
        paths, leaves, _ = flat_paths(tree)
        return any(
            self._fits(
                leaf.path[: len(leaf.path) - len(paths[0])], paths, [np.shape(each) for each in leaves]
            )
            for leaf in self._leaves
            if paths and paths[0] and leaf.path[len(leaf.path) - len(paths[0]) :] == paths[0]
        )

    def _fits(self, prefix: Path, paths: Sequence[Path], shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether a tree has leaves with these paths. A leaf of pmap has one more axis."""
        for path, shape in zip(paths, shapes, strict=True):
            leaf = self._by_path.get(prefix + path)
            if leaf is None or np.ndim(leaf.value) - len(shape) not in (0, 1):
                return False
            if not path and np.shape(leaf.value)[-len(shape) or len(np.shape(leaf.value)) :] != shape:
                return False
        return True

    def _root_of(self, path: Path) -> Path | None:
        leaf = self._by_path.get(path)
        return None if leaf is None else self._root(leaf)

    def _root(self, leaf: Leaf) -> Path | None:
        """The path of the tree of parameters that the leaf belongs to."""
        if _OPTIMIZER in leaf.path or _is_random(leaf.variable):
            return None
        if leaf.variable is not None:
            return leaf.path[:1]
        if "params" in leaf.path:
            return leaf.path[: leaf.path.index("params") + 1]
        return next((each for each in self._further if leaf.path[: len(each)] == each), None)

    def _kind(self, leaf: Leaf) -> TensorKind:
        if leaf.variable is not None and not _is_parameter(leaf.variable):
            return TensorKind.CUSTOM
        last = leaf.path[-1].lower()
        return TensorKind.BIAS if "bias" in last or last == "b" else TensorKind.WEIGHT

    def _name(self, path: Path, root: Path, roots: Iterable[Path | None]) -> str:
        alike = {each for each in roots if each is not None and each[-1] == root[-1]}
        return "/".join(path if len(alike) > 1 or root[-1].isdigit() else path[len(root) - 1 :])


def flat_paths(tree: Any) -> tuple[list[Path], list[Any], Any]:
    """Paths and leaves of a tree, and its structure."""
    found, structure = jax.tree_util.tree_flatten_with_path(tree)
    paths = [_without_box(path, tuple(map(_part, path))) for path, _ in found]
    return paths, [value for _, value in found], structure


def argument_names(step: Callable[..., Any]) -> list[str]:
    """Names of the positional arguments of a function, as far as it has them."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]


def _part(key: Any) -> str:
    for name in ("key", "idx", "name"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _without_box(path: Any, parts: Path) -> Path:
    """The path of a value in a box, such as nn.Partitioned or nnx.Variable, without the box's attribute."""
    boxed = isinstance(path[-1], jax.tree_util.GetAttrKey) if path else False
    return parts[:-1] if boxed and parts[-1] in ("value", "raw_value") else parts


def is_object(value: object) -> bool:
    """Whether a value is an object of nnx, which a step may change: a copy of it must not take its place."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(
        value, (getattr(nnx, "Pytree", nnx.Module), nnx.Module, nnx.Variable)
    )


def _nnx_in(tree: Any) -> Any:
    """flax.nnx, if the tree contains one of its objects."""
    leaves = jax.tree_util.tree_leaves(tree, is_leaf=is_object)
    return sys.modules["flax.nnx"] if any(map(is_object, leaves)) else None


def _variables_of(nnx: Any, state: Any) -> dict[Path, type]:
    found, _ = jax.tree_util.tree_flatten_with_path(
        state, is_leaf=lambda each: isinstance(each, nnx.Variable)
    )
    return {
        tuple(map(_part, path)): getattr(each, "type", type(each))
        for path, each in found
        if isinstance(each, nnx.Variable)
    }


def _optimizers_in(tree: Any) -> list[Path]:
    """Paths of the states of Optax, without positions in a chain."""

    def is_state(each: Any) -> bool:
        return isinstance(each, tuple) and type(each).__module__.startswith("optax")

    found, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_state)
    roots = set()
    for path, each in found:
        if is_state(each):
            parts = tuple(map(_part, path))
            while len(parts) > 2 and parts[-1].isdigit():
                parts = parts[:-1]
            roots.add(parts)
    return sorted(roots)


def _below_optimizer(parts: Path, roots: list[Path]) -> Path:
    """The path with the mark of optimizer state behind that of the state's tree."""
    if _OPTIMIZER in parts:
        return parts
    root = max((each for each in roots if parts[: len(each)] == each), key=len)
    return (*root, _OPTIMIZER, *parts[len(root) :])


def _of_optimizer(position: int, path: Path, optimizers: list[Path]) -> NamedLeaf:
    at = path.index(_OPTIMIZER)
    if path[: at + 1] not in optimizers:
        optimizers.append(path[: at + 1])
    number = optimizers.index(path[: at + 1])
    prefix = f"optimizer_{number}" if number else "optimizer"
    if "hyperparams" in path:
        name = path[-1].replace(_LEARNING_RATE, "lr")
        return NamedLeaf(position, f"{prefix}/group_0/{name}", TensorKind.HYPERPARAMETER)
    return NamedLeaf(position, "/".join((prefix, *path[at + 1 :])), TensorKind.OPTIMIZER_STATE)


def _is_random(variable: type | None) -> bool:
    return variable is not None and issubclass(variable, sys.modules["flax.nnx"].RngState)


def _is_parameter(variable: type) -> bool:
    return issubclass(variable, sys.modules["flax.nnx"].Param)


def scalars_of(result: Any, names: StepNames | None) -> Iterator[tuple[str, Any]]:
    """Names and values of the numbers that a step returns; "" for a number without a name of its own."""
    elements = result if type(result) in (tuple, list) else (result,)
    for element in elements:
        named = isinstance(element, dict)
        found, _ = jax.tree_util.tree_flatten_with_path(element)
        if (not named and len(found) != 1) or (named and names is not None and names.holds(element)):
            continue
        for path, value in found:
            if not is_numeric(value) or np.shape(value) != ():
                continue
            parts = tuple(map(_part, path))
            if named and not {"params", _OPTIMIZER} & set(parts):
                yield "/".join(parts), value
            elif not parts and jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
                yield "", value
