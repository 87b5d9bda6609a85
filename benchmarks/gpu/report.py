"""The table of the GPU benchmark."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(rows: list[dict[str, Any]]) -> None:
    """Print one line for each cell, in one table per model."""
    table = Table(
        "what",
        "at every",
        "slowdown",
        "stall ms",
        "in the hook ms",
        "MB",
        "step ms",
        "not kept",
        title="Trainings on a GPU",
        caption="Medians and 95 % bootstrap intervals over pairs of blocks. Stall includes the work of the "
        "device. In the hook: host time of the training threads. The tools by hand write nothing to disk.",
    )
    group = ""
    for row in rows:
        name = f"{row['model']}, {row['mode']}"
        if name != group:
            group = name
            table.add_section()
            table.add_row(f"[bold]{name}")
        dropped = sum(row["tool_says"].get("drops", {}).values()) if row["tool"] == "tdcore" else ""
        table.add_row(
            f"  {_TITLES[row['tool']]}: {row['collection']}",
            str(row["interval"]),
            _interval(row["slowdown"], 3),
            _interval(row["stall_ms"], 2),
            "" if row["hook_ms"] is None else f"{row['hook_ms']:.2f}",
            f"{row['bytes'] / 1e6:,.0f}",
            f"{row['step_ms']:.2f}",
            str(dropped),
        )
    console = Console()
    console.width = max(console.width, 150)  # numbers must not be cut
    console.print(table)


_TITLES = {
    "none": "no tool (noise of the method)",
    "tdcore": "tdcore",
    "cpu": "tensor.cpu()",
    "non_blocking": 'tensor.to("cpu", non_blocking=True)',
}


def _interval(values: list[float], digits: int) -> str:
    median, low, high = (f"{each:.{digits}f}" for each in values)
    return f"{median} [{low}, {high}]"
