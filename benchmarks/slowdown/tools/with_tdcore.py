"""tdcore, used as in its README."""

from __future__ import annotations

from typing import Any

import tdcore as td
from benchmarks.slowdown.tools.base import Job, Tool
from tdcore.hooks.pytorch import Hook

_INCLUDED = {
    "all": ["weights", "biases", "gradients", "inputs", "outputs", "losses"],
    "weights": ["weights", "losses"],
    "gradients": ["gradients", "losses"],
    "losses": ["losses"],
    "statistics": ["weights", "biases", "gradients", "inputs", "outputs", "losses"],
}


class Tdcore(Tool):
    """A hook with a list of the steps to save, and the default ring."""

    def __init__(self, job: Job, place: str = "") -> None:
        """place: folder or URL of the run; default: in the job's folder."""
        super().__init__(job)
        self._blocks = self._captures = 0
        self._hook_s = self._capture_s = 0.0
        self._hook = Hook(
            place or job.folder / "run",
            save_config=td.SaveConfig(save_interval=10**9, save_steps=job.saved_steps),
            include_collections=_INCLUDED[job.collection],
            reduction_config=td.ReductionConfig() if job.collection == "statistics" else None,
        )
        self._hook.register_module(job.model)
        self._hook.register_loss(job.criterion)

    def block_begins(self, saving: bool) -> None:
        """The first block is not counted, because the first saved steps register names."""
        self._blocks += 1
        if self._blocks == 2:
            self._hook_s = self._hook.time_spent().total_seconds()
            self._capture_s = self._hook.counters().capture_time.total_seconds()
            self._captures = sum(step <= self._hook.global_step for step in self.job.saved_steps)

    def close(self) -> dict[str, Any]:
        """Close the hook, and return the counters of the run."""
        saves = len(self.job.saved_steps)
        counters = self._hook.counters()
        inside = self._hook.time_spent().total_seconds() - self._hook_s
        capture = counters.capture_time.total_seconds() - self._capture_s
        counted = max(1, saves - self._captures)
        self._hook.close()
        final = self._hook.counters()
        return {
            "drops": final.dropped_tensors,
            "drop_reasons": {reason: drop.tensors for reason, drop in final.drops.items()},
            "tensors_per_save": counters.tensors / saves,
            "payload_bytes_per_save": counters.payload_bytes / saves,
            "inside_hook_s_per_save": inside / counted,
            "inside_capture_s_per_save": capture / counted,
        }


def make(job: Job) -> Tool:
    """The tool for this job."""
    return Tdcore(job)
