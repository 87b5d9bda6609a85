"""Start the workers in turn, collect their rows, print and save them."""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.environment import ROOT, add_out, save
from benchmarks.gpu.plan import COLLECTIONS, WORKLOADS
from benchmarks.gpu.report import show

_LEAST_SECONDS = 15.0  # with less time, a worker would end before its first row


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Slowdown of trainings on a GPU; docs/benchmarks.md explains the method."
    )
    measured = [name for name in WORKLOADS if name != "tiny"]
    parser.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=measured)
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--device", choices=["cuda", "simulated"], default="cuda")
    parser.add_argument("--pairs", type=int, default=3, help="number of pairs of blocks of a cell")
    parser.add_argument(
        "--ring-bytes",
        type=int,
        default=1 << 31,
        help="size of the ring in host memory; must hold the saved tensors of a block",
    )
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each worker")
    parser.add_argument(
        "--seconds",
        type=float,
        help="seconds for the whole benchmark: no worker starts or continues after this time",
    )
    parser.add_argument("--quick", action="store_true", help="measure only interval 10")
    add_out(parser)
    return parser.parse_args()


def run() -> None:
    """Run the benchmark. Exits with 1 if a worker failed; the results of the other workers are saved."""
    chosen = options()
    if chosen.device == "cuda" and not _cuda():
        sys.exit("torch found no CUDA device; use --device simulated to check that the benchmark works")
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    path = None
    begun = time.monotonic()
    for mode in chosen.modes:
        for model in chosen.models:
            left = math.inf if chosen.seconds is None else chosen.seconds - (time.monotonic() - begun)
            found, error = _work(chosen, model, mode, min(chosen.timeout, left))
            rows += found
            if error:
                failed[f"{model}, {mode}"] = error
                print(f"{model}, {mode}: failed\n{error}", file=sys.stderr)
            path = save("gpu", _document(chosen, rows, failed), chosen.out)
    show(rows)
    print("saved", path)
    sys.exit(1 if failed else 0)


def _document(
    chosen: argparse.Namespace, rows: list[dict[str, Any]], failed: dict[str, str]
) -> dict[str, Any]:
    return {
        "method": "docs/benchmarks.md",
        "device": _device() if chosen.device == "cuda" else "simulated: no measurement",
        "models": {name: WORKLOADS[name].title for name in chosen.models},
        "collections": COLLECTIONS,
        "failed": failed,
        "rows": rows,
    }


def _work(
    chosen: argparse.Namespace, model: str, mode: str, seconds: float
) -> tuple[list[dict[str, Any]], str]:
    """Rows of one worker, and the reason if the worker ended early."""
    if seconds < _LEAST_SECONDS:
        return [], "no time was left for it"
    job = {
        "model": model,
        "mode": mode,
        "device": chosen.device,
        "pairs": chosen.pairs,
        "quick": chosen.quick,
        "ring_bytes": chosen.ring_bytes,
        "warm_up": 3 if chosen.device == "simulated" else 12,
    }
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, "-m", "benchmarks.gpu.worker", json.dumps(job), folder]
        try:
            code = subprocess.run(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        output.seek(0)
        lines = output.read().splitlines()
    rows = [json.loads(line.removeprefix("ROW ")) for line in lines if line.startswith("ROW ")]
    if code == 0:
        return rows, ""
    why = f"took more than {seconds:.0f} s\n" if code == -1 else ""
    return rows, why + "\n".join([line for line in lines if not line.startswith("ROW ")][-30:])


def _cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _device() -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "driver": driver.stdout.strip().splitlines()[:1],
    }
