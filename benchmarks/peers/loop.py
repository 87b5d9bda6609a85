"""The training loop that every tool is measured on: saved and unsaved steps in turn, so that noise hits both
alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn


def batches(count: int, size: int, classes: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """`count` batches of (size, 3, 32, 32) images with labels; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, 32, 32, generator=generator),
            torch.randint(0, classes, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def step_times(
    model: nn.Module,
    criterion: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    before: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Seconds of each training step, from the start of the forward to the end of the optimizer's step."""
    data = batches(8, 16, 43)
    times = []
    for step in range(steps):
        images, labels = data[step % len(data)]
        before(step)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return times


def paired_stall(times: list[float], warm_up: int) -> dict[str, float]:
    """Even steps saved, odd steps did not: the median over pairs of (saved - unsaved), in seconds, and its
    spread."""
    pairs = [(times[i] - times[i + 1]) for i in range(warm_up, len(times) - 1, 2)]
    quartiles = statistics.quantiles(pairs, n=4)
    return {
        "stall_median_s": statistics.median(pairs),
        "stall_q1_s": quartiles[0],
        "stall_q3_s": quartiles[2],
        "unsaved_median_s": statistics.median(times[warm_up + 1 :: 2]),
        "saved_median_s": statistics.median(times[warm_up::2]),
        "pairs": float(len(pairs)),
    }
