"""Cost of steps that save nothing, and cost per small tensor of steps that save: a model with many tiny
layers.

The unsaved step is compared with the same step without tdcore, in turn, in one process: the hook is attached
and closed
around each half of a pair.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from benchmarks.environment import ROOT, save
from tdcore.hooks.pytorch import Hook

LAYERS = 150
STEPS = 30


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    x = torch.randn(64, 128)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return times


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(128, 128) for _ in range(LAYERS)))


def with_hook(folder: Path, **options: Any) -> tuple[list[float], int]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, 3)
    with Hook(str(folder), ring=td.RingConfig(ring_bytes=512 << 20), **options) as hook:
        hook.register_module(model)
        train(model, optimizer, 2)
        before = hook.counters().tensors
        times = train(model, optimizer, STEPS)
        return times, (hook.counters().tensors - before) // STEPS


def without_hook() -> list[float]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(model, optimizer, 5)
    return train(model, optimizer, STEPS)


def main() -> None:
    torch.set_num_threads(1)
    never = td.SaveConfig(save_interval=10**9, start_step=10**9)
    always = td.SaveConfig(save_interval=1)
    statistics_only = td.ReductionConfig(reductions=["mean"])
    plain, unsaved, saved, tensors = [], [], [], 0
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        for turn in range(8):
            plain += without_hook()
            unsaved += with_hook(Path(folder) / f"never{turn}", save_config=never)[0]
            times, tensors = with_hook(
                Path(folder) / f"always{turn}",
                save_config=always,
                include_collections=["weights", "biases", "gradients"],
                reduction_config=statistics_only,
            )
            saved += times
    base = statistics.median(plain)
    result = {
        "step_without_s": base,
        "step_unsaved_s": statistics.median(unsaved),
        "step_saved_s": statistics.median(saved),
        "unsaved_ratio": statistics.median(unsaved) / base,
        "tensors_per_saved_step": tensors,
        "saved_us_per_tensor": (statistics.median(saved) - base) / max(tensors, 1) * 1e6,
    }
    for key, value in result.items():
        print(f"{key:26} {value:.6g}")
    print("saved", save("hook_cost", {"method": __doc__, **result}).relative_to(ROOT))


if __name__ == "__main__":
    main()
