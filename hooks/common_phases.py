"""Functions of libraries that are phases of a step in several frameworks, and the compilations of JAX.

A function is replaced if its module is imported. Only methods and private functions are replaced: if a public
function such as torch.save were replaced, objects that refer to it could not be pickled. Threads: see
phase_signals.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any

from tdcore.hooks.phase_signals import PhaseSignals, Signal, active_timers
from tdcore.hooks.step_timer import CHECKPOINT, COMPILE, COMPUTE, DATA, REST

__all__ = ["COMMON", "DATA_LOADERS", "SAVED_TENSORS", "PhasesWithJax"]

DATA_LOADERS = (
    Signal("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", DATA),
    Signal("torch.utils.data.dataloader", "DataLoader.__iter__", DATA),
)
SAVED_TENSORS = (
    Signal("torch.serialization", "_save", CHECKPOINT),
    Signal("torch.serialization", "_legacy_save", CHECKPOINT),
    Signal("torch.serialization", "_open_zipfile_writer_file.__exit__", CHECKPOINT, is_part=True),
    Signal("torch.serialization", "_open_zipfile_writer_buffer.__exit__", CHECKPOINT, is_part=True),
    Signal("torch.distributed.checkpoint.state_dict_saver", "_save_state_dict", CHECKPOINT),
    Signal("safetensors.torch", "serialize_file", CHECKPOINT),
    Signal("safetensors.numpy", "serialize_file", CHECKPOINT),
)
COMMON = (  # of Keras, JAX and TensorFlow
    *DATA_LOADERS,
    *SAVED_TENSORS,
    Signal("tensorflow.python.data.ops.iterator_ops", "OwnedIterator.__next__", DATA, is_epoch=True),
    Signal("tensorflow.python.checkpoint.checkpoint", "Checkpoint.save", CHECKPOINT),
    Signal("tensorflow.python.checkpoint.checkpoint", "Checkpoint.write", CHECKPOINT),
    Signal("tensorflow.python.checkpoint.checkpoint_management", "CheckpointManager.save", CHECKPOINT),
    Signal("keras.src.models.model", "Model.save", CHECKPOINT),
    Signal("keras.src.models.model", "Model.save_weights", CHECKPOINT),
    Signal("keras.src.saving.saving_lib", "save_model", CHECKPOINT),
    Signal("keras.src.saving.saving_lib", "save_weights_only", CHECKPOINT),
    Signal("orbax.checkpoint", "CheckpointManager.save", CHECKPOINT),
    Signal("orbax.checkpoint", "CheckpointManager.wait_until_finished", CHECKPOINT),
    Signal("orbax.checkpoint", "Checkpointer.save", CHECKPOINT),
    Signal("orbax.checkpoint", "AsyncCheckpointer.save", CHECKPOINT),
    Signal("orbax.checkpoint", "StandardCheckpointer.save", CHECKPOINT),
)

_COMPILATIONS = "/jax/core/compile/"  # events of JAX: tracing, conversion to MLIR, compilation
_BACKEND = "/jax/core/compile/backend_compile_duration"
_LISTENERS = (
    "register_scalar_listener",
    "register_event_duration_secs_listener",
    "unregister_scalar_listener",
    "unregister_event_duration_listener",
)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.interrupted: list[list[tuple[Any, int]]] = []


_of_thread = _OfThread()


class PhasesWithJax(PhaseSignals):
    """PhaseSignals that also report compilations of JAX, if JAX has the functions in _LISTENERS."""

    _registered: Any = None  # the module jax.monitoring, while its listeners are registered

    def _replace(self) -> None:
        super()._replace()
        monitoring = sys.modules.get("jax.monitoring")
        if self._registered is None and all(hasattr(monitoring, name) for name in _LISTENERS):
            self._registered = monitoring
            monitoring.register_scalar_listener(_compilation_begins)  # type: ignore[union-attr]
            monitoring.register_event_duration_secs_listener(_compilation_ends)  # type: ignore[union-attr]

    def _restore(self) -> None:
        super()._restore()
        monitoring, self._registered = self._registered, None
        if monitoring is not None:
            with contextlib.suppress(AssertionError, ValueError):  # another program has cleared all listeners
                monitoring.unregister_scalar_listener(_compilation_begins)
                monitoring.unregister_event_duration_listener(_compilation_ends)


def _compilation_begins(event: str, *arguments: object, **options: object) -> None:
    if not event.startswith(_COMPILATIONS):
        return
    interrupted = []
    for timer in active_timers():
        before = timer.enter(REST)  # returns the phase, and counts nothing
        if before == COMPUTE and event == _BACKEND:
            timer.leave(COMPUTE)
            timer.enter(COMPILE)  # counted
        else:
            timer.leave(COMPILE)
        interrupted.append((timer, before))
    _of_thread.interrupted.append(interrupted)


def _compilation_ends(event: str, *arguments: object, **options: object) -> None:
    if event.startswith(_COMPILATIONS) and _of_thread.interrupted:
        for timer, before in _of_thread.interrupted.pop():
            timer.leave(before)
