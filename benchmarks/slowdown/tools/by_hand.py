"""What one writes by hand: tensor.cpu().numpy() and np.save, one file per tensor and step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.slowdown.tools.base import Collector, Job, Tool


class ByHand(Tool):
    """np.save at saved steps."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._collector = Collector(job.model, job.criterion, job.collection)
        self._saved = set(job.saved_steps)

    def step_begins(self, step: int) -> None:
        """Wakes the hooks."""
        self._collector.active = step in self._saved

    def backward_done(self, step: int, loss: torch.Tensor) -> None:
        """A folder per step, a file per tensor."""
        if step not in self._saved:
            return
        folder = self.job.folder / "run" / f"{step:08}"
        folder.mkdir(parents=True)
        for name, tensor in self._collector.tensors(loss):
            np.save(folder / f"{name.replace('/', '.')}.npy", tensor.cpu().numpy())

    def close(self) -> dict[str, Any]:
        """Nothing can be dropped."""
        self._collector.close()
        return {"drops": 0}


def make(job: Job) -> Tool:
    """By hand on the job."""
    return ByHand(job)
