"""Time that a training waits for a profile: at the begin of the window and at its end.

A perceptron with many small layers trains on one thread, with one window of torch.profiler, cProfile or both.
The times are those that the hook stores in the profile (cost_ns): starting the profilers; stopping them and
writing their files to a temporary folder. Every size is measured in turn, several times, and the medians are
reported, with the number of calls of operators, by which the time at the end grows. The table also has the
mean time of a step inside and outside of the window.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from benchmarks.environment import add_out, save
from tdcore.hooks.pytorch import Hook

_FIRST = 5  # steps before the window, and after it
_WIDTH = 64
# (layers, steps, operators, Python functions)
_CASES = (
    (8, 5, True, False),
    (8, 50, True, False),
    (50, 5, True, False),
    (50, 5, True, True),
    (50, 5, False, True),
    (50, 50, True, False),
)


def measure(layers: int, steps: int, operators: bool, python: bool) -> dict[str, float]:
    """One training with one window: times in milliseconds, and the number of calls of operators."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(16, _WIDTH)
    times = []
    with tempfile.TemporaryDirectory() as folder:
        hook = Hook(
            Path(folder) / "run",
            save_config=td.SaveConfig(start_step=1 << 40),
            profiler_config=td.ProfilerConfig(
                start_step=_FIRST, num_steps=steps, operators=operators, python=python
            ),
        )
        hook.register_module(model)
        for _ in range(_FIRST + steps + _FIRST):
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            times.append((time.perf_counter() - begin) * 1000)
        hook.close()
        (profile,) = td.create_trial(Path(folder) / "run").profiles()
        cost: dict[str, int] = profile.document["cost_ns"]
        calls = sum(profile.operators().column("calls").to_pylist()) if operators else 0
        size = profile.nbytes
    return {
        "begin_ms": cost["start"] / 1e6,
        "end_ms": cost["stop"] / 1e6,
        "calls": float(calls),
        "stored_bytes": float(size),
        "step_ms": statistics.median(times[1:_FIRST] + times[_FIRST + steps + 1 :]),
        "profiled_step_ms": statistics.median(times[_FIRST + 1 : _FIRST + steps]),
    }


def main() -> None:
    """Measure, print a table, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each size")
    add_out(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds: list[list[dict[str, float]]] = [
        [measure(*case) for case in _CASES] for _ in range(arguments.rounds)
    ]
    rows: list[dict[str, Any]] = []
    for at, (layers, steps, operators, python) in enumerate(_CASES):
        medians = {name: statistics.median(each[at][name] for each in rounds) for name in rounds[0][at]}
        row = {"layers": layers, "steps": steps, "operators": operators, "python": python, **medians}
        rows.append(row)
        print(
            f"{layers:3} layers, {steps:3} steps, operators {operators!s:5}, Python {python!s:5}: "
            f"{medians['calls']:8,.0f} calls, begin {medians['begin_ms']:6.1f} ms, "
            f"end {medians['end_ms']:7.1f} ms; step {medians['step_ms']:.2f} ms, "
            f"in the window {medians['profiled_step_ms']:.2f} ms"
        )
    document = {"method": __doc__, "rounds": arguments.rounds, "rows": rows}
    print("saved", save("profile_cost", document, arguments.out))


if __name__ == "__main__":
    main()
