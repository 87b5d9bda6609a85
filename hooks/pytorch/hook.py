"""The hook for PyTorch: what a training script makes, registers and closes.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    hook.register_module(model)        # optimizers are found by themselves
    hook.register_loss(criterion)
    ... train as before ...
    hook.close()                       # or leave it to the end of the program

A step is one forward of the registered module (until step() is called by hand). Until set_mode() is called
the mode follows `model.training`: TRAIN or EVAL. (The older library says GLOBAL there.) On a step that
saves nothing only one forward pre-hook and two optimizer hooks run, some hundred nanoseconds each.

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
from datetime import timedelta
from time import perf_counter_ns
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tdcore.config import HookConfig, ReductionConfig, SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.hook_json import load_hook_config
from tdcore.hooks.base import BaseHook, hook_config
from tdcore.hooks.devices import prepare_devices
from tdcore.hooks.plan import Plan
from tdcore.hooks.pytorch import compiled_steps
from tdcore.hooks.pytorch.compiled import CompiledRoot, compile_in_use
from tdcore.hooks.pytorch.job import came_too_early, place_in_job
from tdcore.hooks.pytorch.model import cuda_devices
from tdcore.hooks.pytorch.optimizer import Numbers
from tdcore.hooks.pytorch.parameters import ParameterCapture
from tdcore.hooks.pytorch.registration import check_loss, check_optimizer, check_scaler, root_of
from tdcore.hooks.pytorch.replicas import Replicas
from tdcore.hooks.pytorch.roots import Roots, switch_off
from tdcore.hooks.pytorch.sharded import Parts
from tdcore.hooks.pytorch.signals import StepSignal, optimizer_signals
from tdcore.hooks.pytorch.tap import graph_task
from tdcore.hooks.pytorch.taps import Arguments, Taps
from tdcore.hooks.recorder import array_product
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file"]

_TRAIN, _EVAL, _GLOBAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value, ModeKeys.GLOBAL.value
_WITH_GRADIENTS = (_TRAIN, _GLOBAL)


class Hook(BaseHook):
    """Captures one model's training. See the module's text; every argument is checked when it is given.

    out_dir: local folder or URL. A run that is there already gets a new attempt. dry_run: count, write
    nothing. save_config: when to save; a SaveConfig, or a dict of modes to SaveConfigMode.
    reduction_config: in which form. include_collections: which collections; "losses" always is.
    include_regex: tensors of the collection "default". save_all: everything there is, optimizer state
    included, but for "output_gradients". include_workers: "one" (rank 0), "all", or a list of ranks. ring,
    flusher, close_timeout: see tdcore.session.Session. on_stop: called once with a stop request, instead of
    raising StopTraining. rules: instances, classes or names of rules; what they need is captured too
    (hooks/rules.py).
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
    ) -> None:
        config = hook_config(
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
        self._start(config, ring=ring, **options)

    @classmethod
    def from_config(cls, config: HookConfig, **options: Any) -> Hook:
        """A hook from a checked configuration. options: the keyword-only arguments of Hook."""
        hook = cls.__new__(cls)
        hook._start(config, **options)
        return hook

    @classmethod
    def create_from_json_file(
        cls, json_file_path: str | os.PathLike[str] | None = None, **options: Any
    ) -> Hook:
        """A hook from the older library's JSON; tdcore.hook_json says where the file is looked for."""
        return cls.from_config(load_hook_config(json_file_path), **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return self  # a model that holds its hook can be copied; the copy is not hooked

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed_hook, (self.config,)

    def _start(self, config: HookConfig, **options: Any) -> None:
        self._place = rank, world_size = place_in_job()
        options |= {"rank": rank, "world_size": world_size}
        BaseHook.__init__(self, config, framework_version=str(torch.__version__), **options)
        self._root: weakref.ref[nn.Module] | Callable[[], None] = lambda: None
        self._parameters: ParameterCapture | None = None
        self._compiled = CompiledRoot()
        self._parts = self._recorder.parts = Parts(self._names, self._notes, self._recorder)
        self._taps = Taps(
            self._recorder,
            weakref.WeakMethod(self._fault),
            weakref.WeakMethod(self._end_forward),
            self._warn,
            self._notes,
            self._compiled,
        )
        self._further = Roots()
        self._numbers = Numbers()
        self._by_hand = False  # step() was called: forwards no longer count
        self._version = self._collections.version
        self._resolved_version = -1
        self._replicas = Replicas()
        self._stack = ExitStack()
        weakref.finalize(self, self._stack.close)

    # What a script registers ------------------------------------------------------------------------------

    def register_module(self, module: nn.Module) -> None:
        """Captures this model. The forward of the first one is the clock; further ones join (roots.py)."""
        module = root_of(module)
        root = self._root()
        if root is module:
            return
        if self._off:
            return
        if root is not None:
            self._further.add(self, module, self._stack)
            self._resolved_version = -1
            return
        early = came_too_early(self._place)
        if early is not None:
            self._notes["place"] = early
            self._warn(early)
        with ExitStack() as stack:
            parameters = ParameterCapture(
                module,
                self._recorder,
                self._notes,
                self._warn,
                weakref.WeakMethod(self._fault),
                numbers=self._numbers,
            )
            signal = StepSignal(self, self)
            stack.callback(module.register_forward_pre_hook(signal, with_kwargs=True).remove)
            before, after = optimizer_signals(weakref.ref(self))
            stack.callback(register_optimizer_step_pre_hook(before).remove)
            stack.callback(register_optimizer_step_post_hook(after).remove)
            self._stack.enter_context(stack.pop_all())
        self._parameters = parameters
        self._root = weakref.ref(module)
        if compile_in_use():
            self._guarded("activations", compiled_steps.compiled_before, self, module)
        self._guarded("devices", prepare_devices, self._ring, cuda_devices(module), self._warn)

    register_hook = register_module

    def register_loss(self, loss_module: nn.Module) -> None:
        """Captures what a loss module returns, as "<Class>_output_0" of the collection "losses"."""
        check_loss(loss_module)
        self._taps.add_loss(loss_module)
        if self._clock.plan is not None:
            self._guarded("losses", self._attach_losses, self._clock.plan)
        elif self._compiled.met or compile_in_use():
            compiled_steps.arm_losses(self)

    def register_optimizer(self, optimizer: Optimizer) -> None:
        """Says plainly which optimizer the model has. Without this it is known from its first step on."""
        check_optimizer(optimizer)
        if self._off:
            return
        if self._parameters is None:
            raise ConfigError("register_optimizer needs the model first: call register_module(model)")
        owns = [one.register(optimizer) for one in (self._parameters, *self._further.parameters())]
        if not any(owns):
            raise ConfigError(
                f"the {type(optimizer).__name__} holds no parameter of the registered "
                f"{self._parameters.view.root_name}; give the optimizer of that model"
            )

    def register_scaler(self, scaler: object) -> None:
        """Says which gradient scaler the training has; one that is there at the first saved step is found."""
        check_scaler(scaler)
        if self._off:
            return
        if self._parameters is None:
            raise ConfigError("register_scaler needs the model first: call register_module(model)")
        self._parameters.scalers.add(scaler)

    def step(self) -> None:
        """Starts the next step by hand; from the first call on forwards start none. Raises StopTraining."""
        if self._off:
            return
        self._by_hand = True
        self._check_control()
        root = self._root()
        self._guarded("steps", self._step_by_hand, root.training if root is not None else None)

    # What PyTorch calls -----------------------------------------------------------------------------------

    def _on_forward(
        self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object] | None
    ) -> None:
        """The root's forward begins. kwargs: None when compiled code tells it."""
        if self._off:
            return
        root = self._root()
        if module is not root:
            if root is not None and "_is_replica" in module.__dict__:
                self._replicas.on_forward(self, module)
            return
        if graph_task is not None and graph_task() != -1:
            return  # activation checkpointing computes the root again
        if self._asked():
            self._check_control()
        start = perf_counter_ns()
        if not self._by_hand:
            try:
                self._start_step(_TRAIN if module.training else _EVAL)
            except Exception as error:
                self._fault("steps", error)
                return
        if self._clock.plan is not None:
            spent = self._recorder.spent_ns
            try:
                self._attach(module, self._clock.plan, (args, kwargs) if kwargs is not None else None)
            except Exception as error:
                self._fault("activations", error)
            self._recorder.spent_ns = spent + perf_counter_ns() - start  # a tap in between has added its own

    def _start_step(self, following: int) -> None:
        parameters = self._parameters
        if parameters is not None and parameters.owed is not None:
            self._guarded("parameters", parameters.before_forward)
        if self._further.some:
            self._guarded("parameters", self._further.before_forward)
        if self._taps.unsettled:
            self._guarded("output gradients", self._taps.settle)
        if self._version.value != self._resolved_version:
            self._further.resolve_modules(self)
            self._resolved_version = self._version.value
        plan = self._begin_step(self._mode or following)
        if plan is None:
            if self._taps.left_on:
                self._guarded("losses", compiled_steps.rest, self)
            return
        stamp = self._clock.now.stamp
        if self._further.some:
            self._guarded("activations", self._further.begin_step, self)
        if self._taps.losses:
            self._guarded("losses", self._attach_losses, plan)
        if parameters is not None:
            gradients = stamp.mode in _WITH_GRADIENTS and torch.is_grad_enabled()
            parameters.start_step(stamp, plan, gradients=gradients)

    def _step_by_hand(self, training: bool | None) -> None:
        self._start_step(_GLOBAL if training is None else _TRAIN if training else _EVAL)
        if self._compiled.met:
            compiled_steps.arm(self)

    def _attach(self, root: nn.Module, plan: Plan, arguments: Arguments | None) -> None:
        parameters = self._parameters
        if parameters is None or torch._C._get_tracing_state() is not None:
            return
        if arguments is None and not self._taps.is_on:
            compiled_steps.note_missed(self)
            return
        view = parameters.current_view()
        try:
            parameters.watch_backward()
        except Exception as error:
            self._fault("gradient order", error)
        if self._place[1] > 1:
            self._parts.look_at(root, view)
        also = compiled_steps.widest(self)
        due = parameters.due_after_forward
        self._taps.attach(root, view, plan, arguments, watch_end=due, also=also)

    def _end_forward(self) -> None:
        """The root's forward has ended."""
        start = perf_counter_ns()
        try:
            self._taps.forward_ended()
        except Exception as error:
            self._fault("modules without calls", error)
        if self._parts.unfinished.kept:
            self._guarded("activations", self._parts.end_forward)
        parameters = self._parameters
        if parameters is not None and not self._off and parameters.due_after_forward:
            self._guarded("parameters", parameters.end_forward)
        if self._compiled.met:
            compiled_steps.arm(self)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _attach_losses(self, plan: Plan) -> None:
        self._taps.attach_losses(plan, compiled_steps.widest(self))

    def _before_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer, closure: bool) -> None:
        start = perf_counter_ns()
        try:
            parameters.before_step(optimizer, closure=closure)
        except Exception as error:
            self._fault("parameters", error)
        self._recorder.spent_ns += perf_counter_ns() - start

    def _after_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer) -> None:
        try:
            mine = parameters.after_step(optimizer)
        except Exception as error:
            self._fault("parameters", error)
            return
        if mine:
            self._check_control()

    # What the base asks -----------------------------------------------------------------------------------

    @staticmethod
    def _product(tensor: Any, product: str) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return array_product(tensor, product)
        with torch.no_grad():
            values = tensor.detach().to(torch.float64)
            return (values.abs() if product == "abs_prod" else values).prod()

    def _finish(self) -> None:
        if self._parameters is not None:
            self._parameters.finish()
        self._further.finish()
        self._taps.settle()

    def _detach(self) -> None:
        self._further.detach()
        self._taps.detach()
        self._taps.detach_losses()
        self._stack.close()

    def _switch_off(self, part: str) -> None:
        if part == "steps":
            self._send_collections()  # the last there will be, with the fault
            self._off = True
        self._further.switch_off(part)
        switch_off(part, self._taps, self._parameters)


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def _closed_hook(config: HookConfig) -> Hook:
    """What a hook is in another process, after a pickle: one that takes every call and captures nothing."""
    hook = Hook.from_config(dataclasses.replace(config, dry_run=True))
    hook.close()
    return hook
