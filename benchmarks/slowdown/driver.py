"""Run the cells in turn, each in a process of its tool's environment, and report.

No other programs should run during the benchmark. Pairs of blocks in which other processes used more than a
share (6 %) of the cores are discarded. A cell with too few remaining pairs is run again. A cell that still
has too few pairs gets no result.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.environment import ROOT, add_out, commit, describe
from benchmarks.models import WORKLOADS
from benchmarks.slowdown.cells import COLLECTIONS, Cell
from benchmarks.slowdown.costs import CostModel, Summary, fit, summarize
from benchmarks.slowdown.plot import draw
from benchmarks.slowdown.report import flat_rows, show, write_parquet
from benchmarks.slowdown.tools import TOOLS, ToolEntry

Key = tuple[str, str, str, int, int]
_TIMEOUT = 900
_RETRIES = 2
# By interval: number of steps in a block with saving, and number of pairs of blocks in a round.
_BLOCKS = {2: (8, 3), 1: (10, 3), 10: (20, 4), 50: (100, 2)}
_CHECK_INTERVAL = 50
_WIDTH = 170


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Slowdown of training against save interval; docs/benchmarks.md explains the method."
    )
    parser.add_argument("--models", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--tools", nargs="+", choices=list(TOOLS), default=list(TOOLS))
    parser.add_argument("--collections", nargs="+", choices=list(COLLECTIONS), default=list(COLLECTIONS))
    parser.add_argument(
        "--intervals", nargs="+", type=int, choices=list(_BLOCKS), default=list(_BLOCKS), help="to measure"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="number of runs of each cell of the first model"
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument(
        "--busy-share",
        type=float,
        default=0.06,
        help="share of all cores that other processes may use, 0 to 1",
    )
    parser.add_argument(
        "--show", type=Path, metavar="JSON", help="measure nothing; print the results in this file"
    )
    parser.add_argument(
        "--quick", action="store_true", help="ResNet-18, tdcore (folder and bucket) and by hand"
    )
    add_out(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.models, chosen.tools, chosen.rounds = ["resnet18"], ["none", "tdcore", "tdcore-s3", "numpy"], 1
        chosen.collections = ["all", "losses", "statistics"]
    return chosen


def primary(entry: ToolEntry) -> str:
    """The collection in which a tool records the most."""
    return next(name for name in ("all", "statistics", "losses") if name in entry.collections)


def plan(chosen: argparse.Namespace, *, again: bool = False) -> list[Cell]:
    """The cells of one round, tools in turn within each collection and interval.

    The first model is measured at all intervals, the other models at 1 and 2. again: a later round, which has
    only the first model at 2 and 10, with the largest collection of each tool.
    """
    cells = []
    for place, model in enumerate(chosen.models[: 1 if again else None]):
        intervals = (2, 10) if again else (1, 2) if place > 0 else chosen.intervals
        for interval in filter(intervals.__contains__, chosen.intervals):
            cells += [
                _cell(chosen, model, tool, collection, interval)
                for collection in chosen.collections
                for tool in chosen.tools
                if _is_measured(tool, collection, interval, peers_lesser=place == 0 and not again)
                and not (again and collection != primary(TOOLS[tool]) and collection != "statistics")
            ]
    if "resnet18" in chosen.models and not (chosen.quick or again):
        busy = [
            tool for tool in ("tdcore", "smdebug") if tool in chosen.tools and "all" in chosen.collections
        ]
        cells += [_cell(chosen, "resnet18", tool, "all", 2, threads=2) for tool in busy]
    return cells


def _is_measured(tool: str, collection: str, interval: int, *, peers_lesser: bool) -> bool:
    """Whether a cell is measured. At interval 2: all collections of tdcore, the largest collection of peers.

    peers_lesser: at interval 2, all collections of peers too. At other intervals: the largest collection of
    tools that record values, and tdcore's statistics. At the largest interval, which checks the estimates:
    tdcore's values.
    """
    entry = TOOLS[tool]
    if collection not in entry.collections:
        return False
    most = collection == primary(entry) or (tool == "tdcore" and collection == "statistics")
    if interval == 2:
        return most or peers_lesser or tool == "tdcore"
    if interval == _CHECK_INTERVAL:
        return tool == "tdcore" and collection == "all"
    return most and (tool == "none" or "all" in entry.collections)


def _cell(
    chosen: argparse.Namespace, model: str, tool: str, collection: str, interval: int, threads: int = 1
) -> Cell:
    block, pairs = _BLOCKS[interval]
    return Cell(
        model=model,
        tool=tool,
        collection=collection,
        interval=interval,
        block=block,
        pairs=pairs,
        threads=threads,
        device=chosen.device,
    )


def interpreter(entry: ToolEntry) -> Path | None:
    """Python of the tool's environment; None if there is no such environment."""
    if not entry.environment:
        return Path(sys.executable)
    path = ROOT / ".venvs" / entry.environment / "bin" / "python"
    return path if path.exists() else None


def missing_tools(names: Iterable[str]) -> dict[str, str]:
    """Tools that cannot be measured, with the reasons."""
    out = {}
    for name in names:
        entry = TOOLS[name]
        if interpreter(entry) is None:
            failed = ROOT / ".venvs" / f"{entry.environment}.failed.txt"
            why = failed.read_text().strip().splitlines()[-1] if failed.exists() else "no such environment"
            out[name] = f"{why}; create it with: python3 scripts/make_peers.py {entry.environment}"
    return out


def run_cell(cell: Cell) -> dict[str, Any]:
    """Run one worker. Returns its result, or {"error": ...}."""
    python = interpreter(TOOLS[cell.tool])
    (ROOT / "build").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(dir=ROOT / "build", prefix="slowdown-")
    command = [str(python), "-m", "benchmarks.slowdown.worker", json.dumps(cell.to_json_dict()), folder]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {_TIMEOUT} s"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    return {"error": (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]}


class Measurements:
    """Results of the workers, by cell."""

    def __init__(self, busy_share: float) -> None:
        self.busy_share = busy_share
        self.environment: dict[str, Any] = {}  # from an earlier run whose results are printed again
        self.unsaved_s = 0.0  # cost of a step that saves nothing
        self.results: dict[Key, list[dict[str, Any]]] = {}
        self.errors: dict[Key, str] = {}

    def add(self, cell: Cell, result: dict[str, Any]) -> None:
        """Store a result or an error."""
        if "error" in result:
            self.errors[cell.key] = result["error"]
        else:
            self.results.setdefault(cell.key, []).append(result)

    def summaries(self) -> dict[Key, Summary]:
        """A summary per cell."""
        return {key: summarize(results, self.busy_share) for key, results in self.results.items()}

    def disturbed(self) -> set[Key]:
        """Cells with too few pairs, because other processes used the cores."""
        return {key for key, summary in self.summaries().items() if summary.slowdown is None}


def measure(chosen: argparse.Namespace, console: Console) -> Measurements:
    """Run all rounds, and then the disturbed cells again."""
    absent = missing_tools(chosen.tools)
    for name, why in absent.items():
        console.print(f"[yellow]not measured: {TOOLS[name].title}: {why}")
    chosen.tools = [name for name in chosen.tools if name not in absent]
    one_round = plan(chosen)
    todo = one_round + plan(chosen, again=True) * (chosen.rounds - 1)
    found = Measurements(chosen.busy_share)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(todo))
        for attempt in range(1 + _RETRIES):
            for cell in todo:
                progress.update(
                    task, description=f"{cell.model} {cell.tool} {cell.collection} {cell.interval}"
                )
                found.add(cell, run_cell(cell))
                progress.advance(task)
            disturbed = found.disturbed() if attempt < _RETRIES else set()
            todo = [cell for cell in one_round if cell.key in disturbed]
            progress.update(task, total=(progress.tasks[0].total or 0) + len(todo))
    found.unsaved_s = unsaved_step_seconds()
    return found


def cost_model(found: Measurements) -> CostModel | None:
    """Fit the cost model to the time inside the hook in tdcore's cells at interval 2; None for too few cells.

    The hook measures this time with its own clock, because differences of whole steps are too noisy.
    """
    rows = []
    for (_, tool, collection, interval, _), one in found.summaries().items():
        if tool == "tdcore" and interval == 2 and one.inside_s is not None:
            only = collection == "statistics"
            moved = (0.0, one.bytes_per_save) if only else (one.bytes_per_save, 0.0)
            rows.append((*moved, one.tensors_per_save, one.inside_s))
    return fit(rows, per_unsaved_step=found.unsaved_s) if len(rows) >= 4 else None


def unsaved_step_seconds() -> float:
    """Cost of the hook in a step without a save, which is too small for the measurement of a cell."""
    from benchmarks.hook_cost import unsaved

    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        return max(0.0, unsaved(Path(folder), rounds=100)["unsaved"]) * 1e-6


def save(stem: Path, found: Measurements, rows: list[dict[str, Any]], costs: CostModel | None) -> None:
    """Write <stem>.json with all results, also those of each worker."""
    document = {
        "environment": found.environment or describe(),
        "method": "docs/benchmarks.md",
        "busy_share": found.busy_share,
        "unsaved_s": found.unsaved_s,
        "errors": {" ".join(map(str, key)): why for key, why in found.errors.items()},
        "cost_model": None if costs is None else costs.to_json_dict(),
        "rows": rows,
        "workers": [result for results in found.results.values() for result in results],
    }
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_name(f"{stem.name}.json").write_text(json.dumps(document) + "\n")


def load(path: Path) -> Measurements:
    """Read results that save() wrote."""
    document = json.loads(path.read_text())
    found = Measurements(document["busy_share"])
    found.environment = document["environment"]
    found.unsaved_s = document.get(
        "unsaved_s", (document.get("cost_model") or {}).get("per_unsaved_step", 0.0)
    )
    for result in document["workers"]:
        found.add(Cell(**result["cell"]), result)
    for text, why in document["errors"].items():
        model, tool, collection, interval, threads = text.split()
        found.errors[model, tool, collection, int(interval), int(threads)] = why
    return found


def run() -> None:
    """`python -m benchmarks slowdown`."""
    chosen, console = options(), Console()
    console.width = max(console.width, _WIDTH)  # the tables are wide, and numbers must not be cut
    name = f"slowdown.{commit().rstrip('+')}" + (".quick" if chosen.quick else "")
    stem = chosen.show.with_suffix("") if chosen.show else chosen.out / name
    found = load(chosen.show) if chosen.show else measure(chosen, console)
    save(stem, found, [], None)  # save before the next steps, which may fail
    summaries = found.summaries()
    costs = cost_model(found)
    rows = flat_rows(summaries)
    save(stem, found, rows, costs)
    show(console, summaries, found.errors, costs)
    write_parquet(rows, stem.with_name(f"{stem.name}.parquet"))
    draw(rows, stem)
    console.print(f"saved {stem}.json, .parquet, .png, .svg")


__all__ = ["run"]
