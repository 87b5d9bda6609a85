"""Cost of Hook(rules="default") in a training of ResNet-18, measured in one process.

Two trainings of the same model on the same batches take turns: a block with the hook, a block without it.
Every other pair has the blocks in the other order. A block has 20 steps, the longest interval of the default
captures, so every block with the hook saves the same tensors. In the first 40 steps of a run the hook saves
at each step; these blocks are reported separately as "early". Two steps before each block are not counted.

wall      time of a block with the hook divided by the time of the block without it
training  the same with CPU seconds of the training process, which other processes affect less
flusher   CPU seconds of the flusher in a block with the hook, and after it until the flusher is idle, minus
          those of a block without the hook, divided by the CPU seconds of the training process in the block
          without the hook
cpu       training and flusher together
hook      time of the training thread inside the hook, by the hook's clock, divided by the rest of the time of
          the same block: hardly any noise, but without the flusher and without effects on the caches

Each is a median over pairs with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.environment import ROOT, add_out, save
from benchmarks.models import WORKLOADS
from benchmarks.slowdown import machine
from benchmarks.slowdown.costs import bootstrap
from tdcore.hooks.pytorch import Hook

_STEPS, _EARLY, _LEAD_IN, _BATCHES = 20, 40, 2, 8


class Training:
    """A model with its batches and its optimizer. All trainings of one process are equal."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        work, generator = WORKLOADS["resnet18"], torch.Generator().manual_seed(0)
        self.model, self.loss = work.make_model(), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.batches = [work.make_batch(generator) for _ in range(_BATCHES)]
        self.done = 0

    def step(self) -> None:
        data, target = self.batches[self.done % _BATCHES]
        self.done += 1
        self.optimizer.zero_grad()
        self.loss(self.model(data), target).backward()
        self.optimizer.step()


class Took(NamedTuple):
    """Cost of a block: seconds, CPU seconds of this process, CPU seconds of its flusher."""

    wall: float
    process: float
    flusher: float


def block(training: Training, warm: Training, steps: int) -> Took:
    """Train a block, and wait for the flusher. warm: first train the steps that are not counted."""
    for _ in range(_LEAD_IN):
        warm.step()
    before, own, start = machine.usage(), time.process_time(), time.perf_counter()
    for _ in range(steps):
        training.step()
    wall, process = time.perf_counter() - start, time.process_time() - own
    machine.settle()
    every = machine.usage().tree - before.tree
    return Took(wall, process, every - (time.process_time() - own))


def measure(folder: Path, pairs: int, steps: int) -> list[dict[str, float]]:
    """One row for each pair of blocks."""
    hooked, plain, warm = Training(), Training(), Training()
    rows = []
    with Hook(folder / "run", rules="default") as hook:
        hook.register_module(hooked.model)
        hook.register_loss(hooked.loss)
        for pair in range(pairs):
            spent = hook.time_spent()
            order = (hooked, plain) if pair % 2 == 0 else (plain, hooked)
            took = {one is hooked: block(one, warm, steps) for one in order}
            inside = (hook.time_spent() - spent).total_seconds()
            rows.append(row(took[True], took[False], inside, steps))
        report = hook.close()
    assert report is not None
    assert report.counters.dropped_tensors == 0, report
    return rows


def row(hooked: Took, plain: Took, inside: float, steps: int) -> dict[str, float]:
    """The measures of one pair of blocks. inside: seconds in the hook."""
    return {
        "wall": hooked.wall / plain.wall,
        "cpu": (hooked.process + hooked.flusher - plain.flusher) / plain.process,
        "training": hooked.process / plain.process,
        "flusher": (hooked.flusher - plain.flusher) / plain.process,
        "idle_flusher": plain.flusher / plain.process,
        "hook": inside / (hooked.wall - inside),
        "hook_ms_per_step": 1e3 * inside / steps,
        "step_s": plain.wall / steps,
        "step_cpu_s": plain.process / steps,
    }


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Median and interval of each measure."""
    return {name: asdict(bootstrap([row[name] for row in rows])) for name in rows[0]}


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=12, help="number of pairs of blocks after the early blocks"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a short run that shows that everything works; not a measurement"
    )
    add_out(parser)
    options = parser.parse_args()
    steps, early_pairs = (1, 1) if options.quick else (_STEPS, _EARLY // _STEPS)
    torch.set_num_threads(1)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        rows = measure(Path(name), early_pairs + options.pairs, steps)
    result = {"early": summary(rows[:early_pairs]), "default": summary(rows[early_pairs:])}
    for when, measures in result.items():
        for measure_name, one in measures.items():
            print(f"{when:8} {measure_name:17} {one['median']:.4f} [{one['low']:.4f}, {one['high']:.4f}]")
    print("saved", save("default_rules", {"method": __doc__, "pairs": rows, **result}, options.out))


if __name__ == "__main__":
    main()
