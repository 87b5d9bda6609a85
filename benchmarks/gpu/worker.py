"""One process of the GPU benchmark: one model, eager or compiled, with one tool after another.

    python -m benchmarks.gpu.worker '{"model": "resnet50", "mode": "eager", "device": "cuda", ...}' FOLDER

The time of a block is measured from one synchronisation to another, so it includes the work of the device.
Copies may overlap with the following steps, as in a training. The worker prints a line ROW {json} for each
cell.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.plan import LEAD_IN, WORKLOADS, Cell, cells
from benchmarks.gpu.tools import Setting, Tdcore, make_tool
from benchmarks.slowdown.costs import bootstrap
from benchmarks.slowdown.tools.base import Collector, Tool

_BATCHES = 4


class Whole(nn.Module):
    """The module on which the hook is registered. Its own call is not compiled, even if the model is."""

    def __init__(self, inner: nn.Module, compiled: bool) -> None:
        super().__init__()
        self.inner = inner
        self._run = torch.compile(inner) if compiled else inner

    def forward(self, x: torch.Tensor) -> Any:
        return self._run(x)


class Training:
    """The model, its batches on the device, and blocks of steps."""

    def __init__(self, name: str, mode: str, device: str) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        work, generator = WORKLOADS[name], torch.Generator().manual_seed(0)
        self.on_cuda = device == "cuda"
        place = torch.device("cuda" if self.on_cuda else "cpu")
        model = work.make_model().to(place)
        model = model.to(memory_format=work.memory_format)  # type: ignore[call-overload]
        self.model = Whole(model, mode == "compiled")
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.batches = []
        for _ in range(_BATCHES):
            data, target = work.make_batch(generator)
            self.batches.append((data.to(place, memory_format=work.memory_format), target.to(place)))

    def step(self, number: int, tool: Tool | None) -> None:
        """Train on the next batch."""
        data, target = self.batches[number % len(self.batches)]
        if tool is not None:
            tool.step_begins(number)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(data), target)
        loss.backward()
        if tool is not None:
            tool.backward_done(number, loss)
        self.optimizer.step()
        if tool is not None:
            tool.step_ends(number)

    def block(self, start: int, steps: int, tool: Tool) -> float:
        """Seconds of some steps, after lead-in steps that are not counted."""
        for number in range(start - LEAD_IN, start):
            self.step(number, tool)
        self.synchronize()
        begun = time.perf_counter()
        for number in range(start, start + steps):
            self.step(number, tool)
        self.synchronize()
        return time.perf_counter() - begun

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_cuda:
            torch.cuda.synchronize()

    def bytes_of(self, collection: str) -> int:
        """Number of bytes of a collection at one step."""
        collector = Collector(
            self.model, self.criterion, "all" if collection in ("all", "statistics") else "parameters"
        )
        collector.active = True
        data, target = self.batches[0]
        loss = self.criterion(self.model(data), target)
        loss.backward()
        found = sum(tensor.numel() * tensor.element_size() for _, tensor in collector.tensors(loss))
        collector.close()
        self.optimizer.zero_grad()
        return found


def schedule(group: list[Cell]) -> tuple[list[tuple[Cell, bool, int]], list[int]]:
    """(cell, saving, first step) of all blocks in order, and all steps that are saved.

    In every other pair, the block without saving is first. The first saved step, which includes the set-up,
    is in no block.
    """
    blocks, saved, step = [], [0], 2 + LEAD_IN
    for cell in group:
        for pair in range(cell.pairs):
            for saving in (True, False) if pair % 2 == 0 else (False, True):
                blocks.append((cell, saving, step))
                saved += range(step, step + cell.block, cell.interval) if saving else ()
                step += cell.block + LEAD_IN
    return blocks, saved


def measure(training: Training, setting: Setting, group: list[Cell]) -> list[dict[str, Any]]:
    """Rows of cells that differ only in their interval. All these cells use one tool."""
    blocks, saved = schedule(group)
    sizes = training.bytes_of(group[0].collection)
    tool = make_tool(setting, group[0], saved)
    for number in range(2):  # the first step is saved
        training.step(number, tool)
    seconds: dict[tuple[int, bool], list[float]] = {}
    inside: dict[int, list[float]] = {}
    for cell, saving, start in blocks:
        before = tool.host_seconds() if isinstance(tool, Tdcore) else 0.0
        seconds.setdefault((cell.interval, saving), []).append(training.block(start, cell.block, tool))
        if isinstance(tool, Tdcore):
            if saving:
                inside.setdefault(cell.interval, []).append((tool.host_seconds() - before) / cell.saves)
            tool.settle()
    said = tool.close()
    rows = []
    for cell in group:
        on, off = seconds[cell.interval, True], seconds[cell.interval, False]
        slowdown = bootstrap([a / b for a, b in zip(on, off, strict=True)])
        stall = bootstrap([(a - b) / cell.saves for a, b in zip(on, off, strict=True)])
        rows.append(
            {
                **cell.to_json_dict(),
                "slowdown": [slowdown.median, slowdown.low, slowdown.high],
                "stall_ms": [1e3 * each for each in (stall.median, stall.low, stall.high)],
                "hook_ms": 1e3 * statistics.median(inside[cell.interval]) if inside else None,
                "step_ms": 1e3 * statistics.median(off) / cell.block,
                "bytes": sizes,
                "tool_says": {**said, "saves": len(saved)},
            }
        )
    return rows


def main() -> None:
    """The command line."""
    job, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    training = Training(job["model"], job["mode"], job["device"])
    setting = Setting(
        model=training.model,
        criterion=training.criterion,
        optimizer=training.optimizer,
        folder=folder,
        simulated=job["device"] == "simulated",
        ring_bytes=job["ring_bytes"],
    )
    for number in range(job["warm_up"]):
        training.step(number, None)
    planned = cells(job["mode"], job["pairs"], job["quick"])
    for _, group in itertools.groupby(planned, key=lambda cell: (cell.tool, cell.collection)):
        for row in measure(training, setting, list(group)):
            print("ROW", json.dumps({"model": job["model"], "mode": job["mode"], **row}), flush=True)


if __name__ == "__main__":
    main()
