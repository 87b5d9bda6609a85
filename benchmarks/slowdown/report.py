"""The tables in the terminal and the flat rows of the result files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.models import WORKLOADS
from benchmarks.slowdown.cells import INTERVALS
from benchmarks.slowdown.costs import CostModel, Interval, Summary, estimate
from benchmarks.slowdown.tools import TOOLS

Key = tuple[str, str, str, int, int]
_PREDICTED_STEPS = (0.05, 0.2, 1.0)  # seconds
_BUSY = "busy"


def flat_rows(summaries: dict[Key, Summary]) -> list[dict[str, Any]]:
    """One row per model, tool, collection, threads and interval: first measured rows, then estimated rows.

    An estimate spreads the cost of a saved step over the interval. The cost is that of interval 10 with all
    effects, or the stall at interval 2 if interval 10 was not measured.
    """
    rows = []
    for (model, tool, collection, interval, threads), one in summaries.items():
        what = {"model": model, "tool": tool, "collection": collection, "threads": threads}
        flat = one.to_json_dict()
        slowdown, stall = flat.pop("slowdown"), flat.pop("stall_s")
        rows.append(
            {**what, "interval": interval, "measured": True}
            | _spread("slowdown", slowdown)
            | _spread("stall_s", stall)
            | flat
        )
    rows += [
        {**what, "interval": interval, "measured": False} | _spread("slowdown", guess)
        for what, interval, guess in _estimates(summaries)
    ]
    return rows


def _spread(name: str, interval: dict[str, float] | None) -> dict[str, float | None]:
    parts: dict[str, Any] = interval or dict.fromkeys(("median", "low", "high"))
    return {name: parts["median"], f"{name}_low": parts["low"], f"{name}_high": parts["high"]}


def _estimates(
    summaries: dict[Key, Summary],
) -> Iterable[tuple[dict[str, Any], int, dict[str, float]]]:
    for (model, tool, collection, interval, threads), one in summaries.items():
        if interval != 2 or tool == "none":
            continue
        cost = one.stall_s
        at_ten = summaries.get((model, tool, collection, 10, threads))
        if at_ten is not None and at_ten.slowdown is not None:
            cost = at_ten.slowdown.map(lambda ratio, step=at_ten.step_s: (ratio - 1) * 10 * step)
        if cost is None:
            continue
        for asked in INTERVALS:
            if (model, tool, collection, asked, threads) not in summaries:
                guess = estimate(cost, one.step_s, asked, one.written_per_save, one.disk_bytes_per_s)
                what = {"model": model, "tool": tool, "collection": collection, "threads": threads}
                yield what, asked, {"median": guess.median, "low": guess.low, "high": guess.high}


def write_parquet(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the flat rows as a Parquet table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    pq.write_table(table, path)


def show(
    console: Console, summaries: dict[Key, Summary], errors: dict[Key, str], costs: CostModel | None
) -> None:
    """Print all tables."""
    rows = flat_rows(summaries)
    for model in dict.fromkeys(key[0] for key in summaries):
        console.print(_slowdown_table(model, [row for row in rows if row["model"] == model]))
        console.print(_cost_table(model, summaries))
    if costs is not None:
        console.print(_prediction_table(costs, summaries))
    for key, why in errors.items():
        console.print(f"[red]failed: {' '.join(map(str, key))}: {why}")
    for key, one in summaries.items():
        if one.drops:
            console.print(f"[red]{' '.join(map(str, key))}: {one.drops} tensors were not recorded")


def _slowdown_table(model: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "tool",
        "collection",
        *(str(interval) for interval in INTERVALS),
        title=f"slowdown by save interval: {WORKLOADS[model].title}",
        caption="~ estimated from interval 10, or from 2 if 10 was not measured; in brackets: 95 % "
        "bootstrap; busy: other processes used the machine",
    )
    for tool, collection, threads in dict.fromkeys(
        (row["tool"], row["collection"], row["threads"]) for row in rows
    ):
        mine = {
            row["interval"]: row
            for row in rows
            if (row["tool"], row["collection"], row["threads"]) == (tool, collection, threads)
        }
        title = TOOLS[tool].title + (f", {threads} threads" if threads > 1 else "")
        table.add_row(title, collection, *(_slowdown_text(mine.get(interval)) for interval in INTERVALS))
    return table


def _slowdown_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["slowdown"] is None:
        return _BUSY
    if not row["measured"]:
        return f"~{row['slowdown']:.3f}"
    return f"{row['slowdown']:.3f} [{row['slowdown_low']:.2f}, {row['slowdown_high']:.2f}]"


def _cost_table(model: str, summaries: dict[Key, Summary]) -> Table:
    table = Table(
        *(
            "tool",
            "collection",
            "k",
            "stall ms",
            "inside ms",
            "ns/byte",
            "of limit",
            "MB",
            "tensors",
            "written MB",
        ),
        *("files", "CPU ms", "behind ms", "memory MB", "drops", "disk floor"),
        title=f"cost per saved step: {WORKLOADS[model].title}",
        caption="inside: time of the training thread in the tool, by the tool's clock; limit: fastest plain "
        "copy of the bytes (statistics: one read); behind: work after the block, per saved step; CPU: all "
        "processes, without the training itself",
    )
    for (of, tool, collection, interval, threads), one in summaries.items():
        if of == model and tool != "none":
            title = TOOLS[tool].title + (f", {threads} threads" if threads > 1 else "")
            table.add_row(title, collection, str(interval), *_cost_texts(one))
    return table


def _cost_texts(one: Summary) -> list[str]:
    stall = one.stall_s
    return [
        _BUSY if stall is None else f"{stall.median * 1e3:.1f} {_band(stall.map(lambda s: s * 1e3))}",
        _number(one.inside_s, "{:.1f}", 1e3),
        _number(one.ns_per_byte, "{:.3f}"),
        _number(one.stall_of_limit, "{:.2f} x"),
        f"{one.bytes_per_save / 1e6:.1f}",
        f"{one.tensors_per_save:.0f}",
        f"{one.written_per_save / 1e6:.1f}",
        str(one.files),
        _number(one.cpu_s_per_save, "{:.0f}", 1e3),
        _number(one.left_behind_s_per_save, "{:.0f}", 1e3),
        f"{one.memory_bytes / 1e6:.0f}",
        str(one.drops),
        f"{one.disk_floor:.2f}",
    ]


def _band(interval: Interval) -> str:
    return f"[{interval.low:.1f}, {interval.high:.1f}]"


def _number(value: float | None, text: str, scale: float = 1.0) -> str:
    return "" if value is None else text.format(value * scale)


def _prediction_table(costs: CostModel, summaries: dict[Key, Summary]) -> Table:
    steps = [f"{seconds * 1e3:.0f} ms, k={k}" for seconds in _PREDICTED_STEPS for k in (1, 10, 100)]
    table = Table(
        "tensors of",
        "collection",
        "stall ms",
        *steps,
        title="PREDICTED slowdown of tdcore for other step times (cost model, not measured)",
        caption=f"stall = {costs.per_byte_of_values * 1e9:.3f} ns per byte of values, "
        f"{costs.per_byte_of_statistics * 1e9:.3f} per byte of statistics alone, "
        f"{costs.per_tensor * 1e6:.1f} us per tensor, {costs.per_saved_step * 1e6:.0f} us per saved and "
        f"{costs.per_unsaved_step * 1e6:.1f} us per unsaved step; worst error {costs.worst_error:.0%}; "
        "tensors in the CPU's memory, disk fast enough",
    )
    for (model, tool, collection, interval, _), one in summaries.items():
        if tool == "tdcore" and interval == 2:
            only = collection == "statistics"
            stall = costs.stall(
                values=0.0 if only else one.bytes_per_save,
                statistics_only=one.bytes_per_save if only else 0.0,
                tensors=one.tensors_per_save,
            )
            guesses = (
                costs.slowdown(stall, seconds, k) for seconds in _PREDICTED_STEPS for k in (1, 10, 100)
            )
            table.add_row(model, collection, f"{stall * 1e3:.2f}", *(f"{guess:.3f}" for guess in guesses))
    return table
