"""Findings of rules in a timeline. Threads: any; no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.text.step_text import SYSTEM_SAMPLES
from tdcore.timeline.events import Event, microseconds, trace_text
from tdcore.timeline.saved_steps import SavedStep

__all__ = ["FINDINGS_TRACK", "finding_events"]

FINDINGS_TRACK = 100


def finding_events(
    findings: list[dict[str, Any]],
    steps: list[SavedStep],
    samples: list[dict[str, Any]],
    step_times: pa.Table,
    workers: dict[str, int],
    start: int,
) -> Iterator[Event]:
    """Events of the findings.

    A finding is at the end of its saved step, at the start of its step, or at its system sample; else at the
    worker's last saved step.

    Args:
        findings: The findings.
        steps: Saved steps.
        samples: Rows of Trial.system().
        step_times: Trial.steps_time(intervals=True).
        workers: Numbers of the processes of workers.
        start: The time that is 0 in the timeline.
    """
    times: dict[tuple[Any, ...], int] = {
        (each["worker"], each["attempt"], SYSTEM_SAMPLES, each["sample"]): each["time_ns"] for each in samples
    }
    numbers = [each.get("mode_step") for each in findings]
    wanted = {each for each in numbers if isinstance(each, int) and 0 <= each < 1 << 63}
    named = step_times.filter(pc.is_in(step_times["mode_step"], pa.array(sorted(wanted), pa.int64())))
    for row in named.select(["worker", "attempt", "mode", "mode_step", "time_ns"]).to_pylist():
        times.setdefault((row["worker"], row["attempt"], row["mode"], row["mode_step"]), row["time_ns"])
    for each in steps:
        last = (each.worker, each.attempt)
        times[last] = max(each.last_ns, times.get(last, each.last_ns))
        times[each[:4]] = each.last_ns
    for found in findings:
        worker = found.get("worker") or next(iter(workers), "")
        place = (worker, found.get("attempt"), found.get("mode"), found.get("mode_step"))
        time = times.get(place, times.get(place[:2]))
        if time is None or worker not in workers:
            continue
        yield {
            "ph": "i",
            "s": "t",
            "name": trace_text(found.get("rule")),
            "cat": "finding",
            "pid": workers[worker],
            "tid": FINDINGS_TRACK,
            "ts": microseconds(time, start),
            "args": {
                key: trace_text(found[key])
                for key in ("code", "mode", "mode_step", "tensor", "why", "do", "count", "last_mode_step")
                if found.get(key) is not None
            },
        }
