"""torch.utils.tensorboard histograms of the same tensors; the loss as a scalar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter

from benchmarks.slowdown.tools.base import Collecting, Job, Tool


class TensorBoard(Collecting):
    """add_histogram per tensor."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._writer = SummaryWriter(str(job.folder / "run"))

    def record(self, step: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Histograms of all."""
        for name, tensor in tensors:
            if tensor.numel() == 1:
                self._writer.add_scalar(name, tensor, step)
            else:
                self._writer.add_histogram(name, tensor, step)

    def close(self) -> dict[str, Any]:
        """Writes what is queued."""
        self._writer.close()
        return super().close()


def make(job: Job) -> Tool:
    """TensorBoard on the job."""
    return TensorBoard(job)
