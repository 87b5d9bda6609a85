"""One process of the slowdown benchmark: train by the schedule of a cell, and print the results as JSON.

    python -m benchmarks.slowdown.worker '{"model": "resnet18", "tool": "tdcore", ...}' FOLDER

Runs in the tool's own environment. The last line of its output begins with RESULT.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.models import WORKLOADS
from benchmarks.slowdown import limits, machine
from benchmarks.slowdown.cells import Block, Cell, saved_steps, schedule
from benchmarks.slowdown.tools import Job, Tool, load_tool
from benchmarks.slowdown.tools.base import Collector

_BATCHES = 8


class Training:
    """The model, its batches and one step of it."""

    def __init__(self, cell: Cell) -> None:
        torch.manual_seed(cell.seed)
        torch.set_num_threads(cell.threads)
        work = WORKLOADS[cell.model]
        device = torch.device(cell.device)
        generator = torch.Generator().manual_seed(cell.seed)
        self.model = work.make_model().to(device)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.batches = [
            tuple(part.to(device) for part in work.make_batch(generator)) for _ in range(_BATCHES)
        ]
        self._synchronize: Callable[[], None] = (
            torch.cuda.synchronize if device.type == "cuda" else lambda: None
        )

    def step(self, number: int, tool: Tool) -> float:
        """Train on the next batch. Returns the seconds."""
        data, target = self.batches[number % len(self.batches)]
        self._synchronize()
        start = time.perf_counter()
        tool.step_begins(number)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(data), target)
        loss.backward()
        tool.backward_done(number, loss)
        self.optimizer.step()
        tool.step_ends(number)
        self._synchronize()
        return time.perf_counter() - start

    def sizes_of(self, collection: str) -> list[int]:
        """Bytes of each tensor of the collection, measured by a Collector at one step."""
        collector = Collector(self.model, self.criterion, collection)
        collector.active = True
        data, target = self.batches[0]
        loss = self.criterion(self.model(data), target)
        loss.backward()
        sizes = [tensor.numel() * tensor.element_size() for _, tensor in collector.tensors(loss)]
        collector.close()
        self.optimizer.zero_grad()
        return sizes


def run_block(training: Training, tool: Tool, block: Block) -> dict[str, Any]:
    """Train one block, wait until the tool is idle, and return the costs."""
    for step in range(block.start - block.lead_in, block.start):
        training.step(step, tool)
    tool.block_begins(bool(block.saved))
    before = machine.usage()
    times = [training.step(step, tool) for step in range(block.start, block.end)]
    trained = machine.usage()
    left_behind = machine.settle()
    after = machine.usage()
    return {
        "start": block.start,
        "saved": [step + tool.offset for step in block.saved],
        "times_s": times,
        "cpu_s": after.tree - before.tree,
        "left_behind_s": left_behind,
        "others": machine.share_of_others(before, trained),
        "memory": machine.memory(),
    }


def measure(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run the whole schedule of a cell."""
    training = Training(cell)
    sizes = training.sizes_of(cell.collection)
    blocks = schedule(cell)
    job = Job(
        model=training.model,
        criterion=training.criterion,
        optimizer=training.optimizer,
        collection=cell.collection,
        interval=cell.interval,
        saved_steps=saved_steps(blocks),
        folder=folder,
    )
    tool = load_tool(cell.tool, job)
    measured = [run_block(training, tool, block) for block in blocks]
    said = tool.close()
    files, written = said.get("stored") or machine.files_under(folder)
    disk = limits.direct_write_bytes_per_second(folder)
    del training, job, tool
    statistics_only = cell.collection == "statistics"
    return {
        "cell": cell.to_json_dict(),
        "torch": torch.__version__,
        "warm_up": measured[0],
        "blocks": measured[1:],
        "tool": said,
        "tensors": len(sizes),
        "tensor_bytes": sum(sizes),
        "files": files,
        "written_bytes": written,
        "limit_s": limits.read_seconds(sizes) if statistics_only else limits.copy_seconds(sizes),
        "disk_bytes_per_s": disk,
    }


def main() -> None:
    """The command line."""
    cell = Cell(**json.loads(sys.argv[1]))
    print("RESULT " + json.dumps(measure(cell, Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
