"""Two ranks under DistributedDataParallel; only rank 0 evaluates.

    python -m tests.hooks.distributed.evaluates FOLDER

Three training steps, two evaluation steps, three training steps. The hook writes its run to FOLDER.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tdcore import modes
from tdcore.hooks.pytorch import Hook

from .models import Net, batch, loss_of
from .ranks import hook_options

WORLD = 2


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = f"file://{folder / 'meeting_point'}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=WORLD)
    net = Net()
    with Hook(folder / "run", **hook_options()) as hook:
        hook.register_module(net)
        model = DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            if step == 3 and rank == 0:
                hook.set_mode(modes.EVAL)
                net.eval()
                with torch.no_grad():
                    for number in range(2):
                        net(batch(100 + number)[0])
                net.train()
            hook.set_mode(modes.TRAIN)
            x, y = batch(step, rank, WORLD)
            optimizer.zero_grad()
            loss_of(model(x), y).backward()
            optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    """Run both ranks until they end; return 1 if one of them failed."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, folder)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    failed = any(process.exitcode != 0 for process in ranks)
    for process in ranks:
        process.kill()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
