"""Hook: captures the training of Keras models.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    model.fit(x, y, callbacks=[hook])
    hook.close()                       # or at the end of the program

A step is one batch of fit(), evaluate() or predict(), in the mode TRAIN, EVAL or PREDICT. In steps that save
nothing the model's own compiled function runs. docs/keras.md lists what is recorded.

Threads: set-up, steps and close() in the training thread. The hook changes no values, random numbers or
settings of the model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Literal

import keras

from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.hooks import current
from tdcore.hooks.base import BaseHook
from tdcore.hooks.configured import FromConfiguration, given_config
from tdcore.hooks.keras.backend_in_use import backend_in_use
from tdcore.hooks.keras.driver import StepDriver
from tdcore.hooks.keras.watching import unwatch, watch
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]

# Models with several outputs have further tensors in these collections.
_PATTERNS = {"labels": r"^labels_\d+$", "predictions": r"^predictions_\d+$"}


class Hook(FromConfiguration, StepDriver, keras.callbacks.Callback):  # type: ignore[misc]  # keras may not be installed
    """Captures the training of Keras models. A callback for fit(), evaluate() and predict().

    The hook never changes the training: errors of tdcore are logged, and only StopTraining is raised into the
    training, in the first batch after the request.

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

    Raises:
        ConfigError: An argument is invalid.
        UnsupportedFeature: Keras uses a backend that is not covered.
    """

    framework = "keras"
    _further_collections = ("metrics", *_PATTERNS)

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
        backend = backend_in_use()
        keras.callbacks.Callback.__init__(self)
        BaseHook.__init__(
            self,
            config,
            framework_version=f"{keras.version()} ({backend.name})",
            ring=ring,
            flusher=flusher,
            close_timeout=close_timeout,
            on_stop=on_stop,
            rules=rules,
        )
        self._start_driver(backend)
        for name, pattern in _PATTERNS.items():
            if name in self._clock.included:
                self._collections.get(name).include(pattern)

    def watch(self, model: Any) -> None:
        """Capture a model without passing the hook as a callback.

        The methods fit, evaluate, predict, train_on_batch, test_on_batch and predict_on_batch of this model
        then report to the hook, until close().

        Args:
            model: A Keras model.

        Raises:
            ConfigError: The argument is not a Keras model.
        """
        watch(self, model)

    # Calls of Keras ---------------------------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._enter("train")

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._leave("train")

    def on_test_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._enter("test")

    def on_test_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._leave("test")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._enter("predict")

    def on_predict_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        self._leave("predict")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._batches_left = (self.params or {}).get("steps")
        self._guarded("epoch", self.set_epoch, epoch)

    def _enter(self, mode: str) -> None:
        self._guarded("steps", self._install, self._model, mode)

    def _leave(self, mode: str) -> None:
        self._guarded("steps", self._uninstall, self._model, mode)

    # For the base class -----------------------------------------------------------------------------------

    def _missing(self) -> Iterator[str]:
        own = tuple(f"pattern {pattern!r}" for pattern in _PATTERNS.values())  # of the hook, not of the user
        return (each for each in StepDriver._missing(self) if not each.startswith(own))

    def _detach(self) -> None:
        unwatch(self)
        StepDriver._detach(self)
        self._model = None


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
