"""Time that a training waits for its saved steps, if the values of all weights are large.

A model of square linear layers saves the values of all weights every few steps. A pause in each step stands
for the computation of a large model; on the CPU only the last layer is trained. Each
round measures in turn, each in a new process: no hook; the sizes that were the defaults of earlier versions
(`RingConfig(ring_bytes=2**28)`); and the sizes that tdcore chooses. The table has, for the first saved step
and as the median of the later ones, the time inside the hook, and the peak memory of the training process,
which includes the ring. Ratios compare measurements of the same round.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from benchmarks.environment import ROOT, add_out, save
from tdcore import _core
from tdcore.hooks.pytorch import Hook

_CASES = ("no hook", "256 MiB", "chosen")
_SETTINGS = ("width", "layers", "interval", "saved", "pause")
_BATCH = 1


def train(
    case: str, width: int, layers: int, interval: int, saved: int, pause: float, folder: str
) -> dict[str, float]:
    """Train in this process. Times in seconds, sizes in bytes."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
    model[:-1].requires_grad_(False)
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=1e-3)
    batch = torch.randn(_BATCH, width)
    hook = None
    if case != "no hook":
        hook = Hook(
            Path(folder) / "run",
            save_config=td.SaveConfig(save_interval=interval),
            include_collections=["weights"],
            ring=td.RingConfig() if case == "chosen" else td.RingConfig(ring_bytes=1 << 28),
        )
        hook.register_module(model)
    steps, stalls, ring = [], [], 0
    for step in range(interval * saved):
        begin, spent = time.perf_counter(), hook.time_spent() if hook is not None else None
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(pause)
        steps.append(time.perf_counter() - begin)
        if hook is not None and spent is not None and step % interval == 0:
            stalls.append((hook.time_spent() - spent).total_seconds())
            ring = max(ring, hook._ring.memory_bytes)
    found = {"step_s": statistics.median(steps), "values_bytes": 4.0 * width * width * layers}
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    if hook is not None:
        waited = hook._ring.load()[2] / 1e9
        report = hook.close()
        if report is None or not report.drained or report.counters.drops:
            raise SystemExit(f"the run is not complete: {report}")
        found |= {"first_s": stalls[0], "later_s": statistics.median(stalls[1:]), "ring_bytes": float(ring)}
        found |= {"waited_s": waited, "close_s": report.waited.total_seconds()}
    return found


def measure(case: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run train() in a new process."""
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        settings = [getattr(arguments, name) for name in _SETTINGS]
        job = json.dumps([case, *settings, folder])
        command = [sys.executable, "-m", "benchmarks.large_model", "--job", job]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    """Measure, print a table, and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=4096, help="width of a layer")
    parser.add_argument("--layers", type=int, default=14, help="layers of 64 MiB at the default width")
    parser.add_argument("--interval", type=int, default=8, help="save_interval")
    parser.add_argument("--saved", type=int, default=4, help="saved steps of each training")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds in each step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="parent of the runs: the disk to measure")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    add_out(parser)
    arguments = parser.parse_args()
    if arguments.job:
        print(json.dumps(train(*json.loads(arguments.job))))
        return
    available = _core.available_memory_bytes()
    rounds = []
    for number in range(arguments.rounds):
        order = _CASES if number % 2 == 0 else _CASES[::-1]
        measured = {case: measure(case, arguments) for case in order}
        rounds.append(measured)
        print(number, {case: {k: round(v, 3) for k, v in measured[case].items()} for case in _CASES})
    names = ("first_s", "later_s", "waited_s")
    ratios = {
        name: [each["chosen"][name] / max(each["256 MiB"][name], 1e-9) for each in rounds] for name in names
    }
    table: list[dict[str, Any]] = []
    for case in _CASES:
        row = {name: statistics.median(each[case][name] for each in rounds) for name in rounds[0][case]}
        table.append({"case": case, **row})
        print(case, {name: round(value, 3) for name, value in row.items()})
    for name, found in ratios.items():
        print(f"chosen / 256 MiB, {name}: median {statistics.median(found):.2f} of {sorted(found)}")
    document = {
        "method": __doc__,
        "available_bytes": available,
        "settings": {name: getattr(arguments, name) for name in _SETTINGS},
        "rounds": rounds,
        "medians": table,
        "ratios": ratios,
    }
    print("saved", save("large_model", document, arguments.out))


if __name__ == "__main__":
    main()
