"""Events of a timeline in the JSON format of Chrome traces. Pure functions, any thread."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeAlias

from tdcore.text.short_repr import cut

__all__ = ["Event", "counter", "event_name", "microseconds", "time_slice", "trace_text"]

Event: TypeAlias = dict[str, Any]

_MAX_TEXT = 1000  # characters of a text from the run


def event_name(what: str, process: int, thread: int, name: str) -> Event:
    """The name of a process or of a track. what: "process_name" or "thread_name"."""
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": trace_text(name)}}


def microseconds(time_ns: int, start_ns: int) -> float:
    """A time on the axis of the timeline, which begins at start_ns."""
    return (time_ns - start_ns) / 1000


def trace_text(value: object) -> str:
    """A text from the run."""
    return cut(str(value), _MAX_TEXT)


def time_slice(
    name: str,
    process: int,
    track: int,
    times: tuple[int, int, int],
    args: dict[str, object],
    kind: str = "saved",
) -> Event:
    """A slice of a track.

    times: start and end of the slice, and start of the timeline, in nanoseconds. kind: its category.
    """
    first, last, start = times
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": process,
        "tid": track,
        "ts": microseconds(first, start),
        "dur": (last - first) / 1000,
        "args": args,
    }


def counter(
    name: str, process: int, time: int, start: int, values: dict[str, float | None]
) -> Iterator[Event]:
    """A counter event of the values that are known; none if no value is known."""
    known = {key: value for key, value in values.items() if value is not None and math.isfinite(value)}
    if known:
        yield {
            "ph": "C",
            "name": name,
            "pid": process,
            "tid": 0,
            "ts": microseconds(time, start),
            "args": known,
        }
