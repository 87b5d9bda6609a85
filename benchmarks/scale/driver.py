"""Command line of the benchmark: writes runs, runs each question in a new process, prints the tables."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT, add_out, save
from benchmarks.scale.make import Shape, make_run
from benchmarks.scale.questions import OTHERS, QUESTIONS, RULES

__all__ = ["run"]

_METHOD = (
    "Each question is answered in a new process; the clock starts after the imports. CPU is user and system "
    "time of the process. Peak memory includes the imports, whose share is of_imports_mb. All files are in "
    "the page cache."
)


def run() -> None:
    """Parse the command line, measure, print and save."""
    options = _options()
    result: dict[str, Any] = {"method": _METHOD, "runs": []}
    (ROOT / "build").mkdir(exist_ok=True)
    for shape in _AXES if options.axes else _shapes(options):
        with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
            folder = options.keep / f"{shape}" if options.keep else Path(name) / "run"
            result["runs"].append(_measured(folder, shape, options))
    _print(result)
    print("saved", save("scale.axes" if options.axes else "scale", result, options.out))


# Runs of 1,000,000 rows that differ in one number from the first one.
_AXES = [
    Shape(rows=10**6),
    *(Shape(rows=10**6, names=names) for names in (100, 10_000)),
    *(Shape(rows=10**6, names=100, workers=workers) for workers in (1, 10, 100, 1000)),
    *(Shape(rows=10**6, attempts=attempts) for attempts in (5, 50)),
]


def _shapes(options: argparse.Namespace) -> list[Shape]:
    fixed = {"names": options.names, "workers": options.workers, "attempts": options.attempts}
    return [Shape(rows=int(rows), **fixed) for rows in options.rows]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Queries on runs of many rows.")
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--names", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--axes", action="store_true", help="runs that differ in names, workers or attempts")
    parser.add_argument("--no-merge", action="store_true", help="leave the files as the flusher wrote them")
    parser.add_argument("--no-rules", action="store_true")
    parser.add_argument("--only", nargs="+", help="only these questions")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one question")
    parser.add_argument("--keep", type=Path, help="folder for the runs, which are used again")
    add_out(parser)
    return parser.parse_args()


def _measured(folder: Path, shape: Shape, options: argparse.Namespace) -> dict[str, Any]:
    """Write a run, merge its files, and measure each query."""
    load = os.getloadavg()[0]  # of the last minute: other programs increase the CPU time
    done: dict[str, Any] = {
        "load": load,
        "shape": {name: getattr(shape, name) for name in Shape.__dataclass_fields__},
    }
    if not (folder / "run.json").exists():
        start = time.perf_counter()
        done["made"] = make_run(folder, shape)
        done["made"]["seconds"] = time.perf_counter() - start
        if not options.no_merge:
            done["merged"] = _merged(folder)
    names = [name for name in {**QUESTIONS, **OTHERS} if not (options.no_rules and name in RULES)]
    for name in names:
        if options.only and name not in options.only:
            continue
        done[name] = ask(name, folder, options.limit)
        print(f"{shape.rows:>12,} rows  {name:28} {line(done[name])}", flush=True)
    return done


def _merged(folder: Path) -> dict[str, Any]:
    """Merge the files as `tdcore merge` does; returns the number of files and the time."""
    from tdcore.maintenance.merge_run import merge_run

    start = time.perf_counter()
    results = merge_run(folder, gone=True)
    return {"files": sum(each.after for each in results), "seconds": time.perf_counter() - start}


def ask(name: str, folder: Path, limit: float) -> dict[str, Any]:
    """Answer one question in a new process; the reason if there is no answer."""
    command = [sys.executable, "-m", "benchmarks.scale.questions", name, str(folder)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {limit:g} s"}
    for text in done.stdout.splitlines():
        if text.startswith("RESULT "):
            return dict(json.loads(text.removeprefix("RESULT ")))
    return {"error": done.stderr.strip().splitlines()[-1:] or f"exit code {done.returncode}"}


def line(answer: dict[str, Any]) -> str:
    """The measurement of one question as text."""
    if "error" in answer:
        return str(answer["error"])
    return f"{answer['cpu_s']:8.2f} s CPU {answer['seconds']:8.2f} s {answer['peak_mb']:8,.0f} MB"


def _print(result: dict[str, Any]) -> None:
    """Print CPU and memory of each question, and the growth to the next larger run."""
    from rich.console import Console
    from rich.table import Table

    table = Table("question", title="CPU seconds, peak MB and growth of CPU with the rows")
    for each in result["runs"]:
        table.add_column(_title(Shape(**each["shape"])), justify="right")
    for name in {**QUESTIONS, **OTHERS}:
        cells, before = [], None
        for each in result["runs"]:
            answer = each.get(name, {"error": "-"})
            rows = each["shape"]["rows"]
            grown = before is not None and before["rows"] < rows and "cpu_s" in answer
            factor = f"  x{answer['cpu_s'] / before['cpu_s']:.1f}" if before is not None and grown else ""
            if "cpu_s" not in answer:
                cells.append("-")
                continue
            before = {"rows": rows, "cpu_s": answer["cpu_s"]}
            cells.append(f"{answer['cpu_s']:.2f} s {answer['peak_mb']:,.0f} MB{factor}")
        table.add_row(name, *cells)
    Console(width=max(100, 24 + 24 * len(result["runs"]))).print(table)


def _title(shape: Shape) -> str:
    """The numbers of a run that differ from the usual ones."""
    usual = Shape(rows=shape.rows)
    fields = [("names", shape.names), ("workers", shape.workers), ("attempts", shape.attempts)]
    differing = [f"{number:,} {name}" for name, number in fields if number != getattr(usual, name)]
    return "\n".join([f"{shape.rows:,} rows", *differing])
