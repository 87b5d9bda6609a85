"""The main result of the benchmark as PNG and SVG: the curve of slowdown by save interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.models import WORKLOADS
from benchmarks.slowdown.cells import INTERVALS
from benchmarks.slowdown.tools import TOOLS

# Colours that colour-blind readers can distinguish (Okabe and Ito).
_COLOURS = {
    "tdcore": "#0072B2",
    "tdcore-s3": "#56B4E9",
    "smdebug": "#D55E00",
    "tensorboard": "#E69F00",
    "wandb": "#CC79A7",
    "numpy": "#009E73",
    "none": "#999999",
}
_MARKS = {"all": "o", "weights": "s", "gradients": "^", "losses": "v", "statistics": "D"}
_TICKS = (1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)


def draw(rows: list[dict[str, Any]], stem: Path) -> None:
    """Write <stem>.png and <stem>.svg. Upper part: all tools, largest collections. Lower part: tdcore."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = pyplot.subplots(2, len(models), figsize=(5 * len(models), 8), squeeze=False)
    for column, model in enumerate(models):
        mine = [row for row in rows if row["model"] == model and row["threads"] == 1]
        _draw_tools(axes[0][column], mine)
        axes[0][column].set_title(WORKLOADS[model].title, fontsize=10)
        _draw_collections(axes[1][column], mine)
    axes[0][0].set_ylabel("slowdown, all tools (logarithmic)")
    axes[1][0].set_ylabel("slowdown, tdcore")
    separator = "\n" if len(models) == 1 else " "
    notes = (
        "filled: measured, with 95 % interval; open: estimated.",
        "TensorBoard and wandb record histograms, the other tools record values.",
    )
    figure.text(0.5, 0.01, separator.join(notes), ha="center", fontsize=9)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    for suffix in (".png", ".svg"):
        figure.savefig(f"{stem}{suffix}", dpi=150)
    pyplot.close(figure)


def _draw_tools(axis: Any, rows: list[dict[str, Any]]) -> None:
    for tool in dict.fromkeys(row["tool"] for row in rows):
        if tool == "none":
            continue
        recorded = {row["collection"] for row in rows if row["tool"] == tool}
        collection = "all" if "all" in recorded else "statistics"
        label = f"{TOOLS[tool].title}, {'all tensors' if collection == 'all' else 'histograms'}"
        _line(
            axis, [row for row in rows if (row["tool"], row["collection"]) == (tool, collection)], tool, label
        )
    axis.set_yscale("log")
    axis.set_yticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axis.minorticks_off()
    _finish(axis)


def _draw_collections(axis: Any, rows: list[dict[str, Any]]) -> None:
    for collection, mark in _MARKS.items():
        mine = [row for row in rows if row["tool"] == "tdcore" and row["collection"] == collection]
        _line(axis, mine, "tdcore", collection, mark, 0.35 + 0.65 * (list(_MARKS).index(collection) == 0))
    values = [row["slowdown"] for row in rows if row["tool"] == "tdcore" and row["slowdown"]]
    axis.set_ylim(max(0.8, min([0.97, *values]) - 0.02), min(max([1.2, *values]) * 1.02, 2.5))
    _finish(axis)


def _line(
    axis: Any, rows: list[dict[str, Any]], tool: str, label: str, mark: str = "o", strength: float = 1.0
) -> None:
    known = sorted((row for row in rows if row["slowdown"] is not None), key=lambda row: row["interval"])
    if not known:
        return
    colour = _COLOURS[tool]
    axis.plot(
        [row["interval"] for row in known],
        [row["slowdown"] for row in known],
        color=colour,
        alpha=strength,
        linewidth=1,
    )
    for measured in (True, False):
        some = [row for row in known if row["measured"] is measured]
        values = [row["slowdown"] for row in some]
        bars = [
            [value - row["slowdown_low"] for value, row in zip(values, some, strict=True)],
            [row["slowdown_high"] - value for value, row in zip(values, some, strict=True)],
        ]
        axis.errorbar(
            [row["interval"] for row in some],
            values,
            yerr=bars if measured else None,
            fmt=mark,
            color=colour,
            markerfacecolor=colour if measured else "white",
            alpha=strength,
            label=label if measured else None,
            capsize=2,
            markersize=5,
        )


def _finish(axis: Any) -> None:
    axis.set_xscale("log")
    axis.set_xticks(INTERVALS, [str(interval) for interval in INTERVALS])
    axis.minorticks_off()
    axis.set_xlabel("save interval (steps)")
    axis.axhline(1.0, color="#999999", linewidth=0.8)
    axis.grid(True, alpha=0.2)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, loc="upper right")
