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
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.clock import Stamp
from tdcore.hooks.plan import Batch, Plan, Want
from tdcore.hooks.pytorch.model import ModelView
from tdcore.hooks.pytorch.optimizer import (
    Known,
    Optimizers,
    hyperparameter_values,
    owned_by,
    state_values,
    unscaled,
)
from tdcore.hooks.pytorch.sharded import in_place
from tdcore.hooks.recorder import Recorder
from tdcore.layout import TensorKind

__all__ = ["ParameterCapture"]

_SCALE = "optimizer/grad_scale"
_GRADIENT, _REQUIRES_GRAD = attrgetter("grad"), attrgetter("requires_grad")
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


class Payment(NamedTuple):
    """What one step of an optimizer pays for. positions: in the view's parameters. paid: those as a set."""

    selection: Selection
    positions: list[int]
    names: list[str]
    paid: frozenset[int]


class Memo(NamedTuple):
    """A payment, and what it depends on. foreign: positions of parameters that other optimizers may own."""

    question: tuple[Any, ...]
    foreign: list[int]
    about_others: tuple[set[int], list[bool]]
    payment: Payment


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
        if self._off or not plan.may_take_any(_KINDS):
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
        if root is not None and not self.view.matches(root):
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
            self._take(stamp, plan, parameters, _select(self.view, plan, list(range(len(parameters))), []))
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
        # The older FullyShardedDataParallel takes its parameters off the modules during forward.
        found = None if self.view.flat else self.view.held_parameters()
        if found is None and self._root() is not None:
            found = self.current_view().held_parameters()
        return found

    def _note_aliases(self) -> None:
        if self.view.aliases or "aliases" in self._notes:
            self._notes["aliases"] = self.view.aliases

    def _pay(self, owed: Owed, optimizer: Optimizer) -> None:
        parameters = self._parameters()
        if parameters is None:
            self.owed = None
            return
        known = self._optimizers.meet(optimizer, parameters)
        if known is None:
            return
        payment = self._payment(owed, known, optimizer, parameters)
        extra = self._optimizer_values(owed.plan, known, optimizer, payment, parameters)
        self._take(owed.stamp, owed.plan, parameters, payment.selection, optimizer, extra)
        owed.done = owed.done | payment.paid if owed.done else payment.paid
        if len(owed.done) == len(parameters):
            self.owed = None

    def _payment(
        self, owed: Owed, known: Known, optimizer: Optimizer, parameters: list[nn.Parameter]
    ) -> Payment:
        """What this optimizer's step pays for. Remembered: a usual step asks the same as the one before."""
        ids = self.view.ids
        owned = list(map(id, owned_by(optimizer)))
        trainable = list(map(_REQUIRES_GRAD, parameters))
        question = (owed.plan, self.view, owed.weights_done, owed.done, owned, ids, trainable)
        memo: Memo | None = known.memo
        if (
            memo is not None
            and _same(memo.question, question)
            and memo.about_others == self._about_others(known, memo.foreign, parameters)
        ):
            return memo.payment
        mine = set(owned)
        foreign = [position for position, identity in enumerate(ids) if identity not in mine]
        about_others = others, has_gradient = self._about_others(known, foreign, parameters)
        left = {
            position
            for position, has in zip(foreign, has_gradient, strict=True)
            if ids[position] in others or (trainable[position] and not has)
        }
        positions = [
            position for position in range(len(ids)) if position not in owed.done and position not in left
        ]
        gradients = [position for position in positions if trainable[position]]
        selection = _select(self.view, owed.plan, [] if owed.weights_done else positions, gradients)
        names = [self.view.parameters[position].name for position in positions]
        payment = Payment(selection, positions, names, frozenset(positions))
        known.memo = Memo(question, foreign, about_others, payment)
        self._note_frozen(trainable)
        return payment

    def _about_others(
        self, known: Known, foreign: list[int], parameters: list[nn.Parameter]
    ) -> tuple[set[int], list[bool]]:
        """Ids of what other optimizers own, and which parameters that are not of this one have gradients."""
        if not foreign:
            return set(), []
        has_gradient = [parameters[position].grad is not None for position in foreign]
        return self._optimizers.owned_by_others(known), has_gradient

    @staticmethod
    def _optimizer_values(
        plan: Plan, known: Known, optimizer: Optimizer, payment: Payment, parameters: list[nn.Parameter]
    ) -> list[tuple[list[Any], Batch]]:
        """Its state and settings, where the plan wants them."""
        found = []
        if plan.may_take(TensorKind.OPTIMIZER_STATE):
            paid = list(map(parameters.__getitem__, payment.positions))
            found.append(state_values(optimizer, known.prefix, plan, payment.names, paid))
        if plan.may_take(TensorKind.HYPERPARAMETER):
            found.append(hyperparameter_values(optimizer, known.prefix, plan))
        return found

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
        extra: Iterable[tuple[list[Any], Batch]] = (),
    ) -> None:
        """The one native call."""
        at = parameters.__getitem__
        tensors: list[Any] = list(map(at, selection.weights))
        own = list(map(at, selection.gradients))
        gradients = in_place(list(map(_GRADIENT, own)), own)
        scale = getattr(optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor) and gradients:
            gradients = unscaled(gradients, scale)
            want = plan.insist(_SCALE, TensorKind.HYPERPARAMETER, type(optimizer).__name__)
            extra = [*extra, ([scale], Batch([want]))]
        tensors += gradients
        batch = selection.batch
        for values, more in extra:
            tensors += values
            batch = batch.followed_by(more)
        if tensors:
            self._recorder.capture(tensors, batch, stamp)


def _select(view: ModelView, plan: Plan, weights: list[int], gradients: list[int]) -> Selection:
    """Those of the positions that the plan wants. Remembers the last answers: steps ask the same again."""
    key = ("selection", bool(weights), bool(gradients))
    known = plan.cache.get(key)
    if known is None or known[0] is not view or known[1:3] != (weights, gradients):
        chosen_weights, wants = _wanted(view, plan, weights, gradient=False)
        chosen_gradients, more = _wanted(view, plan, gradients, gradient=True)
        selection = Selection(chosen_weights, chosen_gradients, Batch(wants + more))
        known = plan.cache[key] = (view, weights, gradients, selection)
    answer: Selection = known[3]
    return answer


def _wanted(
    view: ModelView, plan: Plan, positions: list[int], *, gradient: bool
) -> tuple[list[int], list[Want]]:
    chosen: list[int] = []
    wants: list[Want] = []
    for position in positions:
        name, kind, origin = view.parameters[position]
        if gradient:
            name, kind = f"gradient/{name}", TensorKind.GRADIENT
        want = plan.want(name, kind, origin)
        if want is not None:
            chosen.append(position)
            wants.append(want)
    return chosen, wants


def _same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Equal, without comparing plans or views element by element."""
    return one[0] is two[0] and one[1] is two[1] and one[2:] == two[2:]
