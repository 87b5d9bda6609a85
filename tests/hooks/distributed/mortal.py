"""Two jobs of two ranks each, without communication.

    python -m tests.hooks.distributed.mortal FOLDER

The jobs write to FOLDER/process and FOLDER/thread, by the kind of flusher. The second rank of each job stops
after three of six steps. All ranks wait until standard input ends. The program does not wait for a rank that
was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

import torch

from tdcore.hooks.pytorch import Hook

from .models import Net, batch, loss_of
from .ranks import hook_options

STEPS = (6, 3)


def _rank(rank: int, folder: Path, over: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2"}
    with Hook(folder, **hook_options() | {"flusher": folder.name}) as hook:
        model = Net()
        hook.register_module(model)
        for step in range(STEPS[rank]):
            x, y = batch(step)
            loss_of(model(x), y).backward()
        os.read(over, 1)


def main(folder: Path) -> None:
    """Run the jobs until standard input ends."""
    context = multiprocessing.get_context("fork")
    over = os.dup(sys.stdin.fileno())
    jobs = [(rank, folder / flusher) for flusher in ("process", "thread") for rank in (0, 1)]
    ranks = [context.Process(target=_rank, args=(*job, over)) for job in jobs]
    for process in ranks:
        process.start()
    sys.stdin.read()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
