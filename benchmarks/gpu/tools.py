"""The tools that are measured on a GPU: tdcore, and hand-written hooks.

Hand-written hooks clone activations and copy them to the host one after another, and write nothing to disk.
`cpu` waits for each copy. `non_blocking` enqueues all copies by `tensor.to("cpu", non_blocking=True)`, into
memory that was not pinned before, and waits once at the end of the step, before the values may be read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from benchmarks.gpu.plan import INCLUDED, Cell
from benchmarks.slowdown.tools.base import Collecting, Job, Tool
from tdcore.hooks.pytorch import Hook

_PATIENCE_SECONDS = 60.0


class Tdcore(Tool):
    """A hook whose device ring can store all saved steps of a block, so that the disk has no effect."""

    def __init__(self, job: Job, cell: Cell, setting: Setting) -> None:
        super().__init__(job)
        ring_bytes = setting.ring_bytes if cell.values else 1 << 26
        config = td.RingConfig(
            ring_bytes=1 << 26,
            device_ring_bytes=ring_bytes,
            device_arena_bytes=min(1 << 28, ring_bytes // 4),
            device_lanes=1 if setting.simulated else None,
        )
        self._hook = Hook(
            job.folder / "run",
            save_config=td.SaveConfig(save_interval=10**9, save_steps=job.saved_steps),
            include_collections=INCLUDED[job.collection],
            reduction_config=None if cell.values else td.ReductionConfig(),
            ring=config,
        )
        if setting.simulated:
            from tests import _sim

            _sim.simulate_device(self._hook._ring, host_tensors=True)
        self._hook.register_module(job.model)
        self._hook.register_loss(job.criterion)

    def host_seconds(self) -> float:
        """Time of the training threads inside the hook so far."""
        return self._hook.time_spent().total_seconds()

    def settle(self) -> None:
        """Wait until the flusher has all records. This time is not measured."""
        session = self._hook._session
        assert session is not None
        end = time.monotonic() + _PATIENCE_SECONDS
        while session.progress().pending_records and time.monotonic() < end:
            time.sleep(0.01)

    def close(self) -> dict[str, Any]:
        """Close the hook, and return its counters and the report of the device."""
        reports = self._hook._ring.device_reports()
        left = self._hook.close()
        counters = self._hook.counters()
        shutil.rmtree(self.job.folder / "run")
        return {
            "drops": {reason: drop.tensors for reason, drop in counters.drops.items()},
            "tensors": counters.tensors,
            "payload_bytes": counters.payload_bytes,
            "devices": reports,
            "drained": left is not None and left.drained,
        }


class ToHost(Collecting):
    """Copies the tensors to the host by hand."""

    def __init__(self, job: Job, *, non_blocking: bool) -> None:
        super().__init__(job)
        self._non_blocking = non_blocking

    def record(self, step: int, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy all tensors of a step."""
        copies = [tensor.to("cpu", non_blocking=self._non_blocking) for _, tensor in tensors]
        if self._non_blocking and torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()
        del copies


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The training to which tools are attached. simulated: host memory replaces the memory of a device."""

    model: nn.Module
    criterion: nn.Module
    optimizer: torch.optim.Optimizer
    folder: Path
    simulated: bool
    ring_bytes: int


def make_tool(setting: Setting, cell: Cell, saved_steps: list[int]) -> Tool:
    """The tool of a cell, attached to the model."""
    job = Job(
        model=setting.model,
        criterion=setting.criterion,
        optimizer=setting.optimizer,
        collection="all" if cell.collection in ("all", "statistics") else "parameters",
        interval=cell.interval,
        saved_steps=saved_steps,
        folder=setting.folder,
    )
    if cell.tool == "tdcore":
        return Tdcore(job, cell, setting)
    if cell.tool == "none":
        return Tool(job)
    return ToHost(job, non_blocking=cell.tool == "non_blocking")
