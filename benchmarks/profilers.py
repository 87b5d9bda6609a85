"""Slowdown of a training by profilers that are always on: tdcore, py-spy, torch.profiler, others.

A perceptron (3 layers, batches of 64) and a CNN (3 convolutions, batches of 32 images of 32 x 32) are trained
with Adam and a DataLoader without worker processes, on one torch thread. Each tool and model has a process of
its own, in the environment of the tool. A block of steps with the tool and a block without it alternate, and
the order within a pair changes. The tool is switched on before a block and off after it, outside of the
measured time, and 5 steps before each block are not measured. Results are medians over pairs with a 95 %
bootstrap interval.

step            ratio of the times of a step, without the time in which the training thread is ready to run
                and waits for a core (from the kernel's scheduler). So other processes of a busy machine
                count little, and the time in which a profiler stops the training counts
wall            ratio of the elapsed times of a step
cpu             ratio of the CPU times of the training thread
helpers         CPU seconds of all other threads and processes of the tool per 1,000 steps in the long block,
                without the start and the end of the tool
files           bytes per 1,000 steps in the long block, with files of a constant size; TraceML: in all blocks
waited          seconds that the training waits when the tool begins and ends, in the long block

tdcore runs in this environment, and saves no tensors: it records the times of steps and samples of the
machine. smdebug and the other peers have the environments of scripts/make_peers.py. smdebug's hooks cannot be
removed from a model, so smdebug has a separate model. The sampling thread of TraceML also runs in the blocks
without TraceML.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, add_out, save
from benchmarks.slowdown.costs import bootstrap

WORKER = ROOT / "benchmarks" / "peers" / "profiled_training.py"
MODELS = ("mlp", "cnn")
# Name -> content of its records
TOOLS = {
    "nothing": "-",
    "tdcore": "all steps, with phases; a sample of the machine every 0.5 s",
    "tdcore-no-times": "a sample of the machine every 0.5 s",
    "py-spy": "100 samples of the stack per second",
    "py-spy-nonblocking": "100 samples of the stack per second",
    "torch.profiler": "all operators of all steps",
    "torch.profiler-shapes": "all operators of all steps, with shapes",
    "cProfile": "totals of all Python functions",
    "smdebug": "all steps and modules",
    "traceml": "all steps, with phases; a sample of the machine every 2 s",
}
ENVIRONMENTS = {"smdebug": "smdebug", "traceml": "profilers"}  # the others run in this environment
NEEDED = {**ENVIRONMENTS, "py-spy": "profilers", "py-spy-nonblocking": "profilers"}


def peer_bin(environment: str) -> Path:
    """The folder of the programs of a peer's environment."""
    return ROOT / ".venvs" / environment / "bin"


def command_of(tool: str, folder: Path) -> list[str]:
    """The command that starts the worker, without the worker's arguments."""
    if tool == "traceml":
        options = ["--mode", "summary", "--logs-dir", str(folder / "logs"), "--run-name", "run"]
        return [str(peer_bin("profilers") / "traceml"), "run", *options, str(WORKER), "--args"]
    if tool in ENVIRONMENTS:
        return [str(peer_bin(ENVIRONMENTS[tool]) / "python"), str(WORKER)]
    return [sys.executable, str(WORKER)]


def in_process(tool: str, model: str, seconds: float, steps: int, long_steps: int) -> dict[str, Any]:
    """Measure a tool in a process of its own. Returns the worker's document, or its error."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    if tool == "tdcore-no-times":
        environment["TDCORE_STEP_TIMES"] = "off"
    if tool in ENVIRONMENTS:
        programs = str(peer_bin(ENVIRONMENTS[tool]))
        environment["PATH"] = programs + os.pathsep + environment.get("PATH", "")
    if tool == "traceml":  # starts the training, so its own processes are not descendants of the training
        environment["BENCHMARK_ROOT_PROCESS"] = str(os.getpid())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        arguments = [tool, model, str(seconds), str(steps), str(long_steps), str(work)]
        try:
            done = subprocess.run(
                [*command_of(tool, folder), *arguments],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=900,
            )
            found: dict[str, Any] = json.loads((work / "result.json").read_text())
        except FileNotFoundError:
            return {"error": (done.stdout + done.stderr)[-2000:]}
        except subprocess.TimeoutExpired:
            return {"error": "the worker did not end within 900 seconds"}
        if tool == "traceml":
            size = sum(path.stat().st_size for path in (folder / "logs").rglob("*") if path.is_file())
            found["facts"] = {"bytes_of_run": size}
            found["long"]["bytes"] = size * found["long"]["steps"] / found["profiled_steps"]
        return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The results of a worker's document: ratios over pairs, and numbers per 1,000 steps."""
    pairs, long = found["pairs"], found["long"]
    ratios = {
        name: asdict(bootstrap([pair["on"][key] / pair["off"][key] for pair in pairs]))
        for name, key in (("step", "own"), ("wall", "wall"), ("cpu", "thread"))
    }
    steps = long["steps"] / 1000
    return {
        **ratios,
        "step_ms": 1000 * bootstrap([pair["off"]["own"] for pair in pairs]).median,
        "helpers_s": max(0.0, long["running_helpers_s"]) / steps,
        "files_bytes": long["bytes"] / steps,
        "waited_s": long["waited_s"],
    }


def show(tool: str, model: str, result: dict[str, Any]) -> None:
    """Print one row of the table."""
    parts = [
        f"{name} {result[name]['median']:.3f} [{result[name]['low']:.3f}, {result[name]['high']:.3f}]"
        for name in ("step", "wall", "cpu")
    ]
    print(
        f"{model} {tool:22} {'  '.join(parts)}  step {result['step_ms']:.1f} ms, helpers "
        f"{result['helpers_s']:.2f} s, {result['files_bytes']:,.0f} bytes, waited {result['waited_s']:.2f} s",
        flush=True,
    )


def main() -> None:
    """Measure, print and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="time for the pairs of a tool and a model")
    parser.add_argument("--steps", type=int, default=40, help="steps of a block")
    parser.add_argument(
        "--long-steps", type=int, default=500, help="steps of the block for the size of files"
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    add_out(parser)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for model in options.models:
        for tool in options.tools:
            row: dict[str, Any] = {"model": model, "tool": tool, "records": TOOLS[tool]}
            rows.append(row)
            if tool in NEEDED and not peer_bin(NEEDED[tool]).exists():
                row["error"] = f"not installed: python3 scripts/make_peers.py {NEEDED[tool]}"
            else:
                found = in_process(tool, model, options.seconds, options.steps, options.long_steps)
                row |= found if "error" in found else {**summary(found), **found}
            if "error" in row:
                print(f"{model} {tool:22} not measured: {row['error']}", flush=True)
            else:
                show(tool, model, row)
    document = {"method": __doc__, "steps": options.steps, "rows": rows}
    print("saved", save("profilers", document, options.out))


if __name__ == "__main__":
    main()
