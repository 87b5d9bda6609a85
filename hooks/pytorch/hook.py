"""Hook: capture of a PyTorch training.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    hook.register_module(model)        # optimizers are found automatically
    hook.register_loss(criterion)
    ... train as before ...
    hook.close()                       # or at the end of the program

A step is the time from one update of the weights to the next (driver.py), unless the script calls step().
Until set_mode() is called, the mode is that of the running forward: TRAIN, EVAL, or PREDICT. (In smdebug the
mode is GLOBAL until set_mode() is called.) In a step that saves nothing, only one forward pre-hook and two
optimizer hooks run, with some hundred nanoseconds each.

Threads: set-up and close() in the training thread. Replicas may run forward in other threads. The hook never
changes values, random numbers, grad mode, autocast or versions of tensors, and never keeps the model alive.
The model keeps the hook alive, so a script need not store the hook. The hook is deleted with the model.
"""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tdcore.config.hook_config import HookConfig
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.hooks import current
from tdcore.hooks.base import BaseHook
from tdcore.hooks.configured import FromConfiguration, given_config
from tdcore.hooks.live_hooks import LIVE_HOOKS
from tdcore.hooks.pytorch.compile.code_variants import CompiledRoot, compile_in_use
from tdcore.hooks.pytorch.compile.torchscript import hide_hooks_from_torchscript
from tdcore.hooks.pytorch.distributed.rank import rank_and_world_size, rank_mismatch_message
from tdcore.hooks.pytorch.forward.module_hooks import ModuleHook
from tdcore.hooks.pytorch.model.pickling import leave_hooks_out_of_pickles
from tdcore.hooks.pytorch.oldest_torch import old_torch_message
from tdcore.hooks.pytorch.operator_recorder import OperatorRecorder
from tdcore.hooks.pytorch.parameters.payload_size import expected_bytes
from tdcore.hooks.pytorch.registration import (
    check_clock,
    check_loss,
    check_optimizer,
    check_scaler,
    root_of,
)
from tdcore.hooks.pytorch.steps import compiled_steps
from tdcore.hooks.pytorch.steps.driver import TrainingDriver
from tdcore.hooks.pytorch.steps.graphing import graphing
from tdcore.hooks.pytorch.steps.phases import time_phases
from tdcore.hooks.pytorch.steps.root import Root, root_name
from tdcore.hooks.pytorch.steps.step_hooks import optimizer_step_hooks
from tdcore.hooks.pytorch.takeover import take_over
from tdcore.hooks.recorder import array_product
from tdcore.hooks.step_number import StepNumber
from tdcore.hooks.step_timer import REST
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]

_TRAIN, _EVAL, _GLOBAL = ModeKeys.TRAIN.value, ModeKeys.EVAL.value, ModeKeys.GLOBAL.value


class Hook(FromConfiguration, TrainingDriver):
    """Hook for PyTorch: captures the training of models.

    Create a hook, register the model, and train. The hook never changes the training: errors of tdcore are
    logged, and only StopTraining is raised into the training.

    Args:
        out_dir: Local folder or URL of the run. An existing run gets a new attempt.
        export_tensorboard: Export the run to TensorBoard while it is written (docs/export.md).
        tensorboard_dir: Folder for the exports of several runs. None: the folder `tensorboard` in out_dir.
        dry_run: Count tensors and bytes, and write nothing.
        reduction_config: Form in which tensors are saved: statistics, values, or both.
        save_config: Steps that are saved: a SaveConfig, or a dict of modes to SaveConfigMode.
        include_regex: Patterns for names of tensors, which become the collection "default".
        include_collections: Names of the collections that are saved. "losses" is always saved.
        save_all: Save all tensors, including optimizer state, except the opt-in collections such as
            "output_gradients".
        include_workers: Workers that capture: "one" (rank 0), "all", or a list of ranks.
        ring: Size of the ring buffer.
        flusher: "process": a separate process writes the captured data. "thread": a thread of this process.
        close_timeout: Maximum time that close() waits for the last data.
        on_stop: Called once with a stop request, in the training thread, instead of raising StopTraining.
        rules: Instances, classes or names of rules. The tensors that they need are captured too.
        profiler_config: Steps that are profiled (docs/profile.md).
        clock: Meaning of a step. "update": from one update of the weights to the next (docs/pytorch.md).
            "forward": one forward of the first registered module, as in smdebug.

    Raises:
        ConfigError: An argument is invalid.
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
        profiler_config: ProfilerConfig | None = None,
        clock: Literal["update", "forward"] = "update",
    ) -> None:
        config = given_config(
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
            profiler_config=profiler_config,
        )
        options = {"flusher": flusher, "close_timeout": close_timeout, "on_stop": on_stop, "rules": rules}
        self._start(config, ring=ring, clock=clock, **options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return self  # a model that holds its hook can be copied; the copy is not captured

    def __reduce__(self) -> tuple[Any, ...]:
        return _closed_hook, (self.config,)

    def _start(self, config: HookConfig, *, clock: str = "update", **options: Any) -> None:
        check_clock(clock)
        self._rank_and_size = rank, world_size = rank_and_world_size()
        options |= {"rank": rank, "world_size": world_size}
        BaseHook.__init__(self, config, framework_version=str(torch.__version__), **options)
        self._start_driver()
        self._by_forward = clock == "forward"
        old = old_torch_message()
        if old is not None:
            self._notes["old_framework"] = [old]
            self._warn(old)

    # Registration -----------------------------------------------------------------------------------------

    def register_module(self, module: nn.Module) -> None:
        """Capture a model. Any number of models may be registered, in any order.

        A model has only one hook. If the model is registered with another hook, that hook is closed, and a
        warning is logged.
        """
        module = root_of(module)
        self._roots = [root for root in self._roots if root.reference() is not None]
        if self._off or any(root.reference() is module for root in self._roots):
            return
        take_over(self, module, list(LIVE_HOOKS))
        early = rank_mismatch_message(self._rank_and_size)
        if early is not None:
            self._notes["place"] = early
            self._warn(early)
        name = root_name(module, self._roots)
        compiled = CompiledRoot() if self._roots else self._gate
        compiled.root_is_compiled = compile_in_use()  # until the module is called without compiled code
        root = Root(self, module, name, compiled)
        if type(self).forward_hook is not Hook.forward_hook:
            root.module_hooks.override = weakref.WeakMethod(self.forward_hook)
        self._guarded("ring size", self._expect, module, name)  # before its devices are set up
        with ExitStack() as stack:
            if not self._listens:
                self._listens = True
                stack.callback(time_phases(self, self._timer, self._recorder))
                before, after = optimizer_step_hooks(weakref.ref(self))
                stack.callback(register_optimizer_step_pre_hook(before).remove)
                stack.callback(register_optimizer_step_post_hook(after).remove)
            self._roots.append(root)
            root.put_on(self, stack)
            self._stack.enter_context(stack.pop_all())
        leave_hooks_out_of_pickles()
        hide_hooks_from_torchscript()
        self._foreign.clear()
        self._clock.refresh_next()
        if compile_in_use():
            compiled_steps.arm(self, root)

    register_hook = register_module

    def _expect(self, module: nn.Module, name: str) -> None:
        """Choose the size of the ring for the values of a saved step of the model."""
        if self._session is not None:
            included = [self._collections.get(each) for each in self._clock.included]
            expected = expected_bytes(module, name, included, self.config.reduction_config)
            self._session.sizes.expect(expected)

    def register_loss(self, loss_module: nn.Module) -> None:
        """Capture the outputs of a loss module, as "<Class>_output_0" of the collection "losses"."""
        check_loss(loss_module)
        if self._off:
            return
        self._losses.add(loss_module)
        if self._clock.plan is not None:
            self._guarded("losses", self._attach_losses, self._clock.plan)
        elif self._gate.root_is_compiled or compile_in_use():
            compiled_steps.arm_losses(self)

    def forward_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Capture the outputs of one call of a module. Subclasses may override this method.

        If a subclass overrides this method, the forward hook of every module whose outputs are captured calls
        it in saved steps, except in compiled code and for registered losses. The override may call super(),
        which captures the outputs. An exception is logged once and never reaches the training.

        Args:
            module: The module that was called.
            inputs: The module's positional arguments, as a tuple.
            outputs: The module's return value. The values that are passed to super() are recorded.
        """
        if self._off:
            return
        for root in self._roots:
            hook = root.module_hooks.output_hook(module)
            if hook is not None:
                ModuleHook.__call__(hook, module, inputs, outputs)

    def set_mode(self, mode: ModeKeys) -> None:
        """Set the mode of the following steps. After the first call the mode no longer follows the forwards.

        With TRAIN or GLOBAL every forward belongs to a training step; with EVAL or PREDICT none does.
        """
        BaseHook.set_mode(self, mode)
        self._guarded("steps", self._stop_following)

    def register_optimizer(self, optimizer: Optimizer) -> None:
        """Register the optimizer of the model. Otherwise the optimizer is known from its first step on."""
        check_optimizer(optimizer)
        if self._off:
            return
        if not self._roots:
            raise ConfigError("register_optimizer needs the model first: call register_module(model)")
        if not self._owns(optimizer):
            self._foreign.clear()
            raise ConfigError(
                f"the {type(optimizer).__name__} holds no parameter of the registered "
                f"{self._roots[0].view.root_name}; pass the optimizer of that model"
            )

    def register_scaler(self, scaler: object) -> None:
        """Register a gradient scaler. A scaler that exists at the first saved step is found automatically."""
        check_scaler(scaler)
        if self._off:
            return
        if not self._roots:
            raise ConfigError("register_scaler needs the model first: call register_module(model)")
        self._scalers.add(scaler)
        self._busy = True

    def graphing(self, *callables: Callable[..., Any]) -> AbstractContextManager[None]:
        """Context in which torch.cuda.make_graphed_callables() accepts modules of registered models.

            with hook.graphing():
                model = torch.cuda.make_graphed_callables(model, (sample,))

        The graphs compute the statistics of the modules inside and of their output gradients in each saved
        step. The inputs and outputs of the graphed modules, and the gradients of parameters, are captured
        outside of the graphs, with values. Calls in this context begin no step (docs/gpu.md).

        Args:
            callables: Modules and functions for make_graphed_callables(). None: all registered modules.
        """
        return nullcontext() if self._off else graphing(self, callables)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """Record a functional loss as "<tensor_name>_output_0", if its collection is saved in this step.

        A name that contains "loss" belongs to "losses". Any other name needs a collection that matches it. A
        tensor that requires gradients belongs to the open training step, also while an evaluation runs.
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
        """Return a function for Tensor.register_hook() that records the gradient as "gradient/<tname>".

        The gradient is recorded if a collection that matches the name, such as "gradients", is saved in this
        step.
        """
        return partial(_record_gradient, weakref.ref(self), f"gradient/{tname}")

    @property
    def step(self) -> StepNumber:
        """The number of the current step, like global_step. The call `hook.step()` starts the next step.

        After the first call of `hook.step()`, forwards start no steps. The call raises StopTraining after a
        stop request.
        """
        return StepNumber(self._clock.now.step, self._next_step)

    def _next_step(self) -> None:
        if self._off:
            return
        self._by_hand = True
        self._guarded("steps", self._stop_following)
        self._check_control_guarded()
        root = self._roots[0].reference() if self._roots else None
        following = _GLOBAL if root is None else _TRAIN if root.training else _EVAL
        self._guarded("steps", self._start_by_hand, self._mode or following)
        self._timer.enter(REST)

    # For the base class -----------------------------------------------------------------------------------

    def _operator_recorder(self) -> OperatorRecorder:
        return OperatorRecorder()

    @staticmethod
    def _product(tensor: Any, product: str) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return array_product(tensor, product)
        with torch.no_grad():
            values = tensor.detach().to(torch.float64)
            return (values.abs() if product == "abs_prod" else values).prod()


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Create a hook from a JSON file; see Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the current hook, or None.

    Args:
        json_config_path: File with the configuration of a new hook. None: the path in TDCORE_CONFIG or
            SMDEBUG_CONFIG_FILE_PATH, or smdebug's default path.
        create_if_not_exists: If there is no current hook, create one from that configuration; under
            `tdcore run`, from the configuration of the command. Without a configuration the result is None,
            nothing is recorded, and a warning is logged.

    Raises:
        ConfigError: The configuration is invalid.
    """
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)


def _record_gradient(hook: weakref.ref[Hook], name: str, gradient: torch.Tensor) -> None:
    found = hook()
    if found is not None:
        found._save("backward_hook", found._values.gradient, name, gradient)


def _closed_hook(config: HookConfig) -> Hook:
    """Return a closed hook, which captures nothing. Unpickling a hook returns such a hook."""
    hook = Hook.from_config(dataclasses.replace(config, dry_run=True))
    hook.close()
    return hook
