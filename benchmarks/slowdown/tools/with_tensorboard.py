"""torch.utils.tensorboard histograms of the same tensors; the loss as a scalar."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.slowdown.tools.base import Collector, Job, Tool


class TensorBoard(Tool):
    """add_histogram per tensor at saved steps."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._writer = SummaryWriter(str(job.folder / "run"))
        self._collector = Collector(job.model, job.criterion, job.collection)
        self._saved = set(job.saved_steps)

    def step_begins(self, step: int) -> None:
        """Wakes the hooks."""
        self._collector.active = step in self._saved

    def backward_done(self, step: int, loss: torch.Tensor) -> None:
        """Histograms of all."""
        if step not in self._saved:
            return
        for name, tensor in self._collector.tensors(loss):
            if tensor.numel() == 1:
                self._writer.add_scalar(name, tensor, step)
            else:
                self._writer.add_histogram(name, tensor, step)

    def close(self) -> dict[str, Any]:
        """Nothing is counted."""
        self._writer.close()
        self._collector.close()
        return {"drops": 0}


def make(job: Job) -> Tool:
    """TensorBoard on the job."""
    return TensorBoard(job)
