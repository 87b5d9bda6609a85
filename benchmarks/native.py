"""The core against the speed of memory: ring, statistics, CRC-32C and capture.

Runs bench_native.py. Every row is a median, and its ratio to the time of one read, write or copy of the same
bytes, which was timed before each round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.environment import ROOT, add_out, save


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", metavar="WORDS", default="", help="run only these benchmarks, as by pytest -k")
    add_out(parser)
    options = parser.parse_args()
    rows = [_row(one) for one in _measured(options.k)]
    table = Table("what", "median", "quartiles", "GB/s", "limit", "its GB/s", "time / limit")
    group = ""
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            table.add_section()
            table.add_row(f"[bold]{group}")
        table.add_row(
            f"  {row['what']}",
            f"{row['median_s'] * 1e6:,.1f} us",
            f"{row['q1_s'] * 1e6:,.1f} .. {row['q3_s'] * 1e6:,.1f}",
            *_rates(row),
        )
    console = Console()
    console.width = max(console.width, 120)  # numbers must not be cut
    console.print(table)
    print("saved", save("native", {"method": "docs/benchmarks.md", "rows": rows}, options.out))


def _rates(row: dict[str, Any]) -> tuple[str, ...]:
    """Rates in bytes per second; empty for small tensors, whose cost is that of a call."""
    if row["bytes"] < 1 << 20:
        return ()
    return (
        f"{row['gb_per_s']:.2f}",
        f"one {row['limit']}",
        f"{row['limit_gb_per_s']:.2f}",
        f"{row['ratio_to_limit']:.2f} x",
    )


def _measured(words: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "native.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "benchmarks/bench_native.py",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--benchmark-json={out}", *(["-k", words] if words else [])]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        measured: list[dict[str, Any]] = json.loads(out.read_text())["benchmarks"]
        return measured


def _row(one: dict[str, Any]) -> dict[str, Any]:
    """Seconds, bytes per second and the ratio of medians, from a record of pytest-benchmark."""
    stats, extra = one["stats"], one["extra_info"]
    seconds = {f"{name}_s": stats[name] for name in ("median", "q1", "q3", "min")}
    return {
        "group": one["group"],
        "what": one["param"] or one["name"].removeprefix("test_"),
        **seconds,
        "rounds": stats["rounds"],
        "bytes": extra["bytes"],
        "gb_per_s": extra["bytes"] / stats["median"] / 1e9,
        "limit": extra["limit"],
        "limit_gb_per_s": extra["bytes"] / extra["limit_s"] / 1e9,
        "ratio_to_limit": stats["median"] / extra["limit_s"],
        "ratio_of_minima": stats["min"] / extra["limit_min_s"],
    }


if __name__ == "__main__":
    main()
