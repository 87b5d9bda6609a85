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


def ask_tensor(folder: str) -> Any:
    """Five statistics of one tensor at all steps."""
    table = _open(folder).stats([TENSOR], columns=_COLUMNS)
    return _answer(table.num_rows, table.column("mean"))


def ask_tensor_all_columns(folder: str) -> Any:
    """All statistics of one tensor at all steps."""
    table = _open(folder).stats([TENSOR])
    return _answer(table.num_rows, table.column("mean"))


def ask_steps(folder: str) -> Any:
    """Five statistics of all tensors in 1 % of the steps."""
    trial = _open(folder)
    first, end = hundredth(folder)
    table = trial.stats(steps=range(first, end), columns=_COLUMNS)
    return _answer(table.num_rows, table.column("mean"))


def ask_all(folder: str) -> Any:
    """Five statistics of all tensors at all steps."""
    table = _open(folder).stats(columns=_COLUMNS)
    return _answer(table.num_rows, table.column("mean"))


def ask_merged(folder: str) -> Any:
    """Statistics merged over workers, of all tensors at all steps."""
    table = _open(folder).stats(columns=_COLUMNS, merged=True)
    return _answer(table.num_rows, table.column("mean"))


def ask_show(folder: str) -> Any:
    """`tdcore show`."""
    return _command("show", folder)


def ask_ls(folder: str) -> Any:
    """`tdcore ls` of the run."""
    return _command("ls", folder)


def ask_rule(folder: str) -> Any:
    """One rule."""
    return _rules(folder, ["vanishing_gradient"])


def ask_rules(folder: str) -> Any:
    """All rules."""
    return _rules(folder, "all")


def duckdb_tensor(folder: str) -> Any:
    """ask_tensor by DuckDB."""
    rows = _duckdb().execute(
        "select step, mean, sqrt(m2 / (count - nan_count - pos_inf_count - neg_inf_count)), min, max "
        f"from read_parquet('{folder}/index/*/*.parquet') where name = '{TENSOR}' order by step"
    )
    table = rows.to_arrow_table()
    return _answer(table.num_rows, table.column("mean"))


def duckdb_steps(folder: str) -> Any:
    """ask_steps by DuckDB."""
    first, end = hundredth(folder)
    rows = _duckdb().execute(
        "select step, mean, sqrt(m2 / (count - nan_count - pos_inf_count - neg_inf_count)), min, max "
        f"from read_parquet('{folder}/index/*/*.parquet') where step >= {first} and step < {end}"
    )
    table = rows.to_arrow_table()
    return _answer(table.num_rows, table.column("mean"))


def duckdb_merged(folder: str) -> Any:
    """ask_merged by DuckDB: a group-by of tensor and step."""
    rows = _duckdb().execute(
        "select name, step, sum(mean * count) / sum(count) as mean, min(min), max(max), sum(abs_sum), "
        f"sum(square_sum) from read_parquet('{folder}/index/*/*.parquet') group by name, step"
    )
    table = rows.to_arrow_table()
    return _answer(table.num_rows, table.column("mean"))


def polars_tensor(folder: str) -> Any:
    """ask_tensor by Polars."""
    import polars as pl

    table = (
        pl.scan_parquet(f"{folder}/index/*/*.parquet")
        .filter(pl.col("name") == TENSOR)
        .select("step", "mean", "m2", "count", "min", "max")
        .collect(engine="streaming")
        .to_arrow()
    )
    return _answer(table.num_rows, table.column("mean"))


def hundredth(folder: str) -> tuple[int, int]:
    """First global step, and the step after the last one, of 1 % of the steps, in the middle of the run."""
    last = max(json.loads(path.read_text())["last_step"] for path in Path(folder, "end").rglob("*.json"))
    return last // 2, last // 2 + max(1, last // 100)


def _duckdb() -> Any:
    import duckdb

    return duckdb.connect()


def _answer(rows: int, mean: Any) -> Any:
    import pyarrow.compute as pc

    return [rows, float(f"{pc.sum(mean).as_py() or 0.0:.9e}")]


def _command(*arguments: str) -> Any:
    from tdcore.cli.app import main

    out, sys.argv = io.StringIO(), ["tdcore", *arguments]
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    return len(out.getvalue())


def _rules(folder: str, rules: Any) -> Any:
    from tdcore.rules.runner import run

    report = run(folder, rules, write_findings=False)
    return {verdict.rule: verdict.status.name for verdict in report.verdicts}


RULES = ("rule", "rules")
QUESTIONS: dict[str, Callable[[str], Any]] = {
    "open": ask_open,
    "names": ask_names,
    "tensor": ask_tensor,
    "tensor, all columns": ask_tensor_all_columns,
    "1 % of the steps": ask_steps,
    "all statistics": ask_all,
    "merged statistics": ask_merged,
    "show": ask_show,
    "ls": ask_ls,
    "rule": ask_rule,
    "rules": ask_rules,
}
OTHERS: dict[str, Callable[[str], Any]] = {
    "tensor, duckdb": duckdb_tensor,
    "tensor, polars": polars_tensor,
    "1 % of the steps, duckdb": duckdb_steps,
    "merged statistics, duckdb": duckdb_merged,
}


def _imports(name: str) -> None:
    import pyarrow.compute
    import pyarrow.dataset

    import tdcore.cli.app
    import tdcore.rules.runner
    import tdcore.trial.captures
    import tdcore.trial.trial_factory  # noqa: F401

    pyarrow.scalar(0)
    if name.endswith("duckdb"):
        import duckdb

        duckdb.connect().execute("select 1").fetchall()
    elif name.endswith("polars"):
        import polars  # noqa: F401


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
