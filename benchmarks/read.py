"""Time to read a run of 1,000,000 index rows: opening, one tensor over all steps, all statistics, all rules.

A session writes the run as in a training: 200 tensors at each step, statistics of all tensors, values of two.
Then each query runs in new processes, in turn. It is compared with the limit (pyarrow reads the same Parquet
files into a table; a plain read of their bytes) and with smdebug on an equal run. smdebug writes slowly, so
the two are compared on a smaller run, of 200 tensors of 64 values each, with all values saved. This run is as
large as smdebug can write it in --peer-seconds; tdcore gets a run of the same size.

All files are in the page cache. Times are medians over processes. Imports are timed separately, together with
the first call of pyarrow (which imports pandas if it is installed). Memory is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, add_out, save

PEER = ROOT / ".venvs" / "smdebug" / "bin" / "python"
PEER_SCRIPT = "benchmarks/peers/smdebug_read.py"
TENSORS = 200
_ELEMENTS = 1024
_SMALL_ELEMENTS = 64
_ASKED = "tensor_7"  # the requested tensor


# Writing runs. -------------------------------------------------------------------------------------


def make_run(folder: Path, steps: int, *, tensors: int = TENSORS, all_values: bool = False) -> dict[str, Any]:
    """Write a run of steps x tensors rows: a loss, the output of a ReLU, then weights and gradients in turn.

    Values differ from step to step: random numbers, with another window and scale at each step. Statistics of
    all tensors are saved. Values are saved for the output of the ReLU and for tensor_7, or for all tensors.
    """
    from tdcore.format.layout import TensorKind
    from tdcore.session import RingConfig, Session

    elements = _SMALL_ELEMENTS if all_values else _ELEMENTS
    numbers = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)
    relu = np.maximum(numbers[: 1 << 18] + np.float32(0.3), 0)
    session = Session(
        folder,
        configuration={},
        framework="none",
        framework_version="0",
        ring=RingConfig(ring_bytes=256 << 20),
    )
    ring = session.ring
    ids = [ring.intern("loss", int(TensorKind.LOSS))]
    ids.append(ring.intern("act_output", int(TensorKind.OUTPUT), "torch.nn.modules.activation.ReLU"))
    ids += [
        ring.intern(f"tensor_{i}", int((TensorKind.WEIGHT, TensorKind.GRADIENT)[i % 2]))
        for i in range(2, tensors)
    ]
    names = array("I", ids)
    flags = bytearray([3 if all_values else 2]) * tensors
    flags[1] = flags[7] = 3
    room = len(numbers) - tensors * elements
    start = time.perf_counter()
    for step in range(steps):
        at = step * 977 % room
        block = numbers[at : at + tensors * elements] * np.float32(1.0 + np.sin(step) / 2)
        values = list(block.reshape(tensors, elements))
        values[0] = np.array([2.0 / (1 + step / 100)], dtype=np.float32)
        values[1] = relu[at % (1 << 17) :][:elements]
        ring.capture(values, names, bytes(flags), step, 1, step)
    session.close()
    seconds = time.perf_counter() - start
    files = list((folder / "index").rglob("*.parquet"))
    return {
        "rows": steps * tensors,
        "write_s": seconds,
        "index_files": len(files),
        "index_bytes": sum(path.stat().st_size for path in files),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
        "files": sum(path.is_file() for path in folder.rglob("*")),
        "drops": session.counters().dropped_tensors,
    }


# Queries, each in its own process. ------------------------------------------------------


def ask_trial(folder: str) -> dict[str, Any]:
    """Run the queries of a user of Trial, one after the other."""
    from tdcore.trial import create_trial

    times: dict[str, Any] = {}
    trial = _timed(times, "open", lambda: create_trial(folder))
    _timed(times, "one tensor, statistics", lambda: trial.stats([_ASKED]))
    tensor = trial.tensor(_ASKED)
    values = _timed(times, "one tensor, all its values", tensor.values)
    some = list(values)[:: max(1, len(values) // 100)]
    times["one value"] = statistics.median(_seconds(partial(tensor.value, step)) for step in some)
    everything = _timed(times, "statistics of everything", trial.stats)
    times["rows"] = everything.num_rows
    return times


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ask_one(folder: str) -> dict[str, Any]:
    """Open the run and read one tensor, in two new trials: its statistics, and its values."""
    from tdcore.trial import create_trial

    times: dict[str, Any] = {}
    _timed(times, "open, one tensor, statistics", lambda: create_trial(folder).stats([_ASKED]))
    _timed(times, "open, one tensor, values", lambda: create_trial(folder).tensor(_ASKED).values())
    return times


def ask_rules(folder: str) -> dict[str, Any]:
    """Run all rules of tdcore, as by `tdcore rules run`."""
    from tdcore.rules import RULES
    from tdcore.rules.runner import run

    times: dict[str, Any] = {}
    report = _timed(times, "all rules", lambda: run(folder, list(RULES.values()), write_findings=False))
    times["rows"] = report.rows
    times["verdicts"] = {verdict.rule: verdict.status.name for verdict in report.verdicts}
    return times


def ask_pyarrow(folder: str) -> dict[str, Any]:
    """The limits: pyarrow alone reads the index into a table, one tensor by a filter, and the bytes."""
    import pyarrow.dataset as ds

    times: dict[str, Any] = {}
    _timed(
        times, "raw bytes", lambda: [path.read_bytes() for path in Path(folder, "index").rglob("*.parquet")]
    )
    dataset = ds.dataset(f"{folder}/index")
    _timed(times, "pyarrow, one tensor", lambda: dataset.to_table(filter=ds.field("name") == _ASKED))
    table = _timed(times, "pyarrow, everything", dataset.to_table)
    times["rows"] = table.num_rows
    return times


QUESTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "trial": ask_trial,
    "one": ask_one,
    "rules": ask_rules,
    "pyarrow": ask_pyarrow,
}


def _timed(times: dict[str, Any], what: str, function: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    answer = function()
    times[what] = time.perf_counter() - start
    return answer


def peak_mb() -> float:
    """Peak memory of this process since it began (getrusage would include the parent's memory)."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


def _imports() -> None:
    import pyarrow.compute
    import pyarrow.dataset

    import tdcore.rules.runner
    import tdcore.trial.captures
    import tdcore.trial.trial_factory  # noqa: F401

    pyarrow.scalar(0)


def ask(question: str, folder: str) -> dict[str, Any]:
    """Run one query in this process, and measure its CPU seconds and peak memory."""
    answer: dict[str, Any] = {}
    _timed(answer, "imports", _imports)
    cpu = time.process_time()
    answer |= QUESTIONS[question](folder)
    answer["cpu_s"] = time.process_time() - cpu
    answer["peak_mb"] = peak_mb()
    return answer


# In turn. ----------------------------------------------------------------------------------------


def child(python: Path | str, *arguments: str) -> dict[str, Any]:
    """Run Python in a child, and return the JSON after RESULT in its output. Raises SystemExit on failure."""
    done = subprocess.run([str(python), *arguments], cwd=ROOT, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return dict(json.loads(line.removeprefix("RESULT ")))
    raise SystemExit(f"{arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def in_turn(asked: dict[str, list[str]], repeats: int) -> dict[str, Any]:
    """Run the commands in turn, `repeats` times. Returns the medians of their results, and all results."""
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    for _ in range(repeats):
        for name, command in asked.items():
            rounds[name].append(child(*command))
    return {name: {"median": _medians(answers), "rounds": answers} for name, answers in rounds.items()}


def _medians(answers: list[dict[str, Any]]) -> dict[str, float]:
    numbers = [key for key, value in answers[0].items() if isinstance(value, int | float)]
    return {key: statistics.median(answer[key] for answer in answers) for key in numbers}


def _question(question: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.read", "--ask", question, "--folder", str(folder)]


def compare_with_peer(folder: Path, rows: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Write equal runs with smdebug and with tdcore, and query both in turn."""
    if not PEER.exists():
        return {
            "not measured": f"{PEER.relative_to(ROOT)} does not exist; run: scripts/make_peers.py smdebug"
        }
    steps = max(1, rows // TENSORS)
    theirs, ours = folder / "smdebug", folder / "tdcore"
    written = child(
        PEER, PEER_SCRIPT, "write", str(theirs), str(TENSORS), str(_SMALL_ELEMENTS), str(steps), str(seconds)
    )
    made = make_run(ours, written["steps"], all_values=True)
    asked = {"smdebug": [str(PEER), PEER_SCRIPT, "read", str(theirs), f"gradient/{_ASKED}"]}
    asked |= {name: _question(name, ours) for name in ("trial", "one", "rules")}
    return {"smdebug wrote": written, "tdcore wrote": made, **in_turn(asked, repeats)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of rows of the run, 200 per step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peer-seconds",
        type=float,
        default=60.0,
        help="seconds for smdebug to write a run; 0: smdebug is not measured",
    )
    parser.add_argument(
        "--keep", type=Path, help="folder of the run; an existing run is used, a new run is kept"
    )
    add_out(parser)
    parser.add_argument("--ask", choices=list(QUESTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print("RESULT " + json.dumps(ask(options.ask, options.folder)))
        return
    (ROOT / "build").mkdir(exist_ok=True)
    result: dict[str, Any] = {"method": __doc__}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = options.keep or Path(name) / "run"
        if not (folder / "run.json").exists():
            result["made"] = make_run(folder, max(1, options.rows // TENSORS))
        result |= in_turn({name: _question(name, folder) for name in QUESTIONS}, options.repeats)
        if options.peer_seconds > 0:
            result["peer"] = compare_with_peer(
                Path(name) / "peer", options.rows, options.peer_seconds, options.repeats
            )
    report(result)
    print("saved", save("read", result, options.out))


def report(result: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    made = result.get("made")
    if made:
        per_row = made["index_bytes"] / made["rows"]
        console.print(
            f"{made['rows']:,} rows in {made['index_files']} index files, {per_row:.1f} bytes per row, "
            f"written in {made['write_s']:.1f} s"
        )
    table = Table("process", "what", "seconds", "of pyarrow", title="reading a run (medians)")
    limit = result["pyarrow"]["median"]["pyarrow, everything"]
    for name in QUESTIONS:
        for what, value in result[name]["median"].items():
            if what == "peak_mb":
                table.add_row(name, "peak memory", f"{value:,.0f} MB", "")
            elif what != "rows":
                table.add_row(name, what, f"{value:.4f}", f"{value / limit:.2f} x")
    console.print(table)
    peer = result.get("peer", {})
    if "not measured" in peer:
        console.print(f"smdebug not measured: {peer['not measured']}")
    elif peer:
        console.print(_peer_table(peer))


def _peer_table(peer: dict[str, Any]) -> Any:
    from rich.table import Table

    theirs, ours = peer["smdebug wrote"], peer["tdcore wrote"]
    rows = ours["rows"]
    smdebug, trial, one, rules = (peer[name]["median"] for name in ("smdebug", "trial", "one", "rules"))
    table = Table(
        "what", "smdebug 1.0.34", "tdcore", "times", title=f"an equal run of {rows:,} tensors with values"
    )
    pairs = [
        ("write, seconds", theirs["write_s"], ours["write_s"]),
        ("files", theirs["files"], ours["files"]),
        ("bytes on disk per tensor", theirs["bytes"] / rows, ours["bytes"] / rows),
        ("open, seconds", smdebug["open"], trial["open"]),
        (
            "open, values of one tensor at all steps, seconds",
            smdebug["open and one tensor"],
            one["open, one tensor, values"],
        ),
        (
            "open and judge, seconds (it: gradients by one rule; tdcore: all rules)",
            smdebug["open and judge"],
            rules["all rules"],
        ),
        ("peak memory reading, MB", smdebug["peak_mb"], trial["peak_mb"]),
    ]
    for what, their, our in pairs:
        table.add_row(what, f"{their:,.3f}", f"{our:,.3f}", f"{their / our:.1f}")
    return table


if __name__ == "__main__":
    main()
