"""Runs of many kinds for the tests of answers, written without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tdcore.rules.trace import Trace
from tdcore.view.answers import OpenRun
from tests.rules.system_samples import write_samples, write_step_times
from tests.trial.writer import RunWriter, place

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\u202e\"'`|*_[x](javascript:1)\x1b[31m\n@all"
LAYERS = 12


def healthy(root: Path) -> None:
    """A model of 12 layers: losses in TRAIN and EVAL, weights, gradients, outputs; labels and predictions."""
    run = RunWriter(root)
    random = np.random.default_rng(0)
    weights = [random.normal(size=(8, 4)).astype(np.float32) for _ in range(LAYERS)]
    step = 0
    for epoch in range(3):
        for number in range(10):
            train: dict[str, Any] = {"step": step, "mode": "TRAIN", "mode_step": 10 * epoch + number}
            for layer, weight in enumerate(weights):
                weight *= np.float32(0.99)
                run.add(f"Net_layer{layer}.weight", weight, **train)
            for layer in range(LAYERS):
                output = np.maximum(random.normal(size=(5, 3, 10, 9)), 0).astype(np.float32)
                run.add(f"layer{layer}.relu_output_0", output, kind="output", payload=layer == 0, **train)
            run.add(
                "loss_output_0", np.float32(2.0 / (1 + step)), kind="loss", origin="CrossEntropyLoss", **train
            )
            for layer in reversed(range(LAYERS)):
                gradient = random.normal(size=(8, 4)).astype(np.float32) * np.float32(10.0**-layer)
                run.add(
                    f"gradient/Net_layer{layer}.weight", gradient, kind="gradient", payload=False, **train
                )
            labels = random.integers(0, 3, 20)
            guesses = np.where(random.random(20) < 0.7, labels, random.integers(0, 3, 20))
            run.add("labels", labels, kind="custom", **train)
            run.add("predictions", guesses, kind="custom", **train)
            run.add("SGD/group_0/lr", np.float32(0.1 / (1 + epoch)), kind="hyperparameter", **train)
            run.add("epoch", np.float32(epoch), kind="scalar", payload=False, **train)
            step += 1
        for number in range(2):
            held_out: dict[str, Any] = {"step": step, "mode": "EVAL", "mode_step": 2 * epoch + number}
            run.add(
                "loss_output_0",
                np.float32(2.5 / (1 + step)),
                kind="loss",
                origin="CrossEntropyLoss",
                **held_out,
            )
            step += 1
        run.flush()
    run.end(reason="closed", totals={"rows": 1, "capture_ns": 5, "captured_tensors": 3})


def empty(root: Path) -> None:
    """A run without rows."""
    RunWriter(root).end()


def running(root: Path) -> None:
    """A run that has not ended."""
    run = RunWriter(root)
    run.add("w", np.ones(3, np.float32), step=0)
    run.mark_step_end(0)
    run.flush()


def losses_only(root: Path) -> None:
    """A run with one loss, saved outside of all modes, as by gradient boosting."""
    run = RunWriter(root)
    for step in range(5):
        run.add("validation-rmse", np.float64(1 / (1 + step)), kind="metric", step=step, mode="GLOBAL")
    run.flush()
    run.end()


def nan_everywhere(root: Path) -> None:
    """Every element is NaN or infinite, from the first step on."""
    run = RunWriter(root)
    for step in range(4):
        run.add("loss", np.float32("nan"), kind="loss", step=step)
        run.add("w", np.full((2, 2), np.nan, np.float32), step=step)
        run.add("gradient/w", np.full((2, 2), np.inf, np.float32), kind="gradient", step=step)
    run.flush()
    run.end()


def hostile(root: Path) -> None:
    """Names and texts that try to leave their place in a page."""
    run = RunWriter(root)
    for step in range(3):
        for number in range(3):
            run.add(f"{HOSTILE}{number}", np.ones(3, np.float32), step=step, origin=HOSTILE)
        run.add(f"loss{HOSTILE}", np.float32(1), kind="loss", step=step)
        run.add("w", None, step=step, status="absent", reason=HOSTILE)
    run.flush()
    run.end(reason=HOSTILE, clean=False)
    lines = [
        '{"rule": %s, "code": "X", "mode": %s, "tensor": %s, "why": %s, "do": %s, "step": 0, "count": 2}',
        '{"rule": 7, "step": %s}',
        '{"step": -1, "why": %s}',
        "{}",
    ]
    text = '"</script><script>alert(1)</script>"'
    run.write(
        "findings/Hostile.jsonl", "\n".join([*(line.replace("%s", text) for line in lines), ""]).encode()
    )


def two_attempts(root: Path) -> None:
    """A training that crashed at step 5 and was started again at step 3."""
    for attempt, steps in enumerate((range(6), range(3, 8))):
        run = RunWriter(root, attempt=attempt)
        for step in steps:
            run.add("loss", np.float32(step + 100 * attempt), kind="loss", step=step)
            run.add("w", np.full(3, step + 1.0, np.float32), step=step)
        run.flush()
        run.end(clean=attempt == 1, reason="killed" if attempt == 0 else "closed")


def four_ranks(root: Path) -> None:
    """Rank 3 has gradients that are 100 times as large; weights are copies, activations are local."""
    random = np.random.default_rng(1)
    names = [f"worker_{rank}" for rank in range(4)]
    ranks = [RunWriter(root, worker=name, world_size=4, workers=names) for name in names]
    for step in range(6):
        weight = random.normal(size=(4, 2)).astype(np.float32)
        for rank, run in enumerate(ranks):
            run.add("w", weight, step=step, shard=place([4, 2], [0, 0]))
            gradient = random.normal(size=(4, 2)).astype(np.float32) * np.float32(100 if rank == 3 else 1)
            run.add("gradient/w", gradient, kind="gradient", step=step)
            run.add("loss", np.float32(rank + step), kind="loss", step=step)
    for run in ranks:
        run.flush()
        run.end()


def sharded(root: Path) -> None:
    """Each of 4 ranks has two rows of a weight; a part is missing at the last step."""
    random = np.random.default_rng(2)
    names = [f"worker_{rank}" for rank in range(4)]
    ranks = [RunWriter(root, worker=name, world_size=4, workers=names) for name in names]
    for step in range(5):
        weight = random.normal(size=(8, 3)).astype(np.float32)
        for rank, run in enumerate(ranks):
            if step < 4 or rank < 3:
                run.add("w", weight[2 * rank : 2 * rank + 2], step=step, shard=place([8, 3], [2 * rank, 0]))
    for run in ranks:
        run.flush()
        run.end()


def without_statistics(root: Path) -> None:
    """Rows without statistics: values only, complex, absent, skipped, lost; and a tensor without elements."""
    run = RunWriter(root)
    for step in range(3):
        run.add("values", np.arange(6, dtype=np.float32), step=step, stats=False)
        run.add("complex", np.ones((2, 2), np.complex64), step=step)
        run.add("gradient/w", None, kind="gradient", step=step, status="absent", reason="no_backward")
        run.add("skipped", None, kind="output", step=step, status="skipped", reason="sparse")
        run.add("lost", np.ones(2, np.float32), step=step, payload=False, status="lost", reason="io_error")
        run.add("nothing", np.empty((0, 3), np.float32), step=step)
    run.flush()
    run.end()


def extreme_numbers(root: Path) -> None:
    """Numbers outside the range of single precision, and steps up to 2^52."""
    run = RunWriter(root)
    for step, size in ((0, 1e-300), (7, 1e300), (1 << 52, 1.7e308)):
        with np.errstate(over="ignore"):
            run.add("w", np.array([size, -size]), step=step)
    run.flush()
    run.end()


def timed(root: Path) -> None:
    """Two workers with times of steps, and samples of a machine with one GPU."""
    trace = Trace()
    for rank in range(2):
        worker = f"worker_{rank}"
        run = RunWriter(root, worker=worker, world_size=2)
        run.add("loss", np.float32(1), kind="loss", step=0)
        run.flush()
        run.end()
        for step in range(20):
            mode = "EVAL" if step >= 15 else "TRAIN"
            trace.add_step_time(
                step,
                worker=worker,
                mode=mode,
                mode_step=step % 15,
                data=3 + rank,
                forward=2,
                backward=4 * (step < 15),
            )
            gpu = {"index": 0, "utilization_percent": 50.0 + step, "memory_used": 1 << 30}
            values: dict[str, Any] = {"trainer_cpu_percent": 100.0 * rank, "trainer_memory": 3 << 30}
            if rank == 0:
                values |= {
                    "gpus": [gpu],
                    "cpu_percent": 7.0,
                    "memory_total": 8 << 30,
                    "memory_available": 2 << 30,
                }
                values |= {"seconds": 0.5 if step else None, "disk_read_bytes": 1_000_000}
            trace.add_sample(worker=worker, host="node-1", **values)
    write_step_times(root, trace)
    for worker in ("worker_0", "worker_1"):
        samples = [each for each in trace.samples if each["worker"] == worker]
        write_samples(root, samples, worker=worker, host="node-1")


RUNS: dict[str, Callable[[Path], None]] = {
    each.__name__: each
    for each in (
        healthy, empty, running, losses_only, nan_everywhere, hostile, two_attempts, four_ranks, sharded,
        without_statistics, extreme_numbers, timed,
    )
}  # fmt: skip


@contextmanager
def opened(root: Path, name: str = "") -> Iterator[OpenRun]:
    """Open a run; write it first if it has a name of RUNS."""
    if name:
        RUNS[name](root)
    with closing(OpenRun(name or root.name, str(root))) as run:
        yield run
