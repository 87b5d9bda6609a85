"""Weights, gradients and optimizer state: one native call where the optimizer is about to step.

At the step pre-hook gradients are final (accumulated, unscaled) and weights are those that the forward saw.
A step that is saved therefore stays *owed* after its forward until an optimizer steps; with gradient
accumulation the newest saved step is the one that is paid, under its own number.

    several optimizers      each pays for the parameters that it owns; frozen ones go with the first
    no optimizer seen yet   weights are captured when the forward ends (same values), gradients as above
    closure (LBFGS)         weights likewise, gradients when the step returns
    no optimizer at all     said once; gradients are read when the next forward starts
    eval, no_grad           weights when the forward ends, no gradients
    step skipped            (gradients gone at the next forward) rows without value: "absent"
    parameter unused        no gradient: a row "absent", which is not zero
    frozen parameter        no gradient row at all; listed under "frozen" in collections.json
    fused step with a gradient scaler   gradients are divided by the scale, which is recorded beside them

Threads: the training thread, or the autograd thread that runs an optimizer inside backward(); one at a time.
Keeps no parameter, gradient or optimizer alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch_model import ModelView
from tdcore.layout import TensorKind

__all__ = ["ParameterCapture"]

Capture = Callable[..., None]  # BaseHook._capture
_SCALE = "optimizer/grad_scale"


class Selection(NamedTuple):
    """What one capture call takes: positions in the view's parameters. batch: of both lists in a row."""

    weights: list[int]
    gradients: list[int]
    batch: Batch


class Owed:
    """A saved step whose weights or gradients are still to be captured."""

    __slots__ = ("done", "inside_step", "plan", "stamp", "weights_done")

    def __init__(self, stamp: Stamp, plan: Plan, *, inside_step: bool) -> None:
        self.stamp = stamp
        self.plan = plan
        self.inside_step = inside_step  # its forward ran in the closure of an optimizer
        self.weights_done = False
        self.done: frozenset[int] = frozenset()  # positions paid for by an optimizer


class Known:
    """An optimizer that owns parameters of the model."""

    __slots__ = ("index", "memo", "optimizer")

    def __init__(self, optimizer: Optimizer, index: int) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.index = index
        self.memo: tuple[tuple[Any, ...], Selection, frozenset[int]] | None = None

    @property
    def prefix(self) -> str:
        """Start of the names of its state: "optimizer", "optimizer_1", ..."""
        return f"optimizer_{self.index}" if self.index else "optimizer"


class ParameterCapture:
    """Captures the parameters of one model. capture: BaseHook._capture. notes: of collections.json."""

    def __init__(
        self,
        root: nn.Module,
        capture: weakref.WeakMethod[Capture],
        notes: dict[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self.view = ModelView(root)
        self.owed: Owed | None = None
        self.inside_step = False  # an optimizer is running a closure
        self._root = weakref.ref(root)
        self._capture_ref = capture
        self._notes = notes
        self._warn = warn
        self._weights_due: tuple[Stamp, Plan] | None = None
        self._known: dict[int, Known] = {}  # by id of the optimizer
        self._optimizers_met = 0
        self._searched = False
        self._note_aliases()

    # Called by the hook, in this order within a step ------------------------------------------------------

    def start_step(self, stamp: Stamp, plan: Plan, *, gradients: bool) -> None:
        """A step begins that is saved. gradients: whether a backward may follow."""
        if not any(plan.may_take(kind) for kind in _PARAMETER_KINDS):
            return
        if not gradients:
            self._weights_due = (stamp, plan)
            return
        self.owed = Owed(stamp, plan, inside_step=self.inside_step)
        if self.inside_step or not self._knows_any():
            self._weights_due = (stamp, plan)

    def end_forward(self) -> None:
        """The root's forward has ended."""
        if self._weights_due is None:
            return
        (stamp, plan), self._weights_due = self._weights_due, None
        parameters = self._parameters()
        if parameters is None:
            return
        self._take(stamp, plan, parameters, _select(self.view, plan, range(len(parameters)), []))
        if self.owed is not None and self.owed.stamp == stamp:
            self.owed.weights_done = True

    def before_step(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step."""
        self.inside_step = closure
        owed = self.owed
        if owed is not None:
            self._pay(owed, optimizer)

    def after_step(self, optimizer: Optimizer) -> bool:
        """An optimizer has stepped. Whether it is one of the model's."""
        self.inside_step = False
        owed = self.owed
        if owed is not None and owed.inside_step:
            self._pay(owed, optimizer)
        return self._known_as(optimizer) is not None

    def before_forward(self) -> None:
        """A forward begins while a step is owed: accumulation, a step that was skipped, or no optimizer."""
        owed, parameters = self.owed, self._parameters()
        if owed is None or self.inside_step:
            return
        if parameters is None:
            self.owed = None
            return
        if not owed.done and any(parameter.grad is not None for parameter in parameters):
            if not self._knows_any():
                self._search(parameters)
            if self._knows_any():
                return  # accumulation: the optimizer pays later
            self._warn(
                f"no optimizer stepped for {self.view.root_name}: gradients are read when the next forward "
                "starts; call register_optimizer() or hook.step() if that is not when they are final"
            )
        self.finish()

    def finish(self) -> None:
        """Captures what is owed with what there is now."""
        owed, self.owed = self.owed, None
        parameters = self._parameters()
        if owed is None or parameters is None:
            return
        rest = [position for position in range(len(parameters)) if position not in owed.done]
        weights: list[int] = [] if owed.weights_done else rest
        gradients = [position for position in rest if parameters[position].requires_grad]
        self._take(owed.stamp, owed.plan, parameters, _select(self.view, owed.plan, weights, gradients))

    def register(self, optimizer: Optimizer) -> bool:
        """Makes an optimizer known before its first step. False when it owns nothing of the model."""
        parameters = self._parameters() or []
        return self._know(optimizer, set(map(id, _owned(optimizer))), parameters) is not None

    @property
    def weights_due(self) -> bool:
        """Whether weights are to be captured when the root's forward ends."""
        return self._weights_due is not None

    def current_view(self) -> ModelView:
        """The names of the model's parts as it is now."""
        self._parameters()
        return self.view

    # Private ----------------------------------------------------------------------------------------------

    def _parameters(self) -> list[nn.Parameter] | None:
        """The model's parameters now; reads the structure again when it changed. None: the model is gone."""
        root = self._root()
        if root is None:
            return None
        found = self.view.current_parameters(root)
        while found is None:
            self.view = ModelView(root)
            self._note_aliases()
            if self.owed is not None:
                self.owed.done = frozenset()
            found = self.view.current_parameters(root)
        return found

    def _note_aliases(self) -> None:
        if self.view.aliases:
            self._notes["aliases"] = self.view.aliases

    def _known_as(self, optimizer: Optimizer) -> Known | None:
        known = self._known.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def _know(self, optimizer: Optimizer, owned: set[int], parameters: list[nn.Parameter]) -> Known | None:
        known = self._known_as(optimizer)
        if known is None and any(id(parameter) in owned for parameter in parameters):
            self._known = {key: one for key, one in self._known.items() if one.optimizer() is not None}
            known = self._known[id(optimizer)] = Known(optimizer, self._optimizers_met)
            self._optimizers_met += 1
        return known

    def _knows_any(self) -> bool:
        return any(known.optimizer() is not None for known in self._known.values())

    def _search(self, parameters: list[nn.Parameter]) -> None:
        """Looks once for an optimizer that has not stepped yet (accumulation from the first step on)."""
        if self._searched:
            return
        self._searched = True
        for found in gc.get_objects():
            if issubclass(type(found), Optimizer):
                self._know(found, set(map(id, _owned(found))), parameters)

    def _pay(self, owed: Owed, optimizer: Optimizer) -> None:
        parameters = self._parameters()
        if parameters is None:
            self.owed = None
            return
        owned = [id(parameter) for parameter in _owned(optimizer)]
        known = self._know(optimizer, set(owned), parameters)
        if known is None:
            return
        selection, positions = self._selection(owed, known, owned, parameters)
        extra = self._extra(owed.plan, known, optimizer, parameters, positions)
        self._take(owed.stamp, owed.plan, parameters, selection, optimizer, extra)
        owed.done |= positions
        if len(owed.done) == len(parameters):
            self.owed = None

    def _selection(
        self, owed: Owed, known: Known, owned: list[int], parameters: list[nn.Parameter]
    ) -> tuple[Selection, frozenset[int]]:
        """What this optimizer's step pays for. Remembered: a usual step asks the same as the one before."""
        ids = [id(parameter) for parameter in parameters]
        trainable = [parameter.requires_grad for parameter in parameters]
        question = (
            owed.plan,
            self.view,
            owed.weights_done,
            owed.done,
            owned,
            ids,
            trainable,
            len(self._known),
        )
        if known.memo is not None and _same(known.memo[0], question):
            return known.memo[1], known.memo[2]
        mine = set(owned)
        others = self._owned_by_others(known)
        positions = [
            position
            for position, parameter in enumerate(parameters)
            if position not in owed.done
            and (
                ids[position] in mine
                or (ids[position] not in others and (not trainable[position] or parameter.grad is not None))
            )
        ]
        gradients = [position for position in positions if trainable[position]]
        selection = _select(self.view, owed.plan, [] if owed.weights_done else positions, gradients)
        paid = frozenset(positions)
        if all(identity in mine or not trains for identity, trains in zip(ids, trainable, strict=True)):
            known.memo = (question, selection, paid)  # otherwise the answer depends on which gradients exist
        self._note_frozen(trainable)
        return selection, paid

    def _owned_by_others(self, known: Known) -> set[int]:
        others = (one.optimizer() for one in list(self._known.values()) if one is not known)
        return {id(parameter) for one in others if one is not None for parameter in _owned(one)}

    def _note_frozen(self, trainable: list[bool]) -> None:
        frozen = [
            parameter.name
            for parameter, trains in zip(self.view.parameters, trainable, strict=True)
            if not trains
        ]
        if frozen or "frozen" in self._notes:
            self._notes["frozen"] = frozen

    def _extra(
        self,
        plan: Plan,
        known: Known,
        optimizer: Optimizer,
        parameters: list[nn.Parameter],
        positions: frozenset[int],
    ) -> list[tuple[Any, Want]]:
        """State and hyper-parameters, where a collection asks for them, and the scale of the gradients."""
        found: list[tuple[Any, Want]] = []
        if plan.may_take(TensorKind.OPTIMIZER_STATE):
            origin = type(optimizer).__name__
            for position in sorted(positions):
                name = self.view.parameters[position].name
                for key, value in optimizer.state.get(parameters[position], {}).items():
                    if isinstance(value, torch.Tensor):
                        want = plan.want(f"{known.prefix}/{key}/{name}", TensorKind.OPTIMIZER_STATE, origin)
                        if want is not None:
                            found.append((value, want))
        if plan.may_take(TensorKind.HYPERPARAMETER):
            for name, value in _hyperparameters(optimizer, known.prefix):
                want = plan.want(name, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
                if want is not None:
                    found.append((value, want))
        return found

    def _take(
        self,
        stamp: Stamp,
        plan: Plan,
        parameters: list[nn.Parameter],
        selection: Selection,
        optimizer: Optimizer | None = None,
        extra: list[tuple[Any, Want]] | None = None,
    ) -> None:
        """The one native call."""
        capture = self._capture_ref()
        if capture is None:
            return
        gradients: list[Any] = [parameters[position].grad for position in selection.gradients]
        scale = getattr(optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor) and gradients:
            gradients = _unscaled(gradients, scale)
            want = plan.insist(_SCALE, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
            extra = [*(extra or ()), (scale, want)]
        tensors: list[Any] = [parameters[position] for position in selection.weights]
        tensors += gradients
        batch = selection.batch
        if extra:
            tensors += [value for value, _ in extra]
            batch = batch.with_more([want for _, want in extra])
        if tensors:
            capture(tensors, batch, stamp=stamp)


_PARAMETER_KINDS = (
    TensorKind.WEIGHT,
    TensorKind.BIAS,
    TensorKind.GRADIENT,
    TensorKind.OPTIMIZER_STATE,
    TensorKind.HYPERPARAMETER,
)


def _owned(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _select(view: ModelView, plan: Plan, weights: Iterable[int], gradients: Iterable[int]) -> Selection:
    """Those of the positions that the plan wants."""
    chosen: tuple[list[int], list[int]] = ([], [])
    wants: list[Want] = []
    for position in weights:
        parameter = view.parameters[position]
        want = plan.want(parameter.name, parameter.kind, parameter.origin)
        if want is not None:
            chosen[0].append(position)
            wants.append(want)
    for position in gradients:
        parameter = view.parameters[position]
        want = plan.want(f"gradient/{parameter.name}", TensorKind.GRADIENT, parameter.origin)
        if want is not None:
            chosen[1].append(position)
            wants.append(want)
    return Selection(*chosen, Batch(wants))


def _same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Equal, without comparing plans or views element by element."""
    return one[0] is two[0] and one[1] is two[1] and one[2:] == two[2:]


def _unscaled(gradients: list[Any], scale: torch.Tensor) -> list[Any]:
    """Gradients as the optimizer will use them. Scales are powers of two, so the division is exact."""
    with torch.no_grad():
        return [
            gradient if gradient is None or gradient.layout is not torch.strided else gradient / scale
            for gradient in gradients
        ]


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
