"""smdebug, the library of Amazon SageMaker Debugger."""

from __future__ import annotations

from typing import Any

import smdebug.pytorch as smd

from benchmarks.slowdown.tools.base import Job, Tool

_INCLUDED = {"weights": ["weights", "losses"], "gradients": ["gradients", "losses"], "losses": ["losses"]}


class Smdebug(Tool):
    """A hook with a list of the steps to save."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        everything = job.collection in ("all", "statistics")
        reduced = smd.ReductionConfig(reductions=["min", "max", "mean", "std"], norms=["l1", "l2"])
        self._hook = smd.Hook(
            out_dir=str(job.folder / "run"),
            save_config=smd.SaveConfig(save_steps=job.saved_steps),
            save_all=everything,
            include_collections=None if everything else _INCLUDED[job.collection],
            reduction_config=reduced if job.collection == "statistics" else None,
        )
        self._hook.register_module(job.model)
        if (
            job.collection != "statistics"
        ):  # smdebug raises an error for reductions of the integer labels of the loss
            self._hook.register_loss(job.criterion)

    def close(self) -> dict[str, Any]:
        """Close the hook. There are no counters."""
        self._hook.close()
        return {"drops": 0}


def make(job: Job) -> Tool:
    """The tool for this job."""
    return Smdebug(job)
