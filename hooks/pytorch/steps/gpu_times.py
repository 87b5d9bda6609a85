"""GpuStepTimer: a stopwatch that also measures the time of the GPU for each step, with CUDA events.

One event is recorded before the first forward of the step, and one after the optimizer's step. For a step
without an optimizer, the second event is recorded when the script waits for its next batch, or when the next
step begins. Both are recorded on the current stream of the device. Later steps query the events; no call
waits for the device. While a CUDA graph is captured, events are neither recorded nor queried.

If a call of an event fails, the measurement ends for the rest of the run, with one note.

Threads: as for _core.StepTimer. Calls of other threads than that of the last begin() record no event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import nn

from tdcore.hooks.step_timer import BACKWARD, COMPUTE, DATA, FORWARD, REST

__all__ = ["CudaEvents", "GpuStepTimer", "cuda_events"]

_PAIRS = 32  # maximum number of steps whose events the device has not reached
_UNKNOWN = -1
_FAILED = "the time of the GPU is not measured any more, because an event of CUDA failed ({}): {}"


class CudaEvents:
    """The CUDA events of one device. Tests replace this class."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def create(self) -> Any:
        """A new event. PyTorch creates the CUDA event when it is recorded for the first time."""
        return torch.cuda.Event(enable_timing=True)

    def record(self, event: Any) -> None:
        """Record the event on the current stream of the device."""
        event.record(torch.cuda.current_stream(self._device))

    def capturing(self) -> bool:
        """Whether the current stream of the device captures a CUDA graph."""
        if torch.cuda.current_device() == self._device.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(self._device):
            return torch.cuda.is_current_stream_capturing()


def cuda_events(module: nn.Module) -> CudaEvents | None:
    """Events of the first CUDA device that has a parameter of the module; None if there is no such device."""
    for parameter in module.parameters():
        if parameter.device.type == "cuda":
            return CudaEvents(parameter.device)
    return None


class GpuStepTimer:
    """The stopwatch of a hook whose model is on a CUDA device. For the methods see _core.StepTimer.

    Args:
        timer: The stopwatch of the hook, which gets all calls.
        events: The events of the device.
        note: Logs a message, and stores it in the notes of the run.
    """

    def __init__(self, timer: Any, events: CudaEvents, note: Callable[[str], None]) -> None:
        self.native = timer
        self.leave = timer.leave
        self.begin_optimizer = timer.begin_optimizer
        self.end_forward = timer.end_forward
        self.end_backward = timer.end_backward
        self.gc_callback = timer.gc_callback
        self._events = events
        self._note = note
        self._measures = True
        self._free: list[tuple[Any, Any]] = []
        self._in_flight: deque[tuple[int, tuple[Any, Any]]] = deque()  # row and events of ended steps
        self._pair: tuple[Any, Any] | None = None  # events of the current step
        self._row = 0  # row of the current step
        self._before_forward = True  # the start of the step has to be recorded at its next forward
        self._ended = False  # the end of the step was recorded
        self._owner = get_ident()
        self._try(self._create)

    def begin(self, step: int, mode: int, mode_step: int, phase: int, capture_ns: int) -> None:
        """Begin a step, or continue it after another step."""
        self._try(self._end_step)
        self.native.begin(step, mode, mode_step, phase, capture_ns)
        self._owner = get_ident()
        self._try(self._begin_step)

    def enter(self, phase: int) -> int:
        """Begin a phase. Return the phase that it interrupts."""
        interrupted: int = self.native.enter(phase)
        if get_ident() != self._owner:
            return interrupted
        if phase == DATA:
            self._try(self._end_work)
        elif phase in (FORWARD, BACKWARD, COMPUTE):
            if self._before_forward and phase == FORWARD:
                self._try(self._record_start)
            self._ended = False
        elif phase == REST:  # the script has called hook.step(), possibly before it waits for the batch
            self._before_forward = True
        return interrupted

    def end_optimizer(self) -> None:
        """The optimizer ends its step."""
        self.native.end_optimizer()
        if get_ident() == self._owner:
            self._ended = False  # a further optimizer of the same step
            self._try(self._end_work)

    def finish(self, capture_ns: int) -> None:
        """End the last step. Times that the device has not measured yet stay unknown."""
        self._try(self._end_step)
        self._try(self._collect)
        self._measures = False
        self.native.finish(capture_ns)

    def _try(self, call: Callable[[], None]) -> None:
        """Call a function, unless the measurement has ended. An error ends the measurement."""
        if not self._measures:
            return
        try:
            call()
        except Exception as error:
            self._measures = False
            for row, _ in self._in_flight:
                self.native.set_gpu(row, _UNKNOWN)
            if self._pair is not None:
                self.native.set_gpu(self._row, _UNKNOWN)
            self._in_flight.clear()
            self._free.clear()
            self._pair = None
            self._note(_FAILED.format(type(error).__name__, error))

    def _create(self) -> None:
        self._free = [(self._events.create(), self._events.create()) for _ in range(_PAIRS)]

    def _begin_step(self) -> None:
        self._collect()
        self._record_start()

    def _record_start(self) -> None:
        """Record the start of the current step, also if it was recorded before."""
        self._before_forward = self._ended = False
        if self._events.capturing():
            self._drop()
        elif self._pair is not None:
            self._events.record(self._pair[0])
        elif self._free:
            pair = self._free[-1]
            self._events.record(pair[0])
            self._pair = self._free.pop()
            self._row = self.native.expect_gpu()

    def _end_work(self) -> None:
        """Record the end of the current step, unless it was recorded after the last work of the step."""
        if self._pair is None or self._ended:
            return
        if self._events.capturing():
            self._drop()
            return
        self._events.record(self._pair[1])
        self._ended = True

    def _end_step(self) -> None:
        self._end_work()
        if self._pair is not None:
            self._in_flight.append((self._row, self._pair))
            self._pair = None

    def _drop(self) -> None:
        """End the measurement of the current step without a result."""
        if self._pair is not None:
            self.native.set_gpu(self._row, _UNKNOWN)
            self._free.append(self._pair)
            self._pair = None

    def _collect(self) -> None:
        """Store the times of the steps that the device has finished. Reuse their events."""
        if not self._in_flight or self._events.capturing():
            return
        while self._in_flight:
            row, (start, end) = self._in_flight[0]
            if not (end.query() and start.query()):  # they can be on two streams
                return
            nanoseconds = round(start.elapsed_time(end) * 1e6)
            self._in_flight.popleft()
            self._free.append((start, end))
            # Two streams can reach the events in the other order.
            self.native.set_gpu(row, nanoseconds if nanoseconds >= 0 else _UNKNOWN)
