"""Data-parallel training, started by torchrun. Does not use tdcore."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    lines = []
    for step in range(4):
        loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lines.append(f"rank {dist.get_rank()} step {step} loss {loss.item().hex()}\n")
    os.write(1, "".join(lines).encode())  # in one call, because the ranks share stdout
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
