"""A small real training with a planted fault that costs time.

    python -m tests.rules.time_faults.trainings PLACE TRAINING SECONDS STEPS [RANK WORLD STORE]

TRAINING is a key or a value of HEALTHY. The training ends when STEPS, and SECONDS after the first step, are
reached.
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tdcore as td
from tdcore.hooks.pytorch import Hook

__all__ = ["FAULTS", "HEALTHY", "START_SECONDS"]

# Name of the fault -> class of the rule that finds it.
FAULTS = {
    "slow_items": "InputBound",
    "no_workers": "Dataloader",
    "many_workers": "Dataloader",
    "slow_rank": "Straggler",
    "fsync": "LoopOverhead",
    "recompiles": "RecompileStorm",
    "slow_start": "MaxInitializationTime",
    "checkpoints": "CheckpointStall",
    "slow_steps": "StepOutlier",
}
# Name of the fault -> the same training without the fault. Several faults share a healthy training.
HEALTHY = {
    "slow_items": "healthy",
    "no_workers": "healthy_workers",
    "many_workers": "healthy_workers",
    "slow_rank": "healthy_ranks",
    "fsync": "healthy",
    "recompiles": "compiled_once",
    "slow_start": "healthy",
    "checkpoints": "rare_checkpoints",
    "slow_steps": "healthy",
}
FEATURES, BATCH = 512, 32
START_SECONDS = 30
MORE = torch.zeros(8 << 20)  # makes a checkpoint larger


class Items(Dataset[Any]):
    """Random items; each one takes `seconds` to load."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.items = torch.randn(4096, FEATURES)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        return self.items[index], index % 4


def loader(training: str, rank: int) -> DataLoader[Any]:
    """Return the DataLoader of a training."""
    seconds = {"slow_items": 0.001, "no_workers": 0.0002, "healthy_workers": 0.0001}.get(training, 0.0)
    if training == "slow_rank" and rank == 1:
        seconds = 0.001
    workers = {"many_workers": 16, "healthy_workers": 2}.get(training, 0)
    return DataLoader(
        Items(seconds),
        batch_size=BATCH,
        num_workers=workers,
        drop_last=True,
        persistent_workers=workers > 0,
    )


def train(place: str, training: str, seconds: float, steps: int, rank: int = 0, world: int = 1) -> None:
    """Train until there are `steps` steps and `seconds` have passed since the first step."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if training == "slow_start":
        time.sleep(START_SECONDS)
    plain = nn.Sequential(nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, 4))
    model: nn.Module = nn.parallel.DistributedDataParallel(plain) if world > 1 else plain
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=200),
        include_collections=["losses"],
        include_workers="all",
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    is_compiled = training in ("recompiles", "compiled_once")
    run = torch.compile(model, backend="aot_eager", dynamic=False) if is_compiled else model
    batches, step = loader(training, rank), 0
    end = math.inf
    while step < steps or not over(end, world):
        for inputs, labels in batches:
            if training == "recompiles":
                size = 1 + step // 2 % BATCH
                inputs, labels = inputs[:size], labels[:size]
                time.sleep(0.1)  # so that 32 steps take 3 seconds, however fast the machine compiles
            optimizer.zero_grad()
            loss = criterion(run(inputs), labels)
            loss.backward()
            optimizer.step()
            cost_time(training, step, place, plain)
            step += 1
            if step == 1:  # a start or a compilation on a slow machine takes no time from the steps
                end = time.monotonic() + seconds
            if step >= steps and step % 16 == 0 and over(end, world):
                break
    hook.close()


def over(end: float, world: int) -> bool:
    """Return whether the time is over, the same on all ranks."""
    flag = torch.tensor(float(time.monotonic() > end))
    if world > 1:
        torch.distributed.all_reduce(flag)
    return bool(flag > 0)


def cost_time(training: str, step: int, place: str, model: nn.Module) -> None:
    """Spend the time of a fault after a step."""
    checkpoint_interval = {"checkpoints": 4, "rare_checkpoints": 400}.get(training)
    if training == "fsync":
        with open(f"{place}.log", "wb") as file:
            file.write(os.urandom(4 << 20))
            file.flush()
            os.fsync(file.fileno())
    elif checkpoint_interval and step % checkpoint_interval == 3:
        state = {**model.state_dict(), "more": MORE}
        torch.save(state, f"{place}.pt")
    elif training == "slow_steps" and step % 25 == 24:
        time.sleep(0.2)


def main() -> None:
    """Run one training; see the module."""
    place, training, seconds, steps, *distributed = sys.argv[1:]
    rank, world = (int(each) for each in distributed[:2]) if distributed else (0, 1)
    if world > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        store = f"file://{distributed[2]}"
        torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch._dynamo.config.recompile_limit = 10_000
    train(place, training, float(seconds), int(steps), rank, world)
    for name in (f"{place}.log", f"{place}.pt"):
        Path(name).unlink(missing_ok=True)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
