"""Optimizers of a PyTorch program: their parameters, state and hyperparameters.

Threads: the training thread, or the autograd thread that runs an optimizer inside backward(); one at a time.
Keeps no optimizer alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.format.layout import TensorKind
from tdcore.hooks.plan import CaptureSpec, Plan, TensorSpec
from tdcore.hooks.pytorch.distributed.sharding import LocalShard, local_shard_of
from tdcore.hooks.pytorch.model.introspection import LiveObjects

__all__ = [
    "OptimizerEntry",
    "OptimizerNumbering",
    "Optimizers",
    "hyperparameter_values",
    "owned_by",
    "state_values",
    "unscaled",
]

_DIVISIBLE = (torch.strided, torch.sparse_coo)


_PARAMETERS = itemgetter("params")


class OptimizerEntry:
    """An optimizer that owns parameters of the model. cached: the last StepCapture and its inputs."""

    __slots__ = ("cached", "index", "optimizer")

    def __init__(self, optimizer: Optimizer, index: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        self.cached: Any = None

    @property
    def prefix(self) -> str:
        """Prefix of the names of the optimizer's state: "optimizer", "optimizer_1", ..."""
        return f"optimizer_{self.index}" if self.index else "optimizer"


class OptimizerNumbering:
    """The number of each optimizer, in the order in which the models of a hook first used them."""

    def __init__(self) -> None:
        self._count = 0
        self._of: dict[int, tuple[weakref.ref[Optimizer], int]] = {}  # by id of the optimizer
        # (number, kind of value) -> the last step that has the value.
        self._last_steps: dict[tuple[int, str], Any] = {}

    def of(self, optimizer: Optimizer) -> int:
        """The number of an optimizer; a new number at the first call."""
        known = self._of.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._of = {key: one for key, one in self._of.items() if one[0]() is not None}
            known = self._of[id(optimizer)] = weakref.ref(optimizer), self._count
            self._count += 1
        return known[1]

    def is_first(self, optimizer: Optimizer, step_id: Any, what: str) -> bool:
        """Whether a value that exists once per optimizer must still be captured in this step."""
        key = self.of(optimizer), what
        first: bool = self._last_steps.get(key) != step_id
        self._last_steps[key] = step_id
        return first


class Optimizers:
    """Optimizers that own parameters of one model, in the order of their first use."""

    def __init__(self, numbering: OptimizerNumbering) -> None:
        self._known: dict[int, OptimizerEntry] = {}  # by id of the optimizer
        self._numbering = numbering
        self.found_count = 0  # number of all optimizers so far
        self._searched = False
        self._ownerless: set[int] = set()  # ids of parameters for which a search found no optimizer

    def find(self, optimizer: Optimizer) -> OptimizerEntry | None:
        """The entry of a known optimizer; None if it is unknown."""
        known = self._known.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def find_or_add(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> OptimizerEntry | None:
        """The entry of an optimizer, created at the first call; None if it owns none of the parameters."""
        known = self._known.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        owned = set(map(id, owned_by(optimizer)))
        if not any(id(parameter) in owned for parameter in parameters):
            return None
        self._known = {key: one for key, one in self._known.items() if one.optimizer() is not None}
        self.found_count += 1
        known = self._known[id(optimizer)] = OptimizerEntry(optimizer, self._numbering.of(optimizer))
        return known

    def search(self, parameters: Sequence[nn.Parameter], objects: LiveObjects | None = None) -> None:
        """Search all objects once for optimizers that have not stepped yet. None: all live objects."""
        if not self._searched:
            self._searched = True
            for found in (objects or LiveObjects(Optimizer)).instances(Optimizer):
                self.find_or_add(found, parameters)

    def assign_owners(self, parameters: Sequence[nn.Parameter], objects: LiveObjects | None = None) -> None:
        """Search all objects for optimizers if a trained parameter has none, once per such parameter."""
        trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
        owned = {id(parameter) for _, optimizer in self.alive() for parameter in owned_by(optimizer)}
        if not trained - owned <= self._ownerless:
            self._searched = False
            self.search(parameters, objects)
            self._ownerless = trained - owned

    @property
    def any_alive(self) -> bool:
        """Whether a known optimizer still exists."""
        for known in self._known.values():  # noqa: SIM110 -- any() of a generator takes twice the time
            if known.optimizer() is not None:
                return True
        return False

    def alive(self) -> list[tuple[OptimizerEntry, Optimizer]]:
        """The optimizers that still exist, with their entries."""
        pairs = [(known, known.optimizer()) for known in self._known.values()]
        return [(known, optimizer) for known, optimizer in pairs if optimizer is not None]

    def owned_by_others(self, one: OptimizerEntry) -> set[int]:
        """Ids of the parameters that the other optimizers own."""
        others = (other.optimizer() for other in self._known.values() if other is not one)
        return {id(parameter) for other in others if other is not None for parameter in owned_by(other)}


def owned_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of all groups of an optimizer."""
    return list(chain.from_iterable(map(_PARAMETERS, optimizer.param_groups)))


def state_values(
    optimizer: Optimizer, prefix: str, plan: Plan, names: list[str], parameters: list[nn.Parameter]
) -> tuple[list[Any], CaptureSpec]:
    """Return the state of the named parameters that the plan selects. The last result is stored."""
    state_of = optimizer.state.get
    states = [state_of(parameter) or {} for parameter in parameters]
    keys = list(map(tuple, states))
    values = list(chain.from_iterable([state.values() for state in states]))
    tensors = [isinstance(value, torch.Tensor) for value in values]
    known = plan.cache.get(("state", prefix))
    if known is None or known[0] != (names, keys, tensors):
        suffixes = [f"{key}/{name}" for name, own in zip(names, keys, strict=True) for key in own]
        origin = type(optimizer).__name__
        kind = TensorKind.OPTIMIZER_STATE
        found = [f"{prefix}/{end}" for end in compress(suffixes, tensors)]
        specs = plan.specs(found, [kind] * len(found), [origin] * len(found))
        selected = iter(specs)
        chosen = [is_tensor and next(selected) is not None for is_tensor in tensors]
        capture_spec = CaptureSpec([spec for spec in specs if spec is not None])
        known = plan.cache["state", prefix] = (names, keys, tensors), chosen, capture_spec
    return list(compress(values, known[1])), known[2]


def hyperparameter_values(optimizer: Optimizer, prefix: str, plan: Plan) -> tuple[list[Any], CaptureSpec]:
    """Return the numbers of the parameter groups that the plan selects."""
    origin = type(optimizer).__name__
    values: list[Any] = []
    specs: list[TensorSpec] = []
    for name, value in _hyperparameters(optimizer, prefix):
        spec = plan.spec(name, TensorKind.HYPERPARAMETER, origin)
        if spec is not None:
            values.append(value)
            specs.append(spec)
    return values, CaptureSpec(specs)


def unscaled(gradients: Sequence[Any], scales: Iterable[Any]) -> list[Any]:
    """Divide gradients by their scales. The optimizer uses the results.

    scales: Scale of each gradient; None: not scaled. Scales are powers of two, so the division is exact.
    """
    with torch.no_grad():
        return [
            gradient
            if gradient is None or scale is None
            else gradient / scale
            if type(gradient) is torch.Tensor and gradient.layout in _DIVISIBLE
            else _shard_unscaled(local_shard_of(gradient), scale)
            for gradient, scale in zip(gradients, scales, strict=False)
        ]


def _shard_unscaled(shard: LocalShard, scale: torch.Tensor) -> LocalShard:
    """Divide only the local shard, because an operator on a sharded tensor might communicate."""
    own = type(shard.tensor) is torch.Tensor and shard.tensor.layout in _DIVISIBLE
    return shard._replace(tensor=shard.tensor / scale) if own else shard


def _hyperparameters(optimizer: Optimizer, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of each parameter group: lr, momentum, weight_decay, betas (as one array), ..."""
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            name = f"{prefix}/group_{index}/{key}"
            if isinstance(value, torch.Tensor):
                yield name, value
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield name, np.float64(value)
            elif isinstance(value, tuple) and value and all(isinstance(item, (int, float)) for item in value):
                yield name, np.asarray(value, dtype=np.float64)
