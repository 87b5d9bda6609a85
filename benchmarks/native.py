"""Runs bench_native.py and prints, group by group, each median and its ratio to the limit of its group."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.environment import ROOT, save


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "native.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "benchmarks/bench_native.py",
            f"--benchmark-json={out}",
        ]
        subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        measured = json.loads(out.read_text())["benchmarks"]
    rows = []
    limits = {one["group"]: one["stats"]["median"] for one in measured if "limit" in one["name"]}
    table = Table("group", "what", "median", "quartiles", "ratio to limit", title="native benchmarks")
    for one in sorted(measured, key=lambda item: (item["group"], "limit" not in item["name"])):
        stats, limit = one["stats"], limits.get(one["group"])
        ratio = stats["median"] / limit if limit else None
        what = one["extra_info"].get("what") or one["name"].removeprefix("test_")
        rows.append({"group": one["group"], "what": what, "ratio_to_limit": ratio, **_seconds(stats)})
        table.add_row(
            one["group"],
            what,
            f"{stats['median'] * 1e6:,.1f} us",
            f"{stats['q1'] * 1e6:,.1f} .. {stats['q3'] * 1e6:,.1f}",
            f"{ratio:.2f} x" if ratio else "",
        )
    Console().print(table)
    print("saved", save("native", {"method": "benchmarks/README.md", "rows": rows}).relative_to(ROOT))


def _seconds(stats: dict[str, float]) -> dict[str, float]:
    return {f"{name}_s": stats[name] for name in ("median", "q1", "q3", "min")} | {"rounds": stats["rounds"]}


if __name__ == "__main__":
    main()
