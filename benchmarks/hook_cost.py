"""Cost of a step that saves nothing, and cost per small tensor of a step that saves.

Unsaved: a model of one tiny layer whose optimizer has nothing to do, so that a step is little but hooks.
Loops of
steps with a hook that never saves and without one take turns; the median of the differences is the cost
per step. Saved: 150 layers of 16 x 16, statistics of weights, biases and gradients at every second step; the
median over pairs of (saved step - unsaved step), divided by the number of tensors.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import tdcore as td
from benchmarks.environment import ROOT, save
from tdcore.hooks.pytorch import Hook

NEVER = td.SaveConfig(save_interval=10**9, start_step=10**9)
LOOP, ROUNDS, LAYERS, PAIRS = 2000, 31, 150, 60


def loop_seconds(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    x = torch.randn(1, 4)
    with torch.no_grad():
        start = time.perf_counter()
        for _ in range(LOOP):
            model(x)
            optimizer.step()
        return time.perf_counter() - start


def unsaved_microseconds(folder: Path) -> dict[str, float]:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    differences = []
    loop_seconds(model, optimizer)
    for turn in range(ROUNDS):
        plain = loop_seconds(model, optimizer)
        with Hook(folder / f"never{turn}", save_config=NEVER, ring=td.RingConfig(ring_bytes=1 << 20)) as hook:
            hook.register_module(model)
            differences.append((loop_seconds(model, optimizer) - plain) / LOOP * 1e6)
    low, _, high = statistics.quantiles(differences, n=4)
    return {"unsaved_us": statistics.median(differences), "unsaved_us_q1": low, "unsaved_us_q3": high}


def saved_microseconds(folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, times = torch.randn(4, 16), []
    with Hook(
        folder / "saved",
        save_config=td.SaveConfig(save_interval=2),
        include_collections=["weights", "biases", "gradients"],
        reduction_config=td.ReductionConfig(),
    ) as hook:
        hook.register_module(model)
        for _ in range(2 * PAIRS + 4):
            start = time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        tensors = hook.counters().tensors / (PAIRS + 2)
        inside = hook.time_spent().total_seconds() / (PAIRS + 2)
    pairs = [(times[i] - times[i + 1]) / tensors * 1e6 for i in range(4, len(times) - 1, 2)]
    low, _, high = statistics.quantiles(pairs, n=4)
    return {
        "tensors_per_saved_step": tensors,
        "saved_us_per_tensor": statistics.median(pairs),
        "saved_us_per_tensor_q1": low,
        "saved_us_per_tensor_q3": high,
        "inside_the_hook_us_per_tensor": inside / tensors * 1e6,
    }


def main() -> None:
    torch.set_num_threads(1)
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        result = unsaved_microseconds(Path(folder)) | saved_microseconds(Path(folder))
    for key, value in result.items():
        print(f"{key:32} {value:.4g}")
    print("saved", save("hook_cost", {"method": __doc__, **result}).relative_to(ROOT))


if __name__ == "__main__":
    main()
