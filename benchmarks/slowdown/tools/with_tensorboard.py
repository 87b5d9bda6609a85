"""torch.utils.tensorboard histograms of the same tensors; the loss as a scalar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.slowdown.tools.base import Collecting, Job, Tool


class TensorBoard(Collecting):
    """Calls add_histogram for each tensor."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._writer = SummaryWriter(str(job.folder / "run"))

    def record(self, step: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write histograms of all tensors."""
        for name, tensor in tensors:
            if tensor.numel() == 1:
                self._writer.add_scalar(name, tensor, step)
            else:
                self._writer.add_histogram(name, tensor, step)

    def close(self) -> dict[str, Any]:
        """Write the queued events."""
        self._writer.close()
        return super().close()


def make(job: Job) -> Tool:
    """The tool for this job."""
    return TensorBoard(job)
