"""tdcore show --time: where the time of the steps goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcore.cli.output import bar, console, number, print_json, shown
from tdcore.cli.tables import plain_table
from tdcore.errors import ConfigError
from tdcore.format.step_times import PHASES
from tdcore.sinks import shown_place

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.modes import ModeKeys
    from tdcore.trial import Trial

__all__ = ["show_time"]

_BAR_WIDTH = 30
_SLOWEST = 3
_MS = 1e6
_OFF = "no step has begun, or TDCORE_STEP_TIMES is off"


def show_time(trial: Trial, mode: ModeKeys | None, attempt: int | None, *, json_output: bool) -> None:
    """Print the times of steps and the shares of their phases, for each worker and mode."""
    from tdcore.trial.step_times import joined_steps, of_mode

    intervals = trial.steps_time(attempt=attempt, intervals=True)
    table = joined_steps(of_mode(intervals, mode))
    if not table.num_rows:
        raise ConfigError(f"{trial.path} has no times of steps; {_OFF}")
    summaries = [_summary(worker, name, part) for worker, name, part in _parts(table)]
    if json_output:
        print_json({"run": trial.path, "times": summaries})
        return
    out = console()
    for each in summaries:
        _print(out, trial, each, workers=len({one["worker"] for one in summaries}))
    lost = _lost_rows(intervals)
    if lost:
        out.print(f"[yellow]The times of {lost:,} steps are missing: the flusher could not keep up.[/]")


def _parts(table: pa.Table) -> list[tuple[str, str, pa.Table]]:
    """Worker, mode and rows of each worker and mode, in order of their first step."""
    import numpy as np

    codes: dict[tuple[str, str], int] = {}
    workers, modes = (table[name].cast("string").to_pylist() for name in ("worker", "mode"))
    of_row = np.array([codes.setdefault(key, len(codes)) for key in zip(workers, modes, strict=True)])
    return [(*key, table.filter(of_row == code)) for key, code in codes.items()]


def _summary(worker: str, mode: str, table: pa.Table) -> dict[str, Any]:
    import numpy as np

    durations = table["duration_ns"].to_numpy() / _MS
    total = float(durations.sum())
    phases = {phase: float(table[f"{phase}_ns"].to_numpy().sum()) / _MS for phase in PHASES}
    slowest = np.argsort(-durations, kind="stable")[:_SLOWEST]
    of_phases = np.stack([table[f"{phase}_ns"].to_numpy() for phase in PHASES], axis=1) / _MS
    steps = table["mode_step"].to_numpy()
    gpu = table["gpu_ns"].drop_null().to_numpy() / _MS
    return {
        "worker": worker,
        "mode": mode,
        "steps": table.num_rows,
        "total_ms": total,
        "mean_ms": total / table.num_rows,
        "median_ms": float(np.median(durations)),
        "p95_ms": float(np.percentile(durations, 95)),
        "max_ms": float(durations.max()),
        "phases_ms": {phase: value for phase, value in phases.items() if value > 0},
        "capture_ms": float(table["capture_ns"].to_numpy().sum()) / _MS,
        "gpu_steps": len(gpu),
        "gpu_ms": float(gpu.sum()) if len(gpu) else None,
        "slowest": [
            {
                "mode_step": int(steps[at]),
                "ms": float(durations[at]),
                "phase": PHASES[int(of_phases[at].argmax())],
                "phase_ms": float(of_phases[at].max()),
            }
            for at in slowest.tolist()
        ],
    }


def _print(out: Any, trial: Trial, found: dict[str, Any], *, workers: int) -> None:
    who = f", {shown(found['worker'])}" if workers > 1 else ""
    steps = found["steps"]
    out.print(f"[bold]{shown(shown_place(trial.path))}: {shown(found['mode'])}{who}[/]")
    out.print(
        f"{steps:,} steps in {_time(found['total_ms'])}; "
        f"a step takes {_time(found['median_ms'])} (median), {_time(found['p95_ms'])} (95 %)"
    )
    table = plain_table()
    table.add_column("phase")
    for name in ("mean per step", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for phase, value in sorted(found["phases_ms"].items(), key=lambda item: -item[1]):
        share = value / found["total_ms"] if found["total_ms"] else 0.0
        table.add_row(phase, _time(value / steps), f"{100 * share:.1f} %", bar(round(_BAR_WIDTH * share)))
    out.print(table)
    tdcore_share = 100 * found["capture_ms"] / found["total_ms"] if found["total_ms"] else 0.0
    out.print(f"tdcore itself: {_time(found['capture_ms'] / steps)} per step ({tdcore_share:.1f} %)")
    if found["gpu_ms"] is not None:
        out.print(f"GPU: {_time(found['gpu_ms'] / found['gpu_steps'])} per step")
    slow = "; ".join(
        f"step {each['mode_step']} {_time(each['ms'])} ({each['phase']} {_time(each['phase_ms'])})"
        for each in found["slowest"]
    )
    out.print(f"slowest: {slow}\n")


def _time(milliseconds: float) -> str:
    """A time in a suitable unit."""
    if milliseconds >= 60_000:
        return f"{number(milliseconds / 60_000, 3)} min"
    if milliseconds >= 1000:
        return f"{number(milliseconds / 1000, 3)} s"
    return f"{number(milliseconds, 3)} ms" if milliseconds >= 0.1 else f"{number(milliseconds * 1000, 3)} µs"


def _lost_rows(intervals: pa.Table) -> int:
    """Number of rows that are missing between the rows of each worker and attempt."""
    found = intervals.group_by(["attempt", "worker"]).aggregate([("row", "max"), ("row", "count")])
    highest, counts = found["row_max"].to_pylist(), found["row_count"].to_pylist()
    return sum(last + 1 - count for last, count in zip(highest, counts, strict=True))
