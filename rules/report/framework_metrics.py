"""overall_framework_metrics: shares of phases and modes over a run (OverallFrameworkMetrics of smdebug).

A summary that never fires. Functions without state; any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tdcore.format.step_times import COUNTS, PHASES
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Columns

__all__ = ["overall_framework_metrics"]


def overall_framework_metrics(times: pa.Table) -> dict[str, Any]:
    """Time and shares of modes and phases, and the distribution of the duration of a step.

    Args:
        times: One row per step, such as Trial.steps_time().

    Returns:
        {"seconds": ..., "modes": {mode: {"steps", "seconds", "percent", "step_ms": {...}, "phases": {phase:
        {"seconds", "percent"}}, "counts": {...}, "gpu_percent"}}}. Seconds are those of all workers together.
    """
    columns = Columns(times)
    duration = columns.ints("duration_ns")
    whole = max(1, int(duration.sum()))
    modes: dict[str, Any] = {}
    for mode, rows in groups(columns, np.arange(times.num_rows), "mode"):
        mine = duration[rows]
        total = max(1, int(mine.sum()))
        phases = {phase: int(columns.ints(f"{phase}_ns")[rows].sum()) for phase in PHASES}
        ms = np.percentile(mine / 1e6, [100, 99, 95, 50, 0]).tolist()
        modes[mode] = {
            "steps": len(rows),
            "seconds": total / 1e9,
            "percent": 100 * total / whole,
            "step_ms": dict(zip(("max", "p99", "p95", "p50", "min"), ms, strict=True)),
            "phases": {
                phase: {"seconds": ns / 1e9, "percent": 100 * ns / total}
                for phase, ns in phases.items()
                if ns
            },
            "counts": {name: int(columns.ints(name)[rows].sum()) for name in COUNTS},
            "gpu_percent": 100 * int(columns.ints("gpu_ns")[rows].sum()) / total,
        }
    return {"seconds": whole / 1e9 if times.num_rows else 0.0, "modes": modes}
