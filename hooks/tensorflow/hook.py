"""Hook: captures training loops of TensorFlow that use tf.GradientTape.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    with hook.wrap_tape(tf.GradientTape()) as tape:      # in an eager loop
        loss = ...

    @hook.capture_step                                   # instead of @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = ...

docs/tensorflow.md lists what is a step and what is recorded.

Threads: set-up, steps and close() in the training thread. The hook changes no values and no random numbers.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

import tensorflow as tf

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import CaptureError, ConfigError
from tdcore.format.layout import TensorKind
from tdcore.hooks import current
from tdcore.hooks.base import BaseHook
from tdcore.hooks.configured import FromConfiguration, given_config
from tdcore.hooks.interception import current_collector
from tdcore.hooks.tensorflow.captured_step import CapturedStep
from tdcore.hooks.tensorflow.collector import TapeCollector
from tdcore.hooks.tensorflow.driver import TapeDriver
from tdcore.hooks.tensorflow.keras_parts import add_model
from tdcore.hooks.tensorflow.operations import plain_variable, to_array
from tdcore.hooks.tensorflow.optimizer_state import is_keras_optimizer
from tdcore.hooks.tensorflow.optimizer_updates import wrap_updates
from tdcore.hooks.tensorflow.wrapped_tape import wrapped
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Optimizer = TypeVar("_Optimizer")
_INSTEAD = "use @hook.capture_step instead of @tf.function"


class Hook(FromConfiguration, TapeDriver):
    """Captures training loops of TensorFlow: eager, and as compiled functions.

    The hook never changes the training: errors of tdcore are logged, and only StopTraining is raised into the
    training, where the next step would begin.

    Args:
        out_dir: Local folder or URL of the run. An existing run gets a new attempt.
        export_tensorboard: Export the run to TensorBoard while it is written (docs/export.md).
        tensorboard_dir: Folder for the exports of several runs. None: the folder `tensorboard` in out_dir.
        dry_run: Count tensors and bytes, and write nothing.
        reduction_config: Form in which tensors are saved: statistics, values, or both.
        save_config: Steps that are saved: a SaveConfig, or a dict of modes to SaveConfigMode.
        include_regex: Patterns for names of tensors, which become the collection "default".
        include_collections: Names of the collections that are saved. "losses" is always saved.
        save_all: Save all tensors.
        include_workers: Workers that capture: "one" (rank 0), "all", or a list of ranks.
        ring: Size of the ring buffer.
        flusher: "process": a separate process writes the captured data. "thread": a thread of this process.
        close_timeout: Maximum time that close() waits for the last data.
        on_stop: Called once with a stop request, in the training thread, instead of raising StopTraining.
        rules: Instances, classes or names of rules. The tensors that they need are captured too.
        profiler_config: Steps that are profiled (docs/profile.md).

    Raises:
        ConfigError: An argument is invalid.
    """

    framework = "tensorflow"
    _further_collections = ("metrics", "labels", "predictions")

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
            framework_version=str(tf.__version__),
            ring=ring,
            flusher=flusher,
            close_timeout=close_timeout,
            on_stop=on_stop,
            rules=rules,
        )
        self._start_driver()

    def wrap_tape(self, tape: Any) -> Any:
        """Capture the gradients, losses and layers of a tape. Returns the tape.

        In a function of capture_step() all tapes are captured, wrapped or not.

        Args:
            tape: A tf.GradientTape, before its block.

        Raises:
            ConfigError: The argument is not a tf.GradientTape.
            CaptureError: The call is in a tf.function that is not of capture_step().
        """
        if not isinstance(tape, tf.GradientTape):
            raise ConfigError(f"wrap_tape takes a tf.GradientTape; got {type(tape).__name__}")
        if self._off or self.running is not None:
            return tape
        if not tf.executing_eagerly():
            self._check_captured("wrap_tape()")
            return tape
        if (
            tf.distribute.get_strategy().num_replicas_in_sync > 1
            and not tf.distribute.in_cross_replica_context()
        ):
            self._note_uncaptured(
                "steps of replicas in an eager loop; call strategy.run() in a function of @hook.capture_step"
            )
            return tape
        return wrapped(tape, self)

    def wrap_optimizer(self, optimizer: _Optimizer) -> _Optimizer:
        """Capture the updates of an optimizer. Returns the optimizer.

        Optimizers of Keras need it only in eager loops whose tapes are not wrapped: each update is then a
        step. Other optimizers, such as those of tf.compat.v1.train, need it in eager loops.

        Raises:
            ConfigError: The argument has no apply_gradients().
        """
        if not callable(getattr(optimizer, "apply_gradients", None)):
            raise ConfigError(
                f"wrap_optimizer takes an optimizer with apply_gradients(); got {type(optimizer).__name__}"
            )
        if not self._off and not any(known() is optimizer for known, _ in self._wrapped):
            restore = None if is_keras_optimizer(optimizer) else wrap_updates(optimizer)
            self._wrapped.append((weakref.ref(optimizer), restore))
            self._signs.reported = True
        return optimizer

    def register_model(self, model: Any) -> None:
        """Name the variables of a model, and capture those that are not trained too.

        Args:
            model: A Keras model or layer, or a tf.Module. The outputs of a tf.Module and its parts are
                captured, too.

        Raises:
            ConfigError: The argument is neither.
        """
        if not add_model(self._variables, model):
            if not isinstance(model, tf.Module):
                raise ConfigError(
                    f"register_model takes a Keras model or a tf.Module; got {type(model).__name__}"
                )
            self._variables.add_module(model)
        if not self._off and not any(known() is model for known in self._models):
            self._models.append(weakref.ref(model))

    register_hook = register_model

    @overload
    def capture_step(self, function: _Function) -> _Function: ...

    @overload
    def capture_step(
        self, function: None = None, *, mode: ModeKeys | None = None, **options: Any
    ) -> Callable[[_Function], _Function]: ...

    def capture_step(self, function: Any = None, *, mode: ModeKeys | None = None, **options: Any) -> Any:
        """Compile a function as tf.function does, and capture its calls. Each call is a step.

        In unsaved steps the function runs as tf.function compiles it. In saved steps a second compiled
        function runs, which also returns the tensors of the step.

        Args:
            function: The function, or a tf.function without further options.
            mode: The mode of its steps. None: that of set_mode(), or TRAIN.
            options: Arguments of tf.function: jit_compile, input_signature, reduce_retracing, ...

        Raises:
            ConfigError: An argument is invalid.
        """
        if mode is not None and not isinstance(mode, ModeKeys):
            raise ConfigError(f"mode must be one of modes.TRAIN, EVAL, PREDICT and GLOBAL, got {mode!r}")
        if function is None:
            return functools.partial(self.capture_step, mode=mode, **options)
        if not callable(function):
            raise ConfigError(f"capture_step takes a function; got {type(function).__name__}")
        if options and hasattr(function, "get_concrete_function"):
            raise ConfigError(
                "capture_step: a tf.function has its options already; give it none, or the function"
            )
        return CapturedStep(self, function, 0 if mode is None else mode.value, options)

    def save_scalar(
        self, name: str, value: Any, sm_metric: bool = False, timestamp: float | None = None
    ) -> None:
        """See BaseHook.save_scalar()."""
        if not self._tapped("save_scalar()", f"scalar/{name}", TensorKind.SCALAR, value):
            BaseHook.save_scalar(self, name, _readable(value), sm_metric, timestamp)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """See BaseHook.save_tensor(). In a function of capture_step() the tensor is a further output.

        Raises:
            CaptureError: The call is in a tf.function that is not of capture_step().
        """
        kind = TensorKind.CUSTOM
        if not self._tapped("save_tensor()", tensor_name, kind, tensor_value, collections_to_write):
            BaseHook.save_tensor(self, tensor_name, _readable(tensor_value), collections_to_write)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """See BaseHook.record_tensor_value()."""
        kind = TensorKind.LOSS if "loss" in tensor_name.lower() else TensorKind.CUSTOM
        if not self._tapped("record_tensor_value()", f"{tensor_name}_output_0", kind, tensor_value):
            BaseHook.record_tensor_value(self, tensor_name, _readable(tensor_value))

    def _tapped(
        self, what: str, name: str, kind: TensorKind, value: Any, collections: str | Iterable[str] = ()
    ) -> bool:
        """Whether the call is in a function that is traced. Then the value becomes an output of it."""
        if tf.executing_eagerly() or self._off:
            return False
        collector = current_collector()
        if not isinstance(collector, TapeCollector):
            self._check_captured(what)
        for collection in [collections] if isinstance(collections, str) else collections:
            self._collections.get(collection).add_tensor_name(name)
            self._clock.include(collection)
        if isinstance(collector, TapeCollector):
            collector.guarded("save_tensor", collector.tap, name, kind, value)
        return True

    def _check_captured(self, what: str) -> None:
        if self.running is None and not isinstance(current_collector(), TapeCollector):
            raise CaptureError(
                f"hook.{what} in a tf.function: its tensors have no values while it is traced; {_INSTEAD}"
            )


def _readable(value: Any) -> Any:
    """A tensor or variable of TensorFlow in a form that the ring can read; other values as they are."""
    plain = plain_variable(value)
    return (
        to_array(tf.convert_to_tensor(plain))
        if tf.is_tensor(plain) or isinstance(plain, tf.Variable)
        else value
    )


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
