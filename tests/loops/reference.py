"""Reference recorder: computes, inside the training loop, the rows that a run must have.

Written from the text of the rule of steps ("What a step is" in docs/pytorch.md) alone. The loop calls the
reference at every forward, backward, update, evaluation and loss (interpreter.py). The reference counts steps
and modes, and clones tensors. It uses neither tdcore nor hooks of torch.

Decisions where the text of the rule allows several answers:

    a torch optimizer exists        from its construction on, not only from its first step on
    no optimizer exists             for any registered root: a frozen root ends no step of the other roots
    a sign of an update             counts when it follows the last backward, whichever root it belongs to
    two steps of one optimizer      without a training forward in between: a gradient row for the first, and
                                    optionally for later ones
    a parameter without optimizer   has its row as the last backward of the step left it
    two updates in one closure      (SAM) one row per evaluation of the closure, none for the inner step
    a loss that requires grad       belongs to the open training step; to the step of the last forward where
                                    no training step is open, or where that step ran with gradients enabled
    a gradient that no update used  has a row with its value at the end of the step, unless it was cleared
    an update without a training    begins a training step
    forward before it
    inputs of a criterion           belong to the step of its loss

Threads: the training thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

__all__ = ["Expected", "Key", "Reference"]

TRAIN, EVAL, PREDICT, GLOBAL = "TRAIN", "EVAL", "PREDICT", "GLOBAL"
_TRAINING = (TRAIN, GLOBAL)

NO_BACKWARD, NOT_STEPPED, SKIPPED = "no backward", "optimizer did not step", "skipped by the gradient scaler"
CLEARED = "cleared"

Parameters = Iterable[nn.Parameter]


class Key(NamedTuple):
    """Key of a row.

    mode_step: number of the step within its mode. step: global number, over all modes.
    """

    mode: str
    mode_step: int
    step: int
    name: str
    call: int


@dataclass(frozen=True)
class Expected:
    """Expected content of a row.

    value: None for a row with status "absent" and one of `reasons`. absent_too: the status "absent" is also
    accepted. optional: a missing row is also accepted. unchecked: every value is accepted (for a gradient
    that no update used, under a gradient scaler).
    """

    value: torch.Tensor | None
    reasons: frozenset[str] = frozenset()
    absent_too: bool = False
    optional: bool = False
    unchecked: bool = False


@dataclass
class _Step:
    mode: str
    mode_step: int
    step: int
    saved: bool
    ended: bool = False
    backward: bool = False  # a backward has run in this step
    sign: bool = False  # sign of an update since the last backward
    calls: Counter[str] = field(default_factory=Counter)
    called: set[int] = field(default_factory=set)  # modules that the loop called itself, by id
    roots: set[str] = field(default_factory=set)  # roots that ran a forward in this step
    weights: set[str] = field(default_factory=set)  # roots whose weights have rows
    differentiable: bool = False  # for a step of another mode: its forwards may be differentiated
    graph: bool = False  # a forward of this step computed gradients
    # gradients of updates, by parameter and call
    used: dict[str, dict[int, torch.Tensor | None]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # parameters whose optimizer step a scaler skipped
    left: dict[str, torch.Tensor] = field(default_factory=dict)  # gradients as the last backward left them
    identities: dict[str, tuple[int, int] | None] = field(default_factory=dict)  # identities of `left`
    # gradients that no update used, at the end of the step
    kept: dict[str, torch.Tensor | None] = field(default_factory=dict)
    # gradients of earlier steps, after the last backward of this one
    stale: dict[str, torch.Tensor] = field(default_factory=dict)
    updates: set[frozenset[int]] = field(default_factory=set)  # for each update, the ids of its parameters
    begun_by_update: bool = False
    by_closure: set[str] = field(default_factory=set)  # parameters of optimizers with a closure
    # evaluations of closures, by number of the optimizer
    evaluations: Counter[int] = field(default_factory=Counter)


@dataclass
class _Root:
    name: str
    module: nn.Module
    names: dict[str, nn.Parameter]  # parameters by name of their row
    trained: bool = False  # forwards since the last step of its optimizer: in training mode,
    evaluated: bool = False  # and in eval mode with gradients
    trains_in_eval: bool = False


class Reference:
    """Receives the events of one loop and produces `rows`; call finish() at the end of the loop.

    saves: whether a step of this mode and number is saved. steps: the event that begins a step, as in Loop.
    """

    def __init__(self, saves: Callable[[str, int], bool], steps: str = "update") -> None:
        self.rows: dict[Key, Expected] = {}
        self.steps: list[tuple[str, int, int]] = []  # (mode, mode step, step), in order of their beginnings
        self._saves = saves
        self._rule = steps
        self._roots: dict[str, _Root] = {}
        self._names: dict[int, tuple[_Root, str]] = {}  # modules of registered roots, by id
        self._criteria: dict[int, str] = {}
        self._parameters: dict[int, tuple[_Root, str]] = {}
        self._optimized: set[int] = set()  # parameters that a torch optimizer holds, by id
        self._mode: str | None = None
        self._counts: Counter[str] = Counter()
        self._all: list[_Step] = []
        self._train: _Step | None = None  # the training step that began last, open or not
        self._other: _Step | None = None  # the step of another mode, to which the last forward belonged
        self._now: _Step | None = None  # the step of the running forward
        self._depth = 0
        self._in_backward = False
        self._signed = False  # the loop has given a sign of an update
        self._before: Counter[str] = Counter()  # calls before the first step
        self._criterion_inputs: list[torch.Tensor] = []
        self.scaled = False  # the loop has a gradient scaler

    # Registration -----------------------------------------------------------------------------------------

    def register(self, module: nn.Module) -> None:
        """Register a root; call in the order of register_module()."""
        kind = type(module).__name__
        name, number = kind, 0
        while name in self._roots:
            number += 1
            name = f"{kind}_{number}"
        inner = f"{name}." if self._roots else ""
        root = _Root(name, module, {})
        for path, one in module.named_modules():
            self._names[id(one)] = root, f"{inner}{path}" if path else name
        for path, parameter in module.named_parameters():
            root.names[f"{name}_{path}"] = parameter
            self._parameters[id(parameter)] = root, f"{name}_{path}"
        self._roots[name] = root

    def register_loss(self, criterion: nn.Module) -> None:
        """Register a criterion."""
        self._criteria[id(criterion)] = type(criterion).__name__

    def optimizer(self, parameters: Parameters) -> None:
        """Record that a torch optimizer with these parameters exists."""
        self._optimized |= {id(one) for one in parameters}

    def set_mode(self, mode: str) -> None:
        """Record a call of Hook.set_mode()."""
        self._mode = mode

    def step(self) -> None:
        """Record a call of Hook.step()."""
        first = next(iter(self._roots.values()))
        if self._train is not None:
            self._close(self._train)
        step = self._begin(TRAIN if first.module.training else EVAL)
        self._now = step
        self._train = step if step.mode in _TRAINING else None

    # Calls of modules: modules.Listener -------------------------------------------------------------------

    def enter(self, module: nn.Module, *values: torch.Tensor) -> None:
        """Record that the forward of a module begins."""
        if id(module) in self._criteria:
            self._criterion_inputs = [value.detach().clone() for value in values]
        if self._in_backward or id(module) not in self._names:
            return
        root, name = self._names[id(module)]
        if self._depth == 0:
            self._now = self._forward(root, module)
        self._depth += 1
        for number, value in enumerate(values):
            self._record(self._now, f"{name}_input_{number}", value)

    def leave(self, module: nn.Module, value: torch.Tensor) -> None:
        """Record that the forward of a module has returned."""
        if id(module) in self._criteria:
            name = self._criteria[id(module)]
            step = self._step_of_loss(value)
            if step is None:  # criteria are recorded from the first step on
                return
            for number, one in enumerate(self._criterion_inputs):
                self._record(step, f"{name}_input_{number}", one)
            self._record(step, f"{name}_output_0", value)
        if self._in_backward or id(module) not in self._names:
            return
        self._depth -= 1
        self._record(self._now, f"{self._names[id(module)][1]}_output_0", value)

    def loss(self, name: str, value: torch.Tensor) -> None:
        """Record a loss. name: name of its row."""
        self._record(self._step_of_loss(value), name, value)

    # Backwards and updates --------------------------------------------------------------------------------

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Record that a backward runs within the block."""
        self._in_backward = True
        before = {
            name: _identity(one.grad) for root in self._roots.values() for name, one in root.names.items()
        }
        yield
        self._in_backward = False
        if self._train is None:
            return
        self._train.backward, self._train.sign = True, False
        for root in self._roots.values():
            for name, parameter in root.names.items():
                if parameter.grad is not None:
                    reached = _identity(parameter.grad) != before[name]
                    if not reached and name in self._train.left:
                        continue
                    where = self._train.left if reached else self._train.stale
                    where[name] = parameter.grad.detach().clone()
                    if reached:
                        self._train.identities[name] = _identity(parameter.grad)

    def before_update(self, parameters: Parameters) -> None:
        """Record that a torch optimizer is about to step with these parameters; not called with a closure."""
        step = self._step_of_update(parameters)
        if step is None:
            return
        for name in dict.fromkeys(root.name for root, _ in self._of(parameters)):
            self._record_weights(step, self._roots[name])

    def update(self, parameters: Parameters, gradients: dict[int, torch.Tensor | None] | None) -> None:
        """Record that a torch optimizer has stepped.

        Args:
            parameters: All parameters of the optimizer.
            gradients: The gradients that it used, by id of the parameter. None if evaluated() has recorded
                them.
        """
        held = self._of(parameters)
        if not held:
            return
        for root in {root.name: root for root, _ in held}.values():
            root.trains_in_eval |= root.evaluated and not root.trained and self._other is not None
            root.trained = root.evaluated = False
        step = self._train
        if step is None:
            return
        step.ended = True
        step.updates.add(frozenset(map(id, parameters)))
        for _, name in held:
            if gradients is not None:
                calls = step.used.setdefault(name, {})
                calls[len(calls)] = gradients[id(self._parameter(name))]

    def evaluated(self, optimizer: int, parameters: Parameters) -> None:
        """Record the return of a closure to the optimizer of this number, which holds these parameters."""
        step = self._step_of_update(parameters)
        if step is None:
            return
        call = step.evaluations[optimizer]
        step.evaluations[optimizer] += 1
        for _, name in self._of(parameters):
            gradient = self._parameter(name).grad
            step.by_closure.add(name)
            step.used.setdefault(name, {})[call] = None if gradient is None else gradient.detach().clone()

    def scaler_update(self, skipped: Parameters) -> None:
        """Record GradScaler.update().

        skipped: parameters of the optimizers whose step the scaler has skipped.
        """
        held = self._of(skipped)
        if held and self._train is not None:
            self._train.ended = True
            self._train.skipped |= {name for _, name in held}

    def sign(self, parameters: Parameters) -> None:
        """Record that the loop itself has changed these weights, or cleared their gradients."""
        if self._of(parameters) and self._train is not None and self._train.backward:
            self._train.sign = True

    def finish(self) -> None:
        """End the run: compute the rows of gradients."""
        if self._train is not None:
            self._close(self._train)
        for step in self._all:
            if step.saved and step.mode in _TRAINING:
                for root in self._roots.values():
                    for name, parameter in root.names.items():
                        if parameter.requires_grad:
                            self._finish(step, root, name)

    # Private ----------------------------------------------------------------------------------------------

    def _step_of_loss(self, value: torch.Tensor) -> _Step | None:
        step = self._train
        plain = self._other is None or not self._other.differentiable
        if self._rule == "update" and value.requires_grad and step is not None and not step.ended and plain:
            return step
        return self._now

    @property
    def _held(self) -> set[str]:
        """Names of the parameters of registered roots that a torch optimizer holds."""
        return {name for key, (_, name) in self._parameters.items() if key in self._optimized}

    def _step_of_update(self, parameters: Parameters) -> _Step | None:
        """Return the training step of an update.

        An update without a training forward before it begins a step.
        """
        step = self._train
        roots = {root.name: root for root, _ in self._of(parameters)}.values()
        unseen = any(root.evaluated and not root.trained for root in roots) and self._other is not None
        again = step is not None and step.ended and frozenset(map(id, parameters)) in step.updates
        if roots and self._rule == "update" and (step is None or (again and unseen)):
            if step is not None:
                self._close(step)
            self._other = None
            step = self._train = self._now = self._begin(self._mode or TRAIN)
            step.begun_by_update = True
            for root in self._roots.values():
                if root.evaluated and not root.trained and not self._held.isdisjoint(root.names):
                    root.trains_in_eval = True
            for root in roots:
                self._record_weights(step, root)
        return step

    def _close(self, step: _Step) -> None:
        """Close a training step: keep the remaining gradients that no update used."""
        for name, identity in step.identities.items():
            gradient = self._parameter(name).grad
            same = gradient is not None and _identity(gradient) == identity
            gone = gradient is None or (not same and not bool(gradient.any()))
            step.kept[name] = None if gone or gradient is None else gradient.detach().clone()

    def _of(self, parameters: Parameters) -> list[tuple[_Root, str]]:
        return [self._parameters[id(one)] for one in parameters if id(one) in self._parameters]

    def _parameter(self, name: str) -> nn.Parameter:
        return next(root.names[name] for root in self._roots.values() if name in root.names)

    def _begin(self, mode: str) -> _Step:
        number = self._counts[mode]
        self._counts[mode] += 1
        step = _Step(mode, number, len(self._all), self._saves(mode, number))
        if not self._all:
            step.calls.update(self._before)
        self._all.append(step)
        self.steps.append((mode, number, step.step))
        return step

    def _forward(self, root: _Root, module: nn.Module) -> _Step | None:
        """Return the step of the outermost call of a module of the root, whose forward begins."""
        training = module.training
        gradients = torch.is_grad_enabled()
        if self._rule == "update":
            if self._is_training(root, training, gradients):
                root.trained = True
                step = self._training_forward()
            else:
                root.evaluated |= gradients and not training
                step = self._other_forward(module, training)
                step.differentiable |= gradients and any(one.requires_grad for one in root.names.values())
        else:
            if self._rule == "forward" and root is next(iter(self._roots.values())):
                begun = self._begin(TRAIN if training else EVAL)
                self._train = begun if training else self._train
            if not self._all:
                return None
            step = self._all[-1]
        step.roots.add(root.name)
        step.graph |= gradients
        self._record_weights(step, root)
        return step

    def _is_training(self, root: _Root, training: bool, gradients: bool) -> bool:
        if self._mode is not None:
            return self._mode in _TRAINING
        return gradients and (training or root.trains_in_eval)

    def _training_forward(self) -> _Step:
        self._other = None
        step = self._train
        if step is not None and not step.ended and step.backward and not self._held:
            self._signed |= step.sign
            step.ended = step.sign or not self._signed
        if step is None or step.ended:
            if step is not None:
                self._close(step)
            step = self._train = self._begin(self._mode or TRAIN)
        return step

    def _other_forward(self, module: nn.Module, training: bool) -> _Step:
        mode = self._mode or (PREDICT if training else EVAL)
        step = self._other
        if step is None or step.mode != mode or id(module) in step.called:
            step = self._other = self._begin(mode)
        step.called.add(id(module))
        return step

    def _record(self, step: _Step | None, name: str, value: torch.Tensor) -> None:
        if step is None:
            if not self._saves(self._mode or GLOBAL, 0):
                return
            call = self._before[name]
            self._before[name] += 1
            self.rows[Key(self._mode or GLOBAL, 0, 0, name, call)] = Expected(
                value.detach().clone(), optional=True
            )
            return
        call = step.calls[name]
        step.calls[name] += 1
        if step.saved:
            key = Key(step.mode, step.mode_step, step.step, name, call)
            self.rows[key] = Expected(value.detach().clone())

    def _record_weights(self, step: _Step, root: _Root) -> None:
        if root.name not in step.weights:
            step.weights.add(root.name)
            for name, parameter in root.names.items():
                self._record(step, name, parameter)

    def _finish(self, step: _Step, root: _Root, name: str) -> None:
        """Compute the rows of one gradient in one training step."""
        key = Key(step.mode, step.mode_step, step.step, f"gradient/{name}", 0)
        used, left = step.used.get(name), step.left.get(name)
        took_part = root.name in step.roots
        reached = step.left.keys() | step.used.keys()
        if used is not None:
            for call, value in used.items():
                reasons = frozenset() if value is not None else frozenset({NO_BACKWARD})
                self.rows[key._replace(call=call)] = Expected(
                    value, reasons, optional=call > 0 and (value is None or name not in step.by_closure)
                )
        elif name in self._held:
            kept = step.kept.get(name)
            if left is not None and name not in step.skipped and (kept is not None or self.scaled):
                self.rows[key] = Expected(
                    kept,
                    frozenset({CLEARED, NOT_STEPPED, SKIPPED}),
                    unchecked=self.scaled,
                    absent_too=self.scaled,
                )
            elif took_part or step.begun_by_update or not reached.isdisjoint(root.names):
                why = {NOT_STEPPED} | ({SKIPPED} if name in step.skipped else set())
                why |= {NO_BACKWARD} if left is None else {CLEARED}
                no_graph = self._rule == "forward" and not step.graph  # a rollout with Hook(clock="forward")
                self.rows[key] = Expected(
                    None, frozenset(why), optional=no_graph or not took_part, unchecked=name in step.skipped
                )
        elif left is not None:
            self.rows[key] = Expected(left)
        elif took_part or not reached.isdisjoint(root.names):
            self.rows[key] = Expected(
                step.stale.get(name), frozenset({NO_BACKWARD}), absent_too=True, optional=True
            )


def _identity(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Return a value that changes with every write to the gradient."""
    return None if gradient is None else (gradient.data_ptr(), gradient._version)
