"""What the optimizers of a PyTorch program tell: which parameters are theirs, their state, when they step.

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
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.living import living
from tdcore.hooks.pytorch.sharded import Part, part_of

__all__ = ["Known", "Numbers", "Optimizers", "hyperparameter_values", "owned_by", "state_values", "unscaled"]

_DIVISIBLE = (torch.strided, torch.sparse_coo)


_PARAMETERS = itemgetter("params")


class Known:
    """An optimizer that owns parameters of the model. cached: what a step of it captures."""

    __slots__ = ("cached", "index", "optimizer")

    def __init__(self, optimizer: Optimizer, index: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        self.cached: Any = None

    @property
    def prefix(self) -> str:
        """Start of the names of its state: "optimizer", "optimizer_1", ..."""
        return f"optimizer_{self.index}" if self.index else "optimizer"


class Numbers:
    """The number of each optimizer, in the order in which they were met by any of a hook's models."""

    def __init__(self) -> None:
        self._met = 0
        self._of: dict[int, tuple[weakref.ref[Optimizer], int]] = {}  # by id of the optimizer
        self._told: dict[tuple[int, str], Any] = {}  # by number and what: the last step that has it

    def of(self, optimizer: Optimizer) -> int:
        """Its number, a new one at the first meeting."""
        known = self._of.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._of = {key: one for key, one in self._of.items() if one[0]() is not None}
            known = self._of[id(optimizer)] = weakref.ref(optimizer), self._met
            self._met += 1
        return known[1]

    def is_first(self, optimizer: Optimizer, stamp: Any, what: str) -> bool:
        """Whether what an optimizer has but once is still to be captured in this step."""
        key = self.of(optimizer), what
        first: bool = self._told.get(key) != stamp
        self._told[key] = stamp
        return first


class Optimizers:
    """Those that own parameters of one model, in the order in which they were met."""

    def __init__(self, numbers: Numbers) -> None:
        self._known: dict[int, Known] = {}  # by id of the optimizer
        self._numbers = numbers
        self.met = 0  # how many there were so far
        self._searched = False
        self._ownerless: set[int] = set()  # ids of parameters for which a search found no optimizer

    def find(self, optimizer: Optimizer) -> Known | None:
        """The entry of an optimizer that is known."""
        known = self._known.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def meet(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Known | None:
        """The entry of an optimizer, made at the first meeting; None when it owns none of the parameters."""
        known = self._known.get(id(optimizer))
        if known is not None and known.optimizer() is optimizer:
            return known
        owned = set(map(id, owned_by(optimizer)))
        if not any(id(parameter) in owned for parameter in parameters):
            return None
        self._known = {key: one for key, one in self._known.items() if one.optimizer() is not None}
        self.met += 1
        known = self._known[id(optimizer)] = Known(optimizer, self._numbers.of(optimizer))
        return known

    def search(self, parameters: Sequence[nn.Parameter]) -> None:
        """Looks once, among all objects, for an optimizer that has not stepped yet."""
        if not self._searched:
            self._searched = True
            for found in living(Optimizer):
                self.meet(found, parameters)

    def search_owners(self, parameters: Sequence[nn.Parameter]) -> None:
        """Looks among all objects when a parameter that trains has no known optimizer: once for each such."""
        trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
        owned = {id(parameter) for _, optimizer in self.alive() for parameter in owned_by(optimizer)}
        if not trained - owned <= self._ownerless:
            self._searched = False
            self.search(parameters)
            self._ownerless = trained - owned

    @property
    def any_alive(self) -> bool:
        """Whether any is known that still exists."""
        for known in self._known.values():  # noqa: SIM110 -- any() of a generator is twice the work
            if known.optimizer() is not None:
                return True
        return False

    def alive(self) -> list[tuple[Known, Optimizer]]:
        """Those that still exist."""
        pairs = [(known, known.optimizer()) for known in self._known.values()]
        return [(known, optimizer) for known, optimizer in pairs if optimizer is not None]

    def owned_by_others(self, one: Known) -> set[int]:
        """Ids of what the other optimizers own."""
        others = (other.optimizer() for other in self._known.values() if other is not one)
        return {id(parameter) for other in others if other is not None for parameter in owned_by(other)}


def owned_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of all its groups."""
    return list(chain.from_iterable(map(_PARAMETERS, optimizer.param_groups)))


def state_values(
    optimizer: Optimizer, prefix: str, plan: Plan, names: list[str], parameters: list[nn.Parameter]
) -> tuple[list[Any], Batch]:
    """State of the named parameters, as far as the plan wants it. Remembers the last answer."""
    state_of = optimizer.state.get
    states = [state_of(parameter) or {} for parameter in parameters]
    keys = list(map(tuple, states))
    values = list(chain.from_iterable([state.values() for state in states]))
    tensors = [isinstance(value, torch.Tensor) for value in values]
    known = plan.cache.get(("state", prefix))
    if known is None or known[0] != (names, keys, tensors):
        ends = [f"{key}/{name}" for name, own in zip(names, keys, strict=True) for key in own]
        origin = type(optimizer).__name__
        wants = [
            plan.want(f"{prefix}/{end}", TensorKind.OPTIMIZER_STATE, origin) if is_tensor else None
            for end, is_tensor in zip(ends, tensors, strict=True)
        ]
        batch = Batch([want for want in wants if want is not None])
        known = plan.cache["state", prefix] = (names, keys, tensors), wants, batch
    return list(compress(values, known[1])), known[2]


def hyperparameter_values(optimizer: Optimizer, prefix: str, plan: Plan) -> tuple[list[Any], Batch]:
    """Numbers of the parameter groups, as far as the plan wants them."""
    origin = type(optimizer).__name__
    values: list[Any] = []
    wants: list[Want] = []
    for name, value in _hyperparameters(optimizer, prefix):
        want = plan.want(name, TensorKind.HYPERPARAMETER, origin)
        if want is not None:
            values.append(value)
            wants.append(want)
    return values, Batch(wants)


def unscaled(gradients: Sequence[Any], scales: Iterable[Any]) -> list[Any]:
    """Gradients as the optimizer will use them. scales: by what each is multiplied; None: by nothing.

    Scales are powers of two, so the division is exact.
    """
    with torch.no_grad():
        return [
            gradient
            if gradient is None or scale is None
            else gradient / scale
            if type(gradient) is torch.Tensor and gradient.layout in _DIVISIBLE
            else _part_unscaled(part_of(gradient), scale)
            for gradient, scale in zip(gradients, scales, strict=False)
        ]


def _part_unscaled(part: Part, scale: torch.Tensor) -> Part:
    """Of a tensor that is spread over ranks: an operator on the whole might communicate."""
    own = type(part.tensor) is torch.Tensor and part.tensor.layout in _DIVISIBLE
    return part._replace(tensor=part.tensor / scale) if own else part


def _hyperparameters(optimizer: Optimizer, prefix: str) -> Iterator[tuple[str, Any]]:
    """Every number of every parameter group: lr, momentum, weight_decay, betas (as one array), ..."""
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            name = f"{prefix}/group_{index}/{key}"
            if isinstance(value, torch.Tensor):
                yield name, value
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                yield name, np.float64(value)
            elif isinstance(value, tuple) and value and all(isinstance(item, (int, float)) for item in value):
                yield name, np.asarray(value, dtype=np.float64)
