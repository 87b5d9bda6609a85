"""A trainer of a small network that makes a checkpoint, may be killed, and resumes.

python resuming.py '{"out": "runs/x", "checkpoint": "c.pt", "ledger": "ledger.txt", "steps": 250, "seed": 0,
                     "checkpoint_at": 200, "kill_at": 212}'

Step and seed determine the batch of a step, so that two trainings can be compared. The checkpoint is loaded
if its file exists. The losses are written to the ledger, one line per step, before the kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the network and its optimizer before the first step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def training(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, seed: int
) -> Iterator[tuple[int, torch.Tensor]]:
    """Train; yield each step and its loss before the next step begins."""
    for step in steps:
        batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed * 100_000 + step))
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        yield step, loss.detach()


def main(job: dict[str, Any]) -> None:
    """Run one attempt."""
    model, optimizer = make()
    collections = ["weights", "gradients"]
    hook = Hook(job["out"], save_config=td.SaveConfig(save_interval=1), include_collections=collections)
    hook.register_module(model)
    first, checkpoint = 0, Path(job["checkpoint"])
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        hook.load_state_dict(saved["hook"])
        first = saved["step"]
    hook.save_scalar("seed", job["seed"])  # capture before the first step, which belongs to this step
    with open(job["ledger"], "a", buffering=1) as ledger:
        for step, loss in training(model, optimizer, range(first, job["steps"]), job["seed"]):
            hook.record_tensor_value("loss", loss)
            ledger.write(f"{step} {float(loss).hex()}\n")
            if step + 1 == job.get("checkpoint_at"):
                states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**states, "hook": hook.state_dict(), "step": step + 1}, checkpoint)
            if step == job.get("kill_at"):
                os.kill(os.getpid(), signal.SIGKILL)
    hook.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
