"""Stall of the training thread per captured byte: ResNet-18, 32 x 32, batch 16, all tensors, one torch
thread.

Each tool trains in a process of its own, saves at even steps and not at odd ones, and the processes take
turns. The stall is the
median over pairs of (saved step - unsaved step). Beside it: memcpy of the same bytes, tensor by tensor, into
memory
touched before, measured between the steps of the same process.
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

from benchmarks.environment import ROOT, save

PEER = ROOT / ".venvs" / "smdebug" / "bin" / "python"


def measure_tdcore(steps: int, save_raw: bool) -> dict[str, Any]:
    import torch
    from torch import nn

    import tdcore as td
    from benchmarks.models import ResNet18
    from benchmarks.peers.loop import paired_stall, step_times
    from tdcore.hooks.pytorch import Hook

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, criterion = ResNet18(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        hook = Hook(
            str(Path(folder) / "run"),
            save_config=td.SaveConfig(save_interval=2),
            save_all=True,
            reduction_config=None if save_raw else td.ReductionConfig(reductions=["mean"], norms=["l2"]),
            ring=td.RingConfig(ring_bytes=512 << 20),
        )
        hook.register_module(model)
        hook.register_loss(criterion)
        times = step_times(model, criterion, optimizer, steps)
        counters = hook.counters()
        hook.close()
    saved = len(range(0, steps, 2))
    result: dict[str, Any] = paired_stall(times, warm_up=4)
    result |= {
        "bytes_per_saved_step": counters.payload_bytes / saved,
        "tensors_per_saved_step": counters.tensors / saved,
        "inside_capture_s": counters.capture_ns / saved / 1e9,
        "drops": {reason: drop.tensors for reason, drop in counters.drops.items()},
        "flusher_cpu_s": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        + resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime,
        "memcpy_s": memcpy_seconds(int(counters.payload_bytes / saved), int(counters.tensors / saved)),
    }
    return result


def memcpy_seconds(nbytes: int, tensors: int) -> float:
    """Median seconds to copy `nbytes` split evenly over `tensors` arrays into memory touched before."""
    import numpy as np

    if nbytes == 0:
        return 0.0
    sources = [np.ones(nbytes // tensors, np.uint8) for _ in range(tensors)]
    targets = [np.zeros_like(source) for source in sources]
    times = []
    for _ in range(15):
        start = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def child(python: Path | str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    raise SystemExit(f"{arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds of what varies."""
    out: dict[str, Any] = {"rounds": rounds}
    for key in ("stall_median_s", "bytes_per_saved_step", "unsaved_median_s", "memcpy_s", "inside_capture_s"):
        if key in rounds[0]:
            out[key] = statistics.median(one[key] for one in rounds)
    if out["bytes_per_saved_step"] > 1e6:  # statistics alone move next to nothing
        out["stall_ns_per_byte"] = out["stall_median_s"] / out["bytes_per_saved_step"] * 1e9
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=44)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=["all", "statistics"])
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    if options.child:
        print("RESULT " + json.dumps(measure_tdcore(options.steps, options.child == "all")))
        return
    results: dict[str, list[dict[str, Any]]] = {
        "tdcore, all tensors": [],
        "tdcore, statistics of all tensors": [],
    }
    if PEER.exists():
        results["smdebug 1.0.34, all tensors"] = []
    else:
        print(f"{PEER} is not there: the older library is not measured (requirements/peer-smdebug.txt)")
    steps = str(options.steps)
    for _ in range(options.rounds):
        for name, rounds in results.items():
            if name.startswith("smdebug"):
                rounds.append(child(PEER, "benchmarks/peers/smdebug_stall.py", steps))
            else:
                what = "statistics" if "statistics" in name else "all"
                rounds.append(
                    child(sys.executable, "-m", "benchmarks.stall", "--child", what, "--steps", steps)
                )
    report({name: summary(rounds) for name, rounds in results.items()}, options.steps)


def report(results: dict[str, dict[str, Any]], steps: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "tool", "stall per saved step", "bytes", "ns per byte", "of memcpy", title=f"ResNet-18, {steps} steps"
    )
    memcpy = results["tdcore, all tensors"]
    limit = memcpy["memcpy_s"] / memcpy["bytes_per_saved_step"] * 1e9
    for name, one in results.items():
        per_byte = one.get("stall_ns_per_byte")
        table.add_row(
            name,
            f"{one['stall_median_s'] * 1e3:.1f} ms",
            f"{one['bytes_per_saved_step'] / 1e6:.1f} MB",
            f"{per_byte:.3f}" if per_byte else "",
            f"{per_byte / limit:.2f} x" if per_byte else "",
        )
    table.add_row(
        "memcpy",
        f"{memcpy['memcpy_s'] * 1e3:.1f} ms",
        f"{memcpy['bytes_per_saved_step'] / 1e6:.1f} MB",
        f"{limit:.3f}",
        "1",
    )
    Console().print(table)
    path = save("stall", {"method": "benchmarks/stall.py", "memcpy_ns_per_byte": limit, "results": results})
    print("saved", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
