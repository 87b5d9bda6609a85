"""The questions of the benchmark, each for one process: `python -m benchmarks.scale.questions NAME FOLDER`.

A question returns a number or a list that the driver compares between the readers, so that all of them answer
the same question. Imports are done before the clock starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["OTHERS", "QUESTIONS", "RULES", "TENSOR"]

TENSOR = "weight/layer1.weight"
_COLUMNS = ["step", "mean", "std", "min", "max"]


def _open(folder: str) -> Any:
    from tdcore.trial import create_trial

    return create_trial(folder)


def ask_open(folder: str) -> Any:
    """Open the run, and return its status."""
    return _open(folder).status


def ask_names(folder: str) -> Any:
    """Names of all tensors, and all steps."""
    trial = _open(folder)
    return [len(trial.tensor_names()), len(trial.steps(show_incomplete_steps=True))]


def _stats(
    names: list[str] | None = None,
    *,
    all_columns: bool = False,
    some_steps: bool = False,
    merged: bool = False,
) -> Callable[[str], Any]:
    """A question for statistics of tensors. some_steps: only 1 % of the steps."""

    def ask(folder: str) -> Any:
        steps = range(*hundredth(folder)) if some_steps else None
        columns = None if all_columns else _COLUMNS
        return _answer(_open(folder).stats(names, steps=steps, columns=columns, merged=merged))

    return ask


def _command(name: str) -> Callable[[str], Any]:
    """A question for the output of a command about the run."""

    def ask(folder: str) -> Any:
        from tdcore.cli.app import main

        out, sys.argv = io.StringIO(), ["tdcore", name, folder]
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main()
        return len(out.getvalue())

    return ask


def _rules(rules: Any) -> Callable[[str], Any]:
    """A question for the verdicts of rules."""

    def ask(folder: str) -> Any:
        from tdcore.rules.runner import run

        report = run(folder, rules, write_findings=False)
        return {verdict.rule: verdict.status.name for verdict in report.verdicts}

    return ask


def _sql(columns: str, rest: str) -> Callable[[str], Any]:
    """A question for DuckDB. rest: the query after the table; {first} and {end} are 1 % of the steps."""

    def ask(folder: str) -> Any:
        import duckdb

        first, end = hundredth(folder)
        table = f"read_parquet('{folder}/index/*/*.parquet')"
        query = f"select {columns} from {table} {rest.format(first=first, end=end)}"
        return _answer(duckdb.connect().sql(query).to_arrow_table())

    return ask


def polars_tensor(folder: str) -> Any:
    """The statistics of one tensor by Polars."""
    import polars as pl

    table = (
        pl.scan_parquet(f"{folder}/index/*/*.parquet")
        .filter(pl.col("name") == TENSOR)
        .select("step", "mean", "m2", "count", "min", "max")
        .collect(engine="streaming")
        .to_arrow()
    )
    return _answer(table)


def hundredth(folder: str) -> tuple[int, int]:
    """First global step, and the step after the last one, of 1 % of the steps, in the middle of the run."""
    last = max(json.loads(path.read_text())["last_step"] for path in Path(folder, "end").rglob("*.json"))
    return last // 2, last // 2 + max(1, last // 100)


def _answer(table: Any) -> Any:
    import pyarrow.compute as pc

    return [table.num_rows, float(f"{pc.sum(table.column('mean')).as_py() or 0.0:.9e}")]


_FIVE = "step, mean, sqrt(m2 / (count - nan_count - pos_inf_count - neg_inf_count)), min, max"
_MERGED = (
    "name, step, sum(mean * count) / sum(count) as mean, min(min), max(max), sum(abs_sum), sum(square_sum)"
)

RULES = ("rule", "rules")
QUESTIONS: dict[str, Callable[[str], Any]] = {
    "open": ask_open,
    "names": ask_names,
    "tensor": _stats([TENSOR]),
    "tensor, all columns": _stats([TENSOR], all_columns=True),
    "1 % of the steps": _stats(some_steps=True),
    "all statistics": _stats(),
    "merged statistics": _stats(merged=True),
    "show": _command("show"),
    "ls": _command("ls"),
    "rule": _rules(["vanishing_gradient"]),
    "rules": _rules("all"),
}
OTHERS: dict[str, Callable[[str], Any]] = {
    "tensor, duckdb": _sql(_FIVE, f"where name = '{TENSOR}' order by step"),
    "tensor, polars": polars_tensor,
    "1 % of the steps, duckdb": _sql(_FIVE, "where step >= {first} and step < {end}"),
    "merged statistics, duckdb": _sql(_MERGED, "group by name, step"),
}


def _imports(name: str) -> None:
    """Import what the question needs, as the program of a user does."""
    import pyarrow.compute

    pyarrow.scalar(0)
    if name.endswith("duckdb"):
        import duckdb
        import pyarrow.dataset

        duckdb.connect().execute("select 1").fetchall()
    elif name.endswith("polars"):
        import polars  # noqa: F401
    else:
        import tdcore.trial.captures
        import tdcore.trial.trial_factory
    if name in RULES:
        import tdcore.rules.runner
    if name in ("show", "ls"):
        import tdcore.cli.app  # noqa: F401


def peak_mb() -> float:
    """Peak memory of this process since it began (getrusage would include the parent's memory)."""
    status = Path("/proc/self/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Answer one question and print the answer, CPU seconds, seconds and memory as JSON."""
    name, folder = sys.argv[1:]
    _imports(name)
    before, cpu, start = peak_mb(), time.process_time(), time.perf_counter()
    answer = {**QUESTIONS, **OTHERS}[name](folder)
    result = {
        "answer": answer,
        "cpu_s": time.process_time() - cpu,
        "seconds": time.perf_counter() - start,
        "peak_mb": peak_mb(),
        "of_imports_mb": before,
    }
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
