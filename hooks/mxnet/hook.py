"""Hook: capture of trainings with MXNet Gluon.

    hook = Hook("runs/demo", save_config=SaveConfig(save_interval=10), include_collections=["gradients"])
    hook.register_block(net)           # trainers are found by their parameters
    hook.register_loss(criterion)
    ... train as before ...
    hook.close()                       # or at the end of the program

A training step starts with the first forward in training mode after an update, and ends with the next
update (Trainer.step or Trainer.update) of a trainer that has a parameter of the block. Any other forward of
the block is a step of mode EVAL. docs/mxnet.md lists the recorded tensors.

Threads: set-up, steps and close() in the training thread. The hook changes no values and no random numbers.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Literal

import mxnet
from mxnet import gluon

from tdcore.config.built_in_collections import CollectionKeys
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.errors import ConfigError
from tdcore.hooks import current
from tdcore.hooks.base import BaseHook
from tdcore.hooks.configured import FromConfiguration, given_config
from tdcore.hooks.mxnet.arrays import readable
from tdcore.hooks.mxnet.driver import BlockDriver
from tdcore.modes import ModeKeys
from tdcore.session import RingConfig, StopRequest

__all__ = ["Hook", "create_from_json_file", "get_hook"]


class Hook(FromConfiguration, BlockDriver):
    """Hook for MXNet Gluon: captures the training of blocks.

    The hook never changes the training: errors of tdcore are logged, and only StopTraining is raised into the
    training, at the forward that would begin the next step.

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

    framework = "mxnet"

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
            framework_version=str(mxnet.__version__),
            ring=ring,
            flusher=flusher,
            close_timeout=close_timeout,
            on_stop=on_stop,
            rules=rules,
        )
        self._start_driver()

    def register_block(self, block: Any) -> None:
        """Capture a block. Any number of blocks may be registered, and a block may be hybridized.

        A loss (gluon.loss.Loss) is registered as by register_loss(), as in smdebug.

        Raises:
            ConfigError: The argument is not a gluon.Block.
        """
        if isinstance(block, gluon.loss.Loss):
            self.register_loss(block)
            return
        _check(block, "register_block", gluon.Block, "a gluon.Block, such as the network")
        if not self._off:
            self._add_root(block)

    register_hook = register_block

    def register_loss(self, loss: Any) -> None:
        """Capture the outputs of a loss block, as "<name of the block>_output_0" of the collection "losses".

        A Gluon loss has one value for each sample. Their mean is recorded too, as "<name>_mean", because most
        rules judge a loss that is one number.

        Raises:
            ConfigError: The argument is not a gluon.Block.
        """
        _check(loss, "register_loss", gluon.Block, "a loss block, such as gluon.loss.L2Loss()")
        if not self._off and not any(known() is loss for known in self._losses):
            self._losses.append(weakref.ref(loss))

    def save_scalar(
        self, name: str, value: Any, sm_metric: bool = False, timestamp: float | None = None
    ) -> None:
        """See BaseHook.save_scalar()."""
        BaseHook.save_scalar(self, name, readable(value), sm_metric, timestamp)

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """See BaseHook.save_tensor()."""
        BaseHook.save_tensor(self, tensor_name, readable(tensor_value), collections_to_write)

    def record_tensor_value(self, tensor_name: str, tensor_value: Any) -> None:
        """See BaseHook.record_tensor_value()."""
        BaseHook.record_tensor_value(self, tensor_name, readable(tensor_value))


def _check(value: object, where: str, wanted: type, what: str) -> None:
    if not isinstance(value, wanted):
        raise ConfigError(f"{where} needs {what}; got {type(value).__name__}")


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
        create_if_not_exists: If there is no current hook, create one from that configuration. Without a
            configuration the result is None, nothing is recorded, and a warning is logged.

    Raises:
        ConfigError: The configuration is invalid.
    """
    return current.get_hook(json_config_path, create_if_not_exists, hook_class=Hook)
