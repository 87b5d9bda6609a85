"""Weights, gradients and optimizer state: one native call where the optimizer is about to step.

At the step pre-hook gradients are final (accumulated, unscaled) and weights are those that the forward saw. A
step that is saved therefore stays *owed* after its forward until an optimizer steps and pays; with gradient
accumulation the newest saved step is paid, under its own number.

    several optimizers      each pays for the parameters that it owns; frozen ones go with the first
    no optimizer seen yet   weights are captured when the forward ends (same values), gradients as above
    closure (LBFGS)         weights likewise, gradients when the step returns
    no optimizer at all     said once; gradients are read when the next forward starts
    eval, no_grad           weights when the forward ends, no gradients
    step skipped            (gradients gone at the next forward) rows without value: "absent"
    parameter unused        no gradient: a row "absent", which is not zero
    frozen parameter        no gradient row at all; listed under "frozen" in collections.json
    fused step with a gradient scaler   gradients are divided by the scale, which is recorded beside them

Optimizer state is that which enters the step.
Threads: the training thread, or the autograd thread that runs an optimizer inside backward(); one at a time.
Keeps no model, parameter or gradient alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch_model import ModelView
from tdcore.hooks.pytorch_optimizer import Known, Optimizers, optimizer_values, owned_by, unscaled
from tdcore.hooks.recorder import Recorder
from tdcore.layout import TensorKind

__all__ = ["ParameterCapture"]

_SCALE = "optimizer/grad_scale"
_KINDS = (
    TensorKind.WEIGHT,
    TensorKind.BIAS,
    TensorKind.GRADIENT,
    TensorKind.OPTIMIZER_STATE,
    TensorKind.HYPERPARAMETER,
)


class Selection(NamedTuple):
    """Positions in the view's parameters that one call takes. batch: of both lists in a row."""

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


class ParameterCapture:
    """Captures the parameters of one model. notes: of collections.json. warn: says a message once."""

    def __init__(
        self, root: nn.Module, recorder: Recorder, notes: dict[str, Any], warn: Callable[[str], None]
    ) -> None:
        self.view = ModelView(root)
        self.owed: Owed | None = None
        self.inside_step = False  # an optimizer is running a closure
        self._root = weakref.ref(root)
        self._recorder = recorder
        self._notes = notes
        self._warn = warn
        self._off = False
        self._weights_due: tuple[Stamp, Plan] | None = None
        self._optimizers = Optimizers()
        self._note_aliases()

    # Called by the hook, in this order within a step ------------------------------------------------------

    def start_step(self, stamp: Stamp, plan: Plan, *, gradients: bool) -> None:
        """A step begins that is saved. gradients: whether a backward may follow."""
        if self._off or not any(plan.may_take(kind) for kind in _KINDS):
            return
        if gradients:
            self.owed = Owed(stamp, plan, inside_step=self.inside_step)
        if not gradients or self.inside_step or not self._optimizers.any_alive:
            self._weights_due = (stamp, plan)

    @property
    def weights_due(self) -> bool:
        """Whether weights are to be captured when the root's forward ends."""
        return self._weights_due is not None

    def current_view(self) -> ModelView:
        """The names of the model's parts as it is now; reads the structure anew when it changed."""
        root = self._root()
        while root is not None and not self.view.matches(root):
            self.view = ModelView(root)
            self._note_aliases()
            if self.owed is not None:
                self.owed.done = frozenset()
        return self.view

    def end_forward(self) -> None:
        """The root's forward has ended."""
        if self._weights_due is None:
            return
        (stamp, plan), self._weights_due = self._weights_due, None
        parameters = self._parameters()
        if parameters is not None:
            self._take(stamp, plan, parameters, _select(self.view, plan, range(len(parameters)), []))
            if self.owed is not None and self.owed.stamp == stamp:
                self.owed.weights_done = True

    def before_step(self, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is about to step."""
        self.inside_step = closure
        if self.owed is not None:
            self._pay(self.owed, optimizer)

    def after_step(self, optimizer: Optimizer) -> bool:
        """An optimizer has stepped. Whether it is one of the model's."""
        self.inside_step = False
        if self.owed is not None and self.owed.inside_step:
            self._pay(self.owed, optimizer)
        return self._optimizers.find(optimizer) is not None

    def before_forward(self) -> None:
        """A forward begins while a step is owed: accumulation, a step that was skipped, or no optimizer."""
        owed, parameters = self.owed, self._parameters()
        if owed is None or self.inside_step:
            return
        if (
            parameters is not None
            and not owed.done
            and any(parameter.grad is not None for parameter in parameters)
        ):
            if not self._optimizers.any_alive:
                self._optimizers.search(parameters)
            if self._optimizers.any_alive:
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
        return self._optimizers.meet(optimizer, self._parameters() or []) is not None

    def switch_off(self) -> None:
        """Captures nothing from now on; still tells names and which optimizers are the model's."""
        self._off = True
        self.owed = self._weights_due = None

    # Private ----------------------------------------------------------------------------------------------

    def _parameters(self) -> list[nn.Parameter] | None:
        """The model's parameters, in the order of the view's. None: the model is gone."""
        found = self.view.held_parameters()
        if found is None and self._root() is not None:
            found = self.current_view().held_parameters()
        return found

    def _note_aliases(self) -> None:
        if self.view.aliases:
            self._notes["aliases"] = self.view.aliases

    def _pay(self, owed: Owed, optimizer: Optimizer) -> None:
        parameters = self._parameters()
        if parameters is None:
            self.owed = None
            return
        known = self._optimizers.meet(optimizer, parameters)
        if known is None:
            return
        selection, positions = self._selection(owed, known, optimizer, parameters)
        extra: list[tuple[Any, Want]] = []
        if owed.plan.may_take(TensorKind.OPTIMIZER_STATE) or owed.plan.may_take(TensorKind.HYPERPARAMETER):
            paid = [(self.view.parameters[index].name, parameters[index]) for index in sorted(positions)]
            extra = optimizer_values(optimizer, known.prefix, owed.plan, paid)
        self._take(owed.stamp, owed.plan, parameters, selection, optimizer, extra)
        owed.done |= positions
        if len(owed.done) == len(parameters):
            self.owed = None

    def _selection(
        self, owed: Owed, known: Known, optimizer: Optimizer, parameters: list[nn.Parameter]
    ) -> tuple[Selection, frozenset[int]]:
        """What this optimizer's step pays for. Remembered: a usual step asks the same as the one before."""
        ids = list(map(id, parameters))
        owned = list(map(id, owned_by(optimizer)))
        trainable = [parameter.requires_grad for parameter in parameters]
        question = (owed.plan, self.view, owed.weights_done, owed.done, owned, ids, trainable)
        if known.memo is not None and _same(known.memo[0], question):
            selection, paid = known.memo[1:]
            return selection, paid
        mine, others = set(owned), self._optimizers.owned_by_others(known)
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
        if all(identity in mine for identity in ids):  # otherwise the next answer may differ
            known.memo = (question, selection, paid)
        self._note_frozen(trainable)
        return selection, paid

    def _note_frozen(self, trainable: list[bool]) -> None:
        pairs = zip(self.view.parameters, trainable, strict=True)
        frozen = [parameter.name for parameter, trains in pairs if not trains]
        if frozen or "frozen" in self._notes:
            self._notes["frozen"] = frozen

    def _take(
        self,
        stamp: Stamp,
        plan: Plan,
        parameters: list[nn.Parameter],
        selection: Selection,
        optimizer: Optimizer | None = None,
        extra: Iterable[tuple[Any, Want]] = (),
    ) -> None:
        """The one native call."""
        tensors: list[Any] = [parameters[position] for position in selection.weights]
        gradients: list[Any] = [parameters[position].grad for position in selection.gradients]
        scale = getattr(optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor) and gradients:
            gradients = unscaled(gradients, scale)
            want = plan.insist(_SCALE, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
            extra = [*extra, (scale, want)]
        tensors += gradients
        batch = selection.batch
        if extra:
            tensors += [value for value, _ in extra]
            batch = batch.with_more([want for _, want in extra])
        if tensors:
            self._recorder.capture(tensors, batch, stamp)


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
