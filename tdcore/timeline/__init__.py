"""Timeline of a run in the JSON format of Chrome traces, which Perfetto and chrome://tracing open.

Each worker is a process of the trace, with tracks for all steps, the saved steps of each mode, findings and
profiles, and counters of the trainer's processes. Each host is a process with counters of the machine and its
GPUs. All times are times of the hosts' clocks; the trace begins at the earliest one.

events        the events
step_times    all steps with their phases
saved_steps   steps with captured tensors
findings      findings of rules
samples       samples of the machine
profiles      windows of profilers

Threads: see Trial; no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tdcore.modes import ModeKeys
from tdcore.timeline.events import Event, event_name
from tdcore.timeline.findings import FINDINGS_TRACK, finding_events
from tdcore.timeline.profiles import profile_events
from tdcore.timeline.samples import sample_events
from tdcore.timeline.saved_steps import ROW_COLUMNS, SavedStep, saved_step_events, saved_steps
from tdcore.timeline.step_times import STEPS_TRACK, step_time_events
from tdcore.trial.refresh import no_refresh

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["trace_events"]

# Process ids. They differ from the numbers of all tracks, because Perfetto takes a track with the number of
# its process for the main thread.
_FIRST_WORKER = 10_001
_FIRST_HOST = 1_000_000


def trace_events(trial: Trial, *, attempt: int | None = None) -> Iterator[Event]:
    """Events of the run, metadata first; "ts" and "dur" are microseconds since the earliest time of the run.

    attempt: Only this attempt. None: the attempts that the trial reads.
    """
    with no_refresh(trial):
        steps = sorted(saved_steps(trial.rows(attempt=attempt, columns=ROW_COLUMNS)), key=_by_track)
        times = trial.steps_time(attempt=attempt, intervals=True)
        samples = trial.system(attempt=attempt).to_pylist()
        profiles = trial.profiles(attempt=attempt)
        findings = [each for each in trial.findings() if attempt in (None, each.get("attempt"))]
    names = [each["worker"] for each in samples] + [each.worker for each in profiles]
    names += times["worker"].cast("string").unique().to_pylist()
    workers = _numbered([*(each.worker for each in steps), *names], _FIRST_WORKER)
    hosts = _numbered((each["host"] for each in samples), _FIRST_HOST)
    begins = [each.first_ns for each in steps] + [each["time_ns"] for each in samples]
    begins += [each.begin_ns for each in profiles] + times["time_ns"].slice(0, 1).to_pylist()
    start = min(begins, default=0)
    for worker, process in workers.items():
        yield event_name("process_name", process, 0, worker)
        for mode in sorted({each.mode for each in steps if each.worker == worker}):
            yield event_name("thread_name", process, ModeKeys[mode].value, f"saved {mode} steps")
        yield event_name("thread_name", process, FINDINGS_TRACK, "findings")
        yield event_name("thread_name", process, STEPS_TRACK, "all steps")
    for host, process in hosts.items():
        yield event_name("process_name", process, 0, f"host {host}")
    yield from step_time_events(times, workers, start)
    yield from saved_step_events(steps, workers, start)
    yield from finding_events(findings, steps, samples, times, workers, start)
    yield from sample_events(samples, workers, hosts, start)
    yield from profile_events(profiles, workers, start)


def _by_track(step: SavedStep) -> tuple[str, str, int]:
    return step.worker, step.mode, step.first_ns


def _numbered(names: Iterable[str], first: int) -> dict[str, int]:
    return {name: first + at for at, name in enumerate(dict.fromkeys(names))}
