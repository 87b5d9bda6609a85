"""A PyTorch training whose DataLoader forks its workers after the hook was made.

python loading.py '{"out": "runs/x", "workers": 2, "epochs": 2}'
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tdcore as td
from tdcore.hooks.pytorch import Hook

BATCHES = 6


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random samples.

    A worker makes each sample and also uses the hook there, as a careless dataset may do.
    """

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.home = os.getpid()

    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert os.getpid() != self.home
        self.hook.save_scalar("from_a_worker", float(index))
        if index % 8 == 7:
            self.hook.close()
        generator = torch.Generator().manual_seed(index)
        return torch.randn(4, generator=generator), torch.tensor(index % 2)


def main(job: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = Hook(
        job["out"],
        save_config=td.SaveConfig(save_interval=1),
        include_collections=["weights", "gradients", "losses"],
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    loader = DataLoader(
        Samples(hook), batch_size=8, num_workers=job["workers"], multiprocessing_context="fork"
    )
    for _ in range(job["epochs"]):
        for inputs, labels in loader:
            optimizer.zero_grad()
            criterion(model(inputs), labels).backward()
            optimizer.step()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
