"""Recording by hand: tensor.cpu().numpy() and np.save, one file per tensor and step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.slowdown.tools.base import Collecting, Job, Tool


class ByHand(Collecting):
    """Writes a folder per step, and a file per tensor."""

    def record(self, step: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write the tensors with np.save."""
        folder = self.job.folder / "run" / f"{step:08}"
        folder.mkdir(parents=True)
        for name, tensor in tensors:
            np.save(folder / f"{name.replace('/', '.')}.npy", tensor.cpu().numpy())


def make(job: Job) -> Tool:
    """The tool for this job."""
    return ByHand(job)
