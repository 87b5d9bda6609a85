"""Hook: captures the training of programs in JAX, with Flax and Optax if they are used.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    train_step = hook.capture_step(train_step)         # or as a decorator
    for batch in batches:
        state, loss = train_step(state, batch)
    hook.close()                                       # or at the end of the program

Each call of a captured function is a step. docs/jax.md lists the recorded tensors.

Threads: set-up, steps and close() in the training thread. The hook changes no values and no random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, overload

import jax

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.format.layout import TensorKind
from tdcore.hooks import current
from tdcore.hooks.base import BaseHook
from tdcore.hooks.configured import FromConfiguration, given_config
from tdcore.hooks.jax.captured_step import CapturedStep
from tdcore.hooks.jax.driver import StepDriver
from tdcore.hooks.jax.interception import current_collector
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]


class Hook(FromConfiguration, StepDriver):
    """Captures the training of programs in JAX.

    The hook never changes the training: errors of tdcore are logged, and only StopTraining is raised into the
    training, at the call that would begin the next step.

    Args:
        out_dir: Local folder or URL of the run. An existing run gets a new attempt.
        export_tensorboard: Export the run to TensorBoard while it is written (docs/export.md).
        tensorboard_dir: Folder for the exports of several runs. None: the folder `tensorboard` in out_dir.
        dry_run: Count tensors and bytes, and write nothing.
        reduction_config: Form in which tensors are saved: statistics, values, or both.
        save_config: Steps that are saved: a SaveConfig, or a dict of modes to SaveConfigMode.
        include_regex: Patterns for names of tensors, which become the collection "default".
        include_collections: Names of the collections that are saved. "losses" is always saved.
        save_all: Save all tensors, including optimizer state.
        include_workers: Workers that capture: "one" (rank 0), "all", or a list of ranks.
        ring: Size of the ring buffer.
        flusher: "process": a separate process writes the captured data. "thread": a thread of this process.
        close_timeout: Maximum time that close() waits for the last data.
        on_stop: Called once with a stop request, in the training thread, instead of raising StopTraining.
        rules: Instances, classes or names of rules. The tensors that they need are captured too.
        profiler_config: Steps that are profiled (docs/profile.md).
        per_shard: Also record each shard of a parameter or state that is sharded over devices.
        per_layer: Record the iterations of a scan one by one instead of as one tensor.

    Raises:
        ConfigError: An argument is invalid.
    """

    framework = "jax"
    _further_collections = ("metrics",)

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
        per_shard: bool = False,
        per_layer: bool = False,
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
        BaseHook.__init__(
            self,
            config,
            framework_version=str(jax.__version__),
            ring=ring,
            flusher=flusher,
            close_timeout=close_timeout,
            on_stop=on_stop,
            rules=rules,
        )
        self._start_driver(per_shard=per_shard, per_layer=per_layer)

    @overload
    def capture_step(
        self, step: Callable[..., Any], *, mode: ModeKeys = ..., loss: Callable[[Any], Any] | None = ...
    ) -> CapturedStep: ...

    @overload
    def capture_step(
        self, step: None = None, *, mode: ModeKeys = ..., loss: Callable[[Any], Any] | None = ...
    ) -> Callable[[Callable[..., Any]], CapturedStep]: ...

    def capture_step(
        self,
        step: Callable[..., Any] | None = None,
        *,
        mode: ModeKeys = ModeKeys.TRAIN,
        loss: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Return a function that calls the step, and records it in saved steps. Also a decorator.

        Pass the compiled function, as jax.jit, jax.pmap or nnx.jit returns it. Its calls have the same
        results with the hook as without it. Any number of functions may be captured.

        Args:
            step: The function. None: return a decorator with the other arguments.
            mode: The mode of its steps, unless set_mode() was called.
            loss: Returns the loss from the result of the step. None: the loss is the value of the
                differentiated function, or a number that the step returns under a name with "loss".

        Raises:
            ConfigError: An argument is invalid.
        """
        if not isinstance(mode, ModeKeys):
            raise ConfigError(f"mode must be one of modes.TRAIN, EVAL, PREDICT and GLOBAL, got {mode!r}")
        if loss is not None and not callable(loss):
            raise ConfigError(
                "loss must be a function that takes the result of the step, such as "
                f"lambda result: result[1]; got {type(loss).__name__}"
            )
        if step is None:
            return lambda given: self.capture_step(given, mode=mode, loss=loss)
        if not callable(step):
            raise ConfigError(f"capture_step takes the function of a step; got {type(step).__name__}")
        if isinstance(step, CapturedStep):
            step = step.step
        return CapturedStep(self, step, mode.value, loss)

    def tap(self, name: str, value: Any) -> Any:
        """Record a value within a step. Returns the value, which the step may use or not.

        Outside of saved steps the call does nothing. A name that begins with "gradient/" is a gradient, and a
        name that contains "loss" is a loss. Any other name needs a collection that matches it.

        Args:
            name: Name of the tensor.
            value: An array, or a tree of arrays, whose paths are added to the name.
        """
        collector = current_collector()
        if collector is None:
            return value
        return collector.guarded("tap", collector.add_named, value, name)

    def save_scalar(
        self, name: str, value: Any, sm_metric: bool = False, timestamp: float | None = None
    ) -> None:
        """See BaseHook.save_scalar(). Within a compiled step, the number is recorded in saved steps."""
        if isinstance(value, jax.core.Tracer):
            self._tap(value, f"scalar/{name}", TensorKind.SCALAR)
        else:
            BaseHook.save_scalar(self, name, value, sm_metric, timestamp)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """See BaseHook.save_tensor(). Within a compiled step, the tensor is recorded in saved steps.

        There, a collection that is named for the first time is saved from the next saved step on.
        """
        if isinstance(tensor_value, jax.core.Tracer):
            self._guarded("save_tensor", self._values.include, tensor_name, collections_to_write)
            self._tap(tensor_value, tensor_name, TensorKind.CUSTOM)
        else:
            BaseHook.save_tensor(self, tensor_name, tensor_value, collections_to_write)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """See BaseHook.record_tensor_value(). Within a compiled step, it is recorded in saved steps."""
        if isinstance(tensor_value, jax.core.Tracer):
            kind = TensorKind.LOSS if "loss" in tensor_name.lower() else TensorKind.CUSTOM
            self._tap(tensor_value, f"{tensor_name}_output_0", kind)
        else:
            BaseHook.record_tensor_value(self, tensor_name, tensor_value)

    def _tap(self, value: Any, name: str, kind: TensorKind) -> None:
        collector = current_collector()
        if collector is not None:
            collector.guarded("tap", collector.add, value, name, kind)


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Create a hook from a JSON file; see Hook.create_from_json_file()."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the current hook, or None.

    Args:
        json_config_path: File with the configuration of a new hook. None: the path in TDCORE_CONFIG or
            SMDEBUG_CONFIG_FILE_PATH, or the default path of SageMaker.
        create_if_not_exists: If there is no current hook, create one from that configuration. Without a
            configuration the result is None, nothing is recorded, and a warning is logged.

    Raises:
        ConfigError: The configuration is invalid.
    """
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)
