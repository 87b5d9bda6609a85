"""The processes of a job: `python -m tests.hooks.distributed.ranks FOLDER` trains every case on four ranks.

Every rank runs each case twice, without capture and with capture, and writes to FOLDER the values that the
tests compare: the exact losses, and the number of operations that each process group began.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported once here, because an import in each rank takes four times as long
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

import tdcore as td
from tdcore.hooks.pytorch import Hook

from .cases import CASES

__all__ = ["hook_options", "operations", "outcome"]

WORLD = 4


def hook_options() -> dict[str, Any]:
    """Options of a hook that captures everything at every step, with small rings."""
    return {
        "save_config": td.SaveConfig(save_interval=1),
        "save_all": True,
        "include_workers": "all",
        "flusher": "thread",
        "ring": td.RingConfig(ring_bytes=1 << 20, slots=256, names_bytes=1 << 16, threads=1),
    }


def outcome(name: str, folder: Path | None) -> dict[str, Any]:
    """Train one case. folder: folder of the run; None trains without capture."""
    case, options = CASES[name]
    hooks: list[Hook] = []

    def watch(model: nn.Module) -> Hook | None:
        if folder is None:
            return None
        hook = Hook(folder, **{**hook_options(), **options})
        hook.register_module(model)
        hooks.append(hook)
        return hook

    before = operations()
    losses = case(watch)
    after = operations()
    for hook in hooks:
        hook.close()
    begun = sorted(count - before.get(group, 0) for group, count in after.items())
    return {
        "losses": [float(loss).hex() for loss in losses],
        "operations": [count for count in begun if count],
    }


def operations() -> dict[str, int]:
    """Return the number of collectives that each process group has begun, as counted by the group in C++."""
    groups: dict[Any, Any] = distributed_c10d._world.pg_map
    names = distributed_c10d._world.pg_names
    return {names[group]: group._get_sequence_number_for_group() for group in groups}


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = f"file://{folder / 'meeting_point'}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=WORLD)
    try:
        found = {name: {"off": outcome(name, None), "on": outcome(name, folder / name)} for name in CASES}
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the other ranks may wait for this one: main() ends them
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path) -> int:
    """Fork the ranks, because importing PyTorch once takes less time than four times."""
    gc.freeze()  # hooks search all objects for optimizers; objects of imported modules are excluded
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, folder)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    running = list(ranks)
    while running:
        ready = wait([process.sentinel for process in running], timeout=600)
        ended = [process for process in running if process.sentinel in ready]
        running = [process for process in running if process not in ended]
        for process in ended:
            process.join()
        if not ended or any(process.exitcode for process in ended):  # one rank hangs or failed, so all will
            for process in running:
                process.kill()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
