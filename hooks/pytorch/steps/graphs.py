"""Statistics of tensors in CUDA graphs: a replay calls no Python hooks, so the graph computes them itself.

A capture on a stream that is being captured into a CUDA graph adds a launch of the statistics kernel to the
graph (docs/gpu.md). When a saved step begins, the hook arms these launches. When the next step begins, or at
the end of the run, the hook collects the results as rows of the saved step. Both are enqueued on the streams
that are current at these times, so the host may be ahead of the device.

Threads: the training thread.
"""

from __future__ import annotations

from typing import Any

import torch

from tdcore.hooks.clock import StepId

__all__ = ["GraphStatistics", "current_stream", "records_graph", "uses_cuda"]


def uses_cuda() -> bool:
    """Whether the process has initialized CUDA."""
    return bool(torch.cuda.is_initialized())


def records_graph() -> bool:
    """Whether the current stream is being captured into a CUDA graph. Does not initialize CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def current_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device."""
    return torch.cuda.current_stream(device).cuda_stream if torch.cuda.is_initialized() else 0


def is_torch_stream(device: int) -> bool:
    """Whether the current stream belongs to torch, and so exists until the process ends."""
    if not torch.cuda.is_initialized():
        return True
    number = torch.cuda.current_stream(device).stream_id  # of an external stream: its address
    return number == 0 or number % 2 == 1


class GraphStatistics:
    """The graphs that are armed for the current saved step.

    While a graph is recorded, the current stream takes no other work. Then earlier graphs are armed and
    collected on the stream that was current before the recording, to which their replays belong.
    """

    __slots__ = ("_devices", "_ring", "_step_id", "_streams")

    def __init__(self, ring: Any) -> None:
        self._ring = ring
        self._devices: list[int] = []
        self._streams: dict[int, int] = {}  # by device: the last stream of torch outside of recordings
        self._step_id = StepId(0, 0, 0)

    @property
    def step(self) -> int:
        """The global step for which the graphs are armed."""
        return self._step_id.step

    def begin(self, step_id: StepId) -> bool:
        """Arm the graphs of all devices for a saved step. Return whether end() has to collect."""
        self._step_id = step_id
        self._devices = [
            one for one in self._ring.graph_devices() if self._ring.arm_graphs(one, self._stream(one))
        ]
        return bool(self._devices)

    def end(self) -> None:
        """Collect the results of the replays since begin(), as rows of its step."""
        step, mode, mode_step = self._step_id
        for device in self._devices:
            self._ring.collect_graphs(device, self._stream(device), step, mode, mode_step)

    def _stream(self, device: int) -> int:
        """The current stream; while a graph is recorded, the last one before."""
        stream = current_stream(device)
        if records_graph():
            return self._streams.get(device, stream)
        if is_torch_stream(device):
            self._streams[device] = stream
        else:
            self._streams.pop(device, None)  # it may be destroyed before the recording
        return stream
