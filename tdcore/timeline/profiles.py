"""Profiles in a timeline: the windows, and the operators of torch.profiler.

The operators of a profile are slices in the process of their worker, one track for each thread and each
stream of a GPU. torch.profiler and the saved steps use the clock of the same host, so both are on one axis.
Threads: see Trial; no state.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from tdcore.errors import RunCorrupt
from tdcore.timeline.events import event_name, trace_text
from tdcore.trial.profiles import Profile

__all__ = ["profile_events"]

_TRACK = 200  # number of the track with the windows of a worker
_FIRST_THREAD = 1000  # numbers of the tracks of operators
_MAX_ARGUMENTS = 20
_SLICES = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_FLOWS = ("s", "t", "f")  # phases of an arrow between two slices
_Arrows: TypeAlias = "defaultdict[tuple[str, int, int, str], int]"


def profile_events(
    profiles: Iterable[Profile], workers: Mapping[str, int], start_ns: int
) -> Iterator[dict[str, Any]]:
    """Events of the profiles; "ts" is in microseconds since start_ns.

    Args:
        profiles: The profiles.
        workers: Number of the process of each worker.
        start_ns: The time that is 0 in the timeline.
    """
    arrows: _Arrows = defaultdict(lambda: len(arrows) + 1)
    for each in profiles:
        process = workers[each.worker]
        title = f"profile {each.number}"
        if each.first_step is not None:
            title += f": {each.mode} {each.first_step} to {each.last_step}"
        yield event_name("thread_name", process, _TRACK, "profiles")
        yield {
            "ph": "X",
            "name": trace_text(title),
            "cat": "profile",
            "pid": process,
            "tid": _TRACK,
            "ts": (each.begin_ns - start_ns) / 1000,
            "dur": max(each.end_ns - each.begin_ns, 0) / 1000,
            "args": {"state": each.state, "reason": trace_text(each.reason), "attempt": each.attempt},
        }
        if "trace" in each.keys and each.base_ns is not None:
            yield from _operator_events(each, process, start_ns, arrows)


def _operator_events(
    profile: Profile, process: int, start_ns: int, arrows: _Arrows
) -> Iterator[dict[str, Any]]:
    """Slices of the operators, and arrows from operators to kernels and to backward passes.

    arrows: numbers of the arrows of all profiles. Perfetto does not show arrows whose id is a text.
    """
    assert profile.base_ns is not None, "the caller checks this"
    offset = (profile.base_ns - start_ns) / 1000
    tracks: dict[tuple[str, str], int] = {}
    prefix = (profile.worker, profile.attempt, profile.number)
    for event in profile.trace_events():
        phase = event.get("ph")
        if not (phase == "X" and event.get("cat") in _SLICES) and phase not in _FLOWS:
            continue
        place = (trace_text(event.get("pid")), trace_text(event.get("tid")))
        track = tracks.get(place)
        if track is None:
            if phase != "X":
                continue  # an arrow without its slice
            track = tracks[place] = _FIRST_THREAD + len(tracks)
            yield event_name("thread_name", process, track, _track_title(event))
        found = {
            "ph": phase,
            "name": trace_text(event.get("name")),
            "cat": trace_text(event.get("cat")),
            "pid": process,
            "tid": track,
            "ts": offset + _time(profile, event, "ts"),
        }
        if phase == "X":
            found |= {"dur": _time(profile, event, "dur"), "args": _arguments(event.get("args"))}
        else:
            arrow = (*prefix, trace_text(event.get("id")))
            found |= {"id": arrows[arrow]} | ({"bp": "e"} if phase == "f" else {})
        yield found


def _track_title(event: Mapping[str, Any]) -> str:
    arguments = event.get("args")
    if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and isinstance(arguments, dict):
        return f"GPU {trace_text(arguments.get('device'))} stream {trace_text(arguments.get('stream'))}"
    return f"operators of thread {trace_text(event.get('tid'))}"


def _time(profile: Profile, event: Mapping[str, Any], name: str) -> float:
    value = event.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RunCorrupt(f"{profile.keys['trace']}: {name} of an event is {value!r:.80}, expected a number")
    return value


def _arguments(arguments: object) -> dict[str, Any]:
    """The plain values of an event's arguments."""
    if not isinstance(arguments, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in list(arguments.items())[:_MAX_ARGUMENTS]:
        if isinstance(value, str):
            found[trace_text(key)] = trace_text(value)
        elif isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
            found[trace_text(key)] = value
    return found
