"""The hook for PyTorch: what a training script makes, registers and closes.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    hook.register_module(model)        # optimizers are found by themselves
    hook.register_loss(criterion)
    ... train as before ...
    hook.close()                       # or leave it to the end of the program

A step reaches from one update of the weights to the next (driver.py), until step() is called by hand. Until
set_mode() is called the mode follows what runs: TRAIN, EVAL, or PREDICT. (The older library says GLOBAL
there.) On a step that saves nothing only one forward pre-hook and two optimizer hooks run, some hundred
nanoseconds each.

Threads: set-up and close() in the training thread. Replicas may run forward in other threads. Never changes
values, random numbers, grad mode, autocast or versions of tensors. Never keeps the model alive: the model
keeps the hook alive, so that a hook need not be stored; it ends with the model.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tdcore.config.hook_config import HookConfig
from tdcore.config.hook_json import load_hook_config
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.hooks import current
from tdcore.hooks.arguments import hook_config
from tdcore.hooks.base import _ALL_HOOKS, BaseHook
from tdcore.hooks.pytorch import compiled_steps
from tdcore.hooks.pytorch.compiled import CompiledRoot, compile_in_use
from tdcore.hooks.pytorch.driver import TrainingDriver
from tdcore.hooks.pytorch.job import came_too_early, place_in_job
from tdcore.hooks.pytorch.payload_size import expected_bytes
from tdcore.hooks.pytorch.pickling import leave_hooks_out_of_pickles
from tdcore.hooks.pytorch.registration import (
    check_clock,
    check_loss,
    check_optimizer,
    check_scaler,
    root_of,
)
from tdcore.hooks.pytorch.roots import Root, root_name
from tdcore.hooks.pytorch.scripting import leave_out_of_scripts
from tdcore.hooks.pytorch.signals import optimizer_hooks
from tdcore.hooks.pytorch.takeover import take_over
from tdcore.hooks.pytorch.tap import Tap
from tdcore.hooks.recorder import array_product
from tdcore.hooks.step_number import StepNumber
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]

_TRAIN, _EVAL, _GLOBAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value, ModeKeys.GLOBAL.value
_given: ContextVar[HookConfig | None] = ContextVar(
    "the configuration of the hook that is being made", default=None
)


class Hook(TrainingDriver):
    """Captures one model's training. See the module's text; every argument is checked when it is given.

    out_dir: local folder or URL. A run that is there already gets a new attempt. dry_run: count, write
    nothing. save_config: when to save; a SaveConfig, or a dict of modes to SaveConfigMode.
    reduction_config: in which form. include_collections: which collections; "losses" always is.
    include_regex: tensors of the collection "default". save_all: everything there is, optimizer state
    included, but for "output_gradients". include_workers: "one" (rank 0), "all", or a list of ranks. ring,
    flusher, close_timeout: see tdcore.session.Session. on_stop: called once with a stop request, instead of
    raising StopTraining. rules: instances, classes or names of rules; what they need is captured too
    (hooks/rules.py). clock: what a step is: "update", from one update of the weights to the next
    (docs/pytorch.md), or "forward", as in the older library: one forward of the first registered module.
    export_tensorboard, tensorboard_dir: refused until there is such an export.
    """

    framework = "pytorch"

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        export_tensorboard: bool = False,
        tensorboard_dir: str | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | SaveConfigMode | Mapping[ModeKeys, SaveConfigMode] | None = None,
        include_regex: str | Iterable[str] | None = None,
        include_collections: str | Iterable[str] | None = None,
        save_all: bool = False,
        include_workers: str | Iterable[int | str] = "one",
        *,
        ring: RingConfig | None = None,
        flusher: Literal["process", "thread"] = "process",
        close_timeout: timedelta = timedelta(seconds=30),
        on_stop: Callable[[StopRequest], None] | None = None,
        rules: Iterable[object] | str = (),
        clock: Literal["update", "forward"] = "update",
    ) -> None:
        config = _given.get() or hook_config(
            out_dir,
            export_tensorboard=export_tensorboard,
            tensorboard_dir=tensorboard_dir,
            dry_run=dry_run,
            reduction_config=reduction_config,
            save_config=save_config,
            include_regex=include_regex,
            include_collections=include_collections,
            save_all=save_all,
            include_workers=include_workers,
        )
        options = {"flusher": flusher, "close_timeout": close_timeout, "on_stop": on_stop, "rules": rules}
        self._start(config, ring=ring, clock=clock, **options)

    @classmethod
    def from_config(cls, config: HookConfig, **options: Any) -> Hook:
        """A hook from a checked configuration. options: the keyword-only arguments of Hook.

        Calls cls(config.out_dir, **options); the configuration replaces the other arguments that a subclass
        hands on.
        """
        token = _given.set(config)
        try:
            return cls(config.out_dir, **options)
        finally:
            _given.reset(token)

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> Hook:
        """A hook from the older library's JSON; tdcore.config.hook_json says where the file is looked for."""
        return cls.from_config(load_hook_config(json_file_path), **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return self  # a model that holds its hook can be copied; the copy is not hooked

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed_hook, (self.config,)

    def _start(self, config: HookConfig, *, clock: str = "update", **options: Any) -> None:
        check_clock(clock)
        self._place = rank, world_size = place_in_job()
        options |= {"rank": rank, "world_size": world_size}
        BaseHook.__init__(self, config, framework_version=str(torch.__version__), **options)
        self._start_driver()
        self._by_forward = clock == "forward"

    # What a script registers ------------------------------------------------------------------------------

    def register_module(self, module: nn.Module) -> None:
        """Captures this model. Any number may be registered, in any order (names: roots.py).

        A hook that has the same model registered is closed first, with a warning: a model has one hook.
        """
        module = root_of(module)
        self._roots = [root for root in self._roots if root.reference() is not None]
        if self._off or any(root.reference() is module for root in self._roots):
            return
        take_over(self, module, list(_ALL_HOOKS))
        early = came_too_early(self._place)
        if early is not None:
            self._notes["place"] = early
            self._warn(early)
        name = root_name(module, self._roots)
        compiled = CompiledRoot() if self._roots else self._gate
        compiled.met = compile_in_use()  # until it is called as it is
        root = Root(self, module, name, compiled)
        if type(self).forward_hook is not Hook.forward_hook:
            root.taps.override = weakref.WeakMethod(self.forward_hook)
        with ExitStack() as stack:
            if not self._listens:
                self._listens = True
                before, after = optimizer_hooks(weakref.ref(self))
                stack.callback(register_optimizer_step_pre_hook(before).remove)
                stack.callback(register_optimizer_step_post_hook(after).remove)
            self._roots.append(root)
            root.put_on(self, stack)
            self._stack.enter_context(stack.pop_all())
        leave_hooks_out_of_pickles()
        leave_out_of_scripts()
        self._foreign.clear()
        self._guarded("ring size", self._expect, module, name)
        self._clock.refresh_next()
        if compile_in_use():
            compiled_steps.arm(self, root)

    register_hook = register_module

    def _expect(self, module: nn.Module, name: str) -> None:
        """Has the ring take memory in advance for the values that a saved step of the model will have."""
        included = [self._collections.get(each) for each in self._clock.included]
        expected = expected_bytes(module, name, included, self.config.reduction_config)
        if expected:
            self._ring.expect(expected)

    def register_loss(self, loss_module: nn.Module) -> None:
        """Captures what a loss module returns, as "<Class>_output_0" of the collection "losses"."""
        check_loss(loss_module)
        if self._off:
            return
        self._losses.add(loss_module)
        if self._clock.plan is not None:
            self._guarded("losses", self._attach_losses, self._clock.plan)
        elif self._gate.met or compile_in_use():
            compiled_steps.arm_losses(self)

    def forward_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Capture the outputs of one call of a module: for subclasses to override.

        Called from the module's forward hook, for every module whose outputs are captured in a saved step;
        not in compiled code, nor for a registered loss. An override may call super(), which captures outputs.
        An exception is logged once, and never reaches the training. Without an override the capture does not
        pass through this method.

        Args:
            module: The module that was called.
            inputs: Its positional arguments, as a tuple.
            outputs: What it returned. The values that super() gets are those that are recorded.
        """
        if self._off:
            return
        for root in self._roots:
            tap = root.taps.output_tap(module)
            if tap is not None:
                Tap.__call__(tap, module, inputs, outputs)

    def set_mode(self, mode: ModeKeys) -> None:
        """Says what the following steps are. From the first call on the mode no longer follows what runs.

        TRAIN, GLOBAL: every forward belongs to a training step. EVAL, PREDICT: none does.
        """
        BaseHook.set_mode(self, mode)
        self._guarded("steps", self._stop_following)

    def register_optimizer(self, optimizer: Optimizer) -> None:
        """Says plainly which optimizer the model has. Without this it is known from its first step on."""
        check_optimizer(optimizer)
        if self._off:
            return
        if not self._roots:
            raise ConfigError("register_optimizer needs the model first: call register_module(model)")
        if not self._owns(optimizer):
            self._foreign.clear()
            raise ConfigError(
                f"the {type(optimizer).__name__} holds no parameter of the registered "
                f"{self._roots[0].view.root_name}; give the optimizer of that model"
            )

    def register_scaler(self, scaler: object) -> None:
        """Says which gradient scaler the training has; one that is there at the first saved step is found."""
        check_scaler(scaler)
        if self._off:
            return
        if not self._roots:
            raise ConfigError("register_scaler needs the model first: call register_module(model)")
        self._scalers.add(scaler)
        self._busy = True

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Records a functional loss as "<tensor_name>_output_0", when its collection is being saved.

        A name with "loss" in it belongs to "losses"; any other needs a collection that matches it. A tensor
        that requires gradients belongs to the open training step, also while an evaluation runs.
        """
        try:
            step = self._belongs_beneath(getattr(tensor_value, "requires_grad", False))
        except Exception as error:
            self._fault("losses", error)
            return
        if step is not None:
            with self._clock.during(step):
                BaseHook.record_tensor_value(self, tensor_name, tensor_value)
        else:
            BaseHook.record_tensor_value(self, tensor_name, tensor_value)

    def backward_hook(self, tname: str) -> Callable[[torch.Tensor], None]:
        """A function for Tensor.register_hook() that records the tensor's gradient as "gradient/<tname>".

        Recorded when a collection that takes the name is being saved, such as "gradients".
        """
        return partial(_record_gradient, weakref.ref(self), f"gradient/{tname}")

    @property
    def step(self) -> StepNumber:
        """The number of the current step, as global_step; called, it starts the next step by hand.

        From the first call on forwards start no step. The call raises StopTraining.
        """
        return StepNumber(self._clock.now.step, self._next_step)

    def _next_step(self) -> None:
        if self._off:
            return
        self._by_hand = True
        self._guarded("steps", self._stop_following)
        self._ask_control()
        root = self._roots[0].reference() if self._roots else None
        following = _GLOBAL if root is None else _TRAIN if root.training else _EVAL
        self._guarded("steps", self._start_by_hand, self._mode or following)

    # What the base asks -----------------------------------------------------------------------------------

    @staticmethod
    def _product(tensor: Any, product: str) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return array_product(tensor, product)
        with torch.no_grad():
            values = tensor.detach().to(torch.float64)
            return (values.abs() if product == "abs_prod" else values).prod()


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """The current hook, or None; create_if_not_exists makes one from the configuration (current.py)."""
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)


def _record_gradient(hook: weakref.ref[Hook], name: str, gradient: torch.Tensor) -> None:
    found = hook()
    if found is not None:
        found._save("backward_hook", found._values.gradient, name, gradient)


def _closed_hook(config: HookConfig) -> Hook:
    """What a hook is in another process, after a pickle: one that takes every call and captures nothing."""
    hook = Hook.from_config(dataclasses.replace(config, dry_run=True))
    hook.close()
    return hook
