"""A training that runs until a file exists, for tests of `tdcore profile`. Starts also under torchrun."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook

if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    ranked = "RANK" in os.environ
    if ranked:
        torch.distributed.init_process_group("gloo")
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    if ranked:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = Hook(
        job["out"],
        save_config=td.SaveConfig(save_interval=100),
        include_collections=["losses"],
        include_workers="all",
    )
    hook.register_module(model)
    stop, stopped = Path(job["stop"]), torch.zeros(1)
    while not stopped.item():
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        stopped = torch.tensor([float(stop.exists())])
        if ranked:
            torch.distributed.all_reduce(stopped)
    hook.close()
    if ranked:
        torch.distributed.destroy_process_group()
