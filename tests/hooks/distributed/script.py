"""A training script for torchrun: the model is wrapped, and the hook is created before the process group."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tdcore.hooks.pytorch import Hook

from .models import STEPS, Net, batch, loss_of
from .ranks import hook_options, operations


def train(hook: Hook | None) -> dict[str, Any]:
    """Train; return the exact losses of this rank, and the number of operations of its process groups."""
    before = sum(operations().values())
    model = DistributedDataParallel(Net())
    if hook is not None:
        hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss).hex())
    return {"losses": losses, "operations": sum(operations().values()) - before}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with Hook(folder / "run", **hook_options()) as captured:
        dist.init_process_group("gloo")
        outcome = {"off": train(None), "on": train(captured)}
    (folder / f"rank_{dist.get_rank()}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()
