"""The functions of PyTorch, and of libraries around it, that are phases of a step.

Threads: see phase_signals.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tdcore.hooks import phase_signals
from tdcore.hooks.common_phases import DATA_LOADERS, SAVED_TENSORS
from tdcore.hooks.phase_signals import PhaseSignals, Signal, begin_compilation, end_compilation
from tdcore.hooks.pytorch.compile.operator import never_trace, skip_frame
from tdcore.hooks.pytorch.steps.gpu_times import CudaEvents, GpuStepTimer
from tdcore.hooks.recorder import Recorder
from tdcore.hooks.step_timer import BACKWARD, CHECKPOINT, NullStepTimer

__all__ = ["look_for_phases", "time_gpu", "time_phases"]

_SIGNALS = (
    *DATA_LOADERS,
    Signal("torch.autograd", "_engine_run_backward", BACKWARD),
    Signal("torch.autograd.graph", "_engine_run_backward", BACKWARD),
    *SAVED_TENSORS,
    Signal("transformers.trainer", "Trainer._save_checkpoint", CHECKPOINT),
    Signal("lightning.pytorch.trainer.trainer", "Trainer.save_checkpoint", CHECKPOINT),
    Signal("pytorch_lightning.trainer.trainer", "Trainer.save_checkpoint", CHECKPOINT),
)


def _hide(function: Any) -> None:
    never_trace(function)
    skip_frame(function)


_signals = PhaseSignals(_SIGNALS, _hide)


def time_phases(hook: Any, timer: Any, recorder: Recorder) -> Callable[[], object]:
    """Report phases to the stopwatch of a hook. Returns a function that ends the last step and the reports.

    The function is called when the hook is deleted, if it was not called before.
    """
    end = phase_signals.time_phases(hook, timer, recorder, _signals)
    look_for_phases()
    return end


def time_gpu(timer: Any, events: CudaEvents | None, note: Callable[[str], None]) -> Any:
    """Return a stopwatch that also measures the time of the GPU, and report phases to it from now on.

    Args:
        timer: The stopwatch of the hook.
        events: Events of the device; None: there is no device, so the stopwatch stays the same.
        note: Logs a message, and stores it in the notes of the run.
    """
    if events is None or isinstance(timer, (NullStepTimer, GpuStepTimer)):
        return timer
    measuring = GpuStepTimer(timer, events, note)
    _signals.replace_timer(timer, measuring)
    return measuring


def look_for_phases() -> None:
    """Find libraries that were imported since the first hook was created."""
    _signals.look_again()
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    if handler is not None and begin_compilation not in handler.start_callbacks:
        handler.register_start_callback(begin_compilation)
        handler.register_end_callback(end_compilation)
