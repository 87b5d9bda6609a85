"""Cost of the registration and of the first saved step of a model with many modules.

CPU time of the training thread, without a hook (bare) and with a hook, each in a new process. A round
measures all of these processes; the order changes from round to round. Reported are the medians, and the
medians of the differences within a round. Later steps are reported as the median of the saved steps, and of
the steps between them. Growth is the slope of log(time) over log(size); 1 is proportional.

wgl     statistics of weights, gradients and losses at every second step
all     the same with save_all: also inputs, outputs, biases, optimizer state

Shapes: flat (nn.Linear in one nn.Sequential), nested (12 levels), parameters (one module with an
nn.ParameterList), shared (each module occurs twice), names (names of 300 characters). Size: modules, or
parameters of the shape "parameters".
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import tdcore as td
from benchmarks.environment import ROOT, add_out, save
from tdcore.hooks.pytorch import Hook

CASES = ("bare", "wgl", "all")
LEVELS, WIDTH, LATER = 12, 4, 4
Times = dict[str, float]


class Sum(nn.Module):
    """A module with many parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(WIDTH)) for _ in range(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add all parameters to the input."""
        return x + torch.stack(list(self.parts)).sum(0)


def linears(size: int) -> list[nn.Module]:
    """The modules of most shapes."""
    return [nn.Linear(WIDTH, WIDTH) for _ in range(size)]


def nested(size: int) -> nn.Module:
    """Chains of modules, each in a chain of LEVELS containers."""
    model = nn.Sequential()
    for start in range(0, size, 2 * LEVELS):
        inner: nn.Module = nn.Sequential()
        for layer in linears(min(LEVELS, max(1, (size - start) // 2))):
            inner = nn.Sequential(layer, inner)
        model.append(inner)
    return model


def named(size: int) -> nn.Module:
    """Modules with long names."""
    model = nn.Sequential()
    for number, layer in enumerate(linears(size)):
        model.add_module(f"{'layer' * 59}{number:05}", layer)
    return model


SHAPES: dict[str, Callable[[int], nn.Module]] = {
    "flat": lambda size: nn.Sequential(*linears(size)),
    "nested": nested,
    "parameters": Sum,
    "shared": lambda size: nn.Sequential(*(layer for layer in linears(size) for _ in range(2))),
    "names": named,
}


def measure(case: str, shape: str, size: int, folder: str) -> Times:
    """Train in this process. Times in seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = SHAPES[shape](size), torch.randn(1, WIDTH)
    optimizer = torch.optim.Adam(model.parameters())
    small = nn.Linear(1, 1)  # torch's own first step
    warm = torch.optim.Adam(small.parameters())
    small(torch.ones(1, 1)).sum().backward()
    warm.step()
    found: Times = {}
    begin = time.thread_time()
    if case != "bare":
        hook = Hook(
            Path(folder) / "run",
            save_config=td.SaveConfig(save_interval=2),
            reduction_config=td.ReductionConfig(),
            include_collections=["weights", "gradients", "losses"],
            save_all=case == "all",
        )
        hook.register_module(model)
        found["register_s"] = time.thread_time() - begin
    steps: list[float] = []
    for _ in range(1 + 2 * LATER):
        begin = time.thread_time()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        steps.append(time.thread_time() - begin)
    found["first_s"] = steps[0]
    found["saved_s"] = statistics.median(steps[4::2])  # step 2 is the first one with optimizer state
    found["unsaved_s"] = statistics.median(steps[1::2])
    if case != "bare":
        report = hook.close()
        if report is None or not report.drained or report.counters.drops:
            raise SystemExit(f"the run is not complete: {report}")
        found["tensors"] = float(report.counters.tensors)
    return found


def in_new_process(*job: object, folder: str) -> Times:
    """Run measure() in a new process."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = [sys.executable, "-m", "benchmarks.first_step", "--job", json.dumps([*job, name])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        times: Times = json.loads(done.stdout.splitlines()[-1])
        return times


def summary(rounds: list[dict[str, Times]]) -> dict[str, Times]:
    """Medians of each case, and of its differences from the bare training."""
    table: dict[str, Times] = {}
    for case in CASES:
        own = [each[case] for each in rounds]
        table[case] = {key: statistics.median(one[key] for one in own) for key in own[0]}
        for key in ("first_s", "saved_s", "unsaved_s") if case != "bare" else ():
            table[case][f"{key}_more"] = statistics.median(
                each[case][key] - each["bare"][key] for each in rounds
            )
    return table


def growth(sizes: list[int], times: list[float]) -> float:
    """Slope of the least-squares line through the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(one) for one in times]
    return statistics.linear_regression(x, y).slope


def main() -> None:
    """Measure, print a table, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000, 10000, 50000])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    add_out(parser)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(*json.loads(options.job))))
        return
    (ROOT / "build").mkdir(exist_ok=True)
    results: dict[str, dict[str, dict[str, Times]]] = {}
    slopes: dict[str, Times] = {}
    for shape in options.shapes:
        results[shape] = {}
        for size in options.sizes:
            rounds = []
            for number in range(options.rounds):
                order = CASES if number % 2 == 0 else CASES[::-1]
                rounds.append(
                    {case: in_new_process(case, shape, size, folder=str(ROOT / "build")) for case in order}
                )
            table = results[shape][str(size)] = summary(rounds)
            for case, times in table.items():
                print(shape, size, case, {key: round(value, 3) for key, value in times.items()}, flush=True)
        if len(options.sizes) > 1:
            slopes[shape] = {
                case: growth(options.sizes, [one[case]["first_s"] for one in results[shape].values()])
                for case in CASES
            }
            print(
                shape, "growth of the first step", {key: round(one, 2) for key, one in slopes[shape].items()}
            )
    document = {"method": __doc__, "rounds": options.rounds, "results": results, "growth": slopes}
    print("saved", save("first_step", document, options.out))


if __name__ == "__main__":
    main()
