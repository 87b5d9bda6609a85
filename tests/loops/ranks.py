"""Generated loops under DistributedDataParallel: several CPU processes; only rank 0 evaluates.

The processes are started once and run all loops. Every rank has its own reference recorder and compares its
own rows. Combinations that DistributedDataParallel does not support are not generated: models without trained
parameters or with unused parameters, several forwards per backward, optimizers inside of backward, planted
Inf on one rank, and decisions that depend on the loss of one rank (LBFGS).
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import pickle
import tempfile
import warnings
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.loops.compare import Result, compare_rows, compare_training
from tests.loops.generator import CLOSURES, SAMS, Loop, random_loop, without_ambiguity
from tests.loops.interpreter import execute
from tests.loops.modules import FROZEN
from tests.loops.runner import Summary, make_hook

__all__ = ["loop_for_ranks", "many_with_ranks"]

_TIMEOUT = timedelta(seconds=60)


def loop_for_ranks(seed: int, number: int) -> Loop:
    """Return loop `number` of the sequence, changed so that DistributedDataParallel can run it."""
    loop = random_loop(seed, number)
    updater = loop.updater
    if updater == "in_backward" or updater in CLOSURES or updater in SAMS:
        updater = "adam_closure" if updater in CLOSURES else "sgd"
    return without_ambiguity(
        dataclasses.replace(
            loop,
            roots=tuple("mlp" if kind in (FROZEN, "spare") else kind for kind in loop.roots[:2]),
            register=tuple(at for at in loop.register if at < 2) or (0,),
            scheme=loop.scheme if loop.scheme == "parallel" else "chain",
            owner="one" if loop.owner in ("first", "last") else loop.owner,
            detach=False,
            calls=1,
            method=False,
            updater=updater,
            scaler="unscale" if loop.scaler == "inf" else loop.scaler,
            how="eval_no_grad" if loop.how == "eval_grad" else loop.how,
        )
    )


def many_with_ranks(seed: int, numbers: Sequence[int], ranks: int) -> Summary:
    """Run loops of a sequence in new processes; return the totals of all ranks, each loop counted once."""
    context = get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(rank, ranks, seed, list(numbers), folder))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        total = Summary()
        for rank, process in enumerate(processes):
            result = Path(folder) / f"result-{rank}"
            if process.exitcode != 0 or not result.exists():
                text = f"rank {rank} ended with status {process.exitcode}"
                total.add(text, Result([f"training: {text}"]))
                continue
            total.join(pickle.loads(result.read_bytes()))
    total.loops = len(numbers)
    return total


def _rank(rank: int, ranks: int, seed: int, numbers: list[int], folder: str) -> None:
    """Run one rank."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    logging.getLogger("tdcore").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks, timeout=_TIMEOUT
    )
    summary = Summary()
    gc.collect()
    gc.freeze()
    for number in numbers:
        loop = loop_for_ranks(seed, number)
        result = _check(loop, Path(folder) / f"run-{number}", rank)
        summary.add(
            f"--seed {seed} --ranks {ranks} --first {number} --loops 1 (rank {rank}) {loop.text()}", result
        )
    (Path(folder) / f"result-{rank}").write_bytes(pickle.dumps(summary))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _check(loop: Loop, folder: Path, rank: int) -> Result:
    """Check one loop as check_loop() does, in every rank at the same time."""
    plain = execute(loop, wrap=DistributedDataParallel, evaluates=rank == 0, random_state=rank)
    try:
        hook = make_hook(loop, folder, include_workers="all")
    except TypeError as error:
        return Result([f"missing: the hook has no such option: {error}"])
    outcome = execute(loop, hook, wrap=DistributedDataParallel, evaluates=rank == 0, random_state=rank)
    hook.close()
    torch.distributed.barrier()
    result = compare_rows(folder, outcome.reference.rows, f"worker_{rank}")
    result.differences += [f"training: the hook has a fault: {fault}" for fault in hook._faults.items()]
    result.differences += compare_training(outcome, plain)
    return result
