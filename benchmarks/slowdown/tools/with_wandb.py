"""wandb.watch in offline mode: histograms of parameters and gradients, every log_freq-th step.

wandb counts steps itself, so it is removed in blocks without saving, outside the timed part.
"""

from __future__ import annotations

from typing import Any

import torch
import wandb

from benchmarks.slowdown.tools.base import Job, Tool

_LOG = {"weights": "parameters", "gradients": "gradients", "statistics": "all"}


class Wandb(Tool):
    """watch(), and a log() of the loss at each step of a block with saving, which sends the histograms."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self._run = wandb.init(mode="offline", dir=str(job.folder), project="slowdown", settings=settings)
        self._watches = job.collection in _LOG
        self._saving = False

    @property
    def offset(self) -> int:
        """The last step of each interval, because watch() first counts to log_freq."""
        return self.job.interval - 1 if self._watches else 0

    def block_begins(self, saving: bool) -> None:
        """Start or stop watch()."""
        if not self._watches or saving == self._saving:
            return
        self._saving = saving
        if saving:
            log = _LOG[self.job.collection]
            self._run.watch(self.job.model, log=log, log_freq=self.job.interval)
        else:
            self._run.unwatch(self.job.model)

    def backward_done(self, step: int, loss: torch.Tensor) -> None:
        """Log the loss, and with it the histograms of watch()."""
        if self._saving if self._watches else step in self.job.saved_steps:
            self._run.log({"loss": loss.item()}, step=step)

    def close(self) -> dict[str, Any]:
        """End the wandb run. There are no counters."""
        self._run.finish()
        return {"drops": 0}


def make(job: Job) -> Tool:
    """The tool for this job."""
    return Wandb(job)
