"""Timeline of a run in the JSON format of Chrome traces, which Perfetto and chrome://tracing open.

Each worker is a process of the trace, with a track for the saved steps of each mode, a track for findings,
tracks for its profiles (timeline_profiles.py), and counters of the trainer's processes. Each host is a
process with counters of the machine and its GPUs. All times are times of the hosts' clocks; the trace begins
at the earliest one.
Threads: see Trial; no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tdcore.format.layout import TensorKind
from tdcore.modes import ModeKeys
from tdcore.text.short_repr import cut
from tdcore.text.step_text import SYSTEM_SAMPLES
from tdcore.timeline_profiles import profile_events
from tdcore.trial.refresh import no_refresh

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.trial import Trial

__all__ = ["trace_events"]

Event: TypeAlias = dict[str, Any]

_GROUPS = {
    TensorKind.WEIGHT: "weights captured",
    TensorKind.BIAS: "weights captured",
    TensorKind.OPTIMIZER_STATE: "weights captured",
    TensorKind.INPUT: "outputs captured",
    TensorKind.OUTPUT: "outputs captured",
    TensorKind.LOSS: "loss captured",
    TensorKind.GRADIENT: "gradients captured",
    TensorKind.OUTPUT_GRADIENT: "gradients captured",
}
_OTHER = "other tensors captured"
_ROW_COLUMNS = ("attempt", "worker", "mode", "mode_step", "kind", "time_ns")
_FINDINGS_TRACK = 100
_FIRST_HOST = 1_000_000  # process ids of hosts, behind those of the workers
_MAX_TEXT = 1000  # characters of a text from the run


class _Saved(NamedTuple):
    """A saved step: the times of its first and last capture, and spans of captures of the same group."""

    worker: str
    attempt: int
    mode: str
    mode_step: int
    tensors: int
    first_ns: int
    last_ns: int
    spans: list[tuple[str, int]]  # group, time of its first capture


def trace_events(trial: Trial, *, attempt: int | None = None) -> Iterator[Event]:
    """Events of the run, metadata first; "ts" and "dur" are microseconds since the earliest time of the run.

    attempt: Only this attempt. None: the attempts that the trial reads.
    """
    with no_refresh(trial):
        steps = sorted(_saved_steps(trial.rows(attempt=attempt, columns=_ROW_COLUMNS)), key=_by_track)
        samples = trial.system(attempt=attempt).to_pylist()
        profiles = trial.profiles(attempt=attempt)
        findings = [each for each in trial.findings() if attempt in (None, each.get("attempt"))]
    names = [each["worker"] for each in samples] + [each.worker for each in profiles]
    workers = _numbered([*(each.worker for each in steps), *names], 1)
    hosts = _numbered((each["host"] for each in samples), _FIRST_HOST)
    times = [each.first_ns for each in steps] + [each["time_ns"] for each in samples]
    times += [each.begin_ns for each in profiles]
    start = min(times, default=0)
    for worker, process in workers.items():
        yield _name("process_name", process, 0, worker)
        for mode in sorted({each.mode for each in steps if each.worker == worker}):
            yield _name("thread_name", process, ModeKeys[mode].value, f"saved {mode} steps")
        yield _name("thread_name", process, _FINDINGS_TRACK, "findings")
    for host, process in hosts.items():
        yield _name("process_name", process, 0, f"host {host}")
    yield from _step_events(steps, workers, start)
    yield from _finding_events(findings, steps, samples, workers, start)
    yield from _sample_events(samples, workers, hosts, start)
    yield from profile_events(profiles, workers, start)


def _by_track(step: _Saved) -> tuple[str, str, int]:
    return step.worker, step.mode, step.first_ns


def _numbered(names: Iterable[str], first: int) -> dict[str, int]:
    return {name: first + at for at, name in enumerate(dict.fromkeys(names))}


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": _text(name)}}


def _microseconds(time_ns: int, start_ns: int) -> float:
    return (time_ns - start_ns) / 1000


def _text(value: object) -> str:
    return cut(str(value), _MAX_TEXT)


# Steps ----------------------------------------------------------------------------------------------------


def _saved_steps(rows: pa.Table) -> Iterator[_Saved]:
    """The saved steps, by worker, attempt, mode and number."""
    if not rows.num_rows:
        return
    words = {name: _codes(rows.column(name)) for name in ("worker", "mode", "kind")}
    step, attempt = rows.column("mode_step").to_numpy(), rows.column("attempt").to_numpy()
    time = rows.column("time_ns").to_numpy()
    (workers, worker), (modes, mode), (kinds, kind) = words["worker"], words["mode"], words["kind"]
    order = np.lexsort((time, step, mode, attempt, worker))
    keys = [worker[order], attempt[order], mode[order], step[order]]
    groups, names = _group_codes(kinds)
    group, time = groups[kind[order]], time[order]
    starts = _starts(keys)
    changes = _starts([*keys, group])
    ends = np.append(starts[1:], len(order))
    of_step = np.searchsorted(changes, starts)
    for at, end, first, last in zip(
        starts.tolist(), ends.tolist(), of_step.tolist(), [*of_step[1:].tolist(), len(changes)], strict=True
    ):
        yield _Saved(
            worker=workers[keys[0][at]],
            attempt=int(keys[1][at]),
            mode=modes[keys[2][at]],
            mode_step=int(keys[3][at]),
            tensors=end - at,
            first_ns=int(time[at]),
            last_ns=int(time[end - 1]),
            spans=[(names[group[change]], int(time[change])) for change in changes[first:last].tolist()],
        )


def _codes(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Texts, and the number of each row's text."""
    encoded = column.cast("string").combine_chunks().dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices, dtype=np.int64)


def _group_codes(kinds: list[str]) -> tuple[npt.NDArray[np.int64], list[str]]:
    """For each kind the number of its group, and the names of the groups."""
    names = list(dict.fromkeys([*_GROUPS.values(), _OTHER]))
    of_kind = {kind.label: group for kind, group in _GROUPS.items()}
    return np.array([names.index(of_kind.get(kind, _OTHER)) for kind in kinds], dtype=np.int64), names


def _starts(keys: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.intp]:
    """Positions at which one of the keys differs from the position before."""
    new = np.zeros(len(keys[0]), dtype=np.bool_)
    new[0] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _step_events(steps: list[_Saved], workers: dict[str, int], start: int) -> Iterator[Event]:
    for at, each in enumerate(steps):
        after = steps[at + 1] if at + 1 < len(steps) else None
        if after is not None and (after.worker, after.mode) != (each.worker, each.mode):
            after = None
        # Captures of a step can end after the next step has begun, but slices of a track must not overlap.
        end = each.last_ns if after is None else min(each.last_ns, after.first_ns)
        process, track = workers[each.worker], ModeKeys[each.mode].value
        yield _slice(
            f"{each.mode} {each.mode_step}",
            process,
            track,
            (each.first_ns, end, start),
            {"attempt": each.attempt, "step": each.mode_step, "tensors": each.tensors},
        )
        bounds = [min(time, end) for _, time in each.spans] + [end]
        for (name, _), first, last in zip(each.spans, bounds, bounds[1:], strict=False):
            yield _slice(name, process, track, (first, last, start), {})
        if after is not None and after.attempt == each.attempt and after.mode_step > each.mode_step:
            seconds = (after.first_ns - each.first_ns) / 1e9 / (after.mode_step - each.mode_step)
            yield from _counter(
                f"ms per {each.mode} step", process, each.first_ns, start, {"mean": seconds * 1000}
            )


def _slice(
    name: str, process: int, track: int, times: tuple[int, int, int], args: dict[str, object]
) -> Event:
    first, last, start = times
    return {
        "ph": "X",
        "name": name,
        "cat": "saved",
        "pid": process,
        "tid": track,
        "ts": _microseconds(first, start),
        "dur": (last - first) / 1000,
        "args": args,
    }


# Findings -------------------------------------------------------------------------------------------------


def _finding_events(
    findings: list[dict[str, Any]],
    steps: list[_Saved],
    samples: list[dict[str, Any]],
    workers: dict[str, int],
    start: int,
) -> Iterator[Event]:
    """A finding is at the end of its step, or at its system sample; else at the worker's last saved step."""
    times: dict[tuple[Any, ...], int] = {
        (each["worker"], each["attempt"], SYSTEM_SAMPLES, each["sample"]): each["time_ns"] for each in samples
    }
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
            "s": "p",
            "name": _text(found.get("rule")),
            "cat": "finding",
            "pid": workers[worker],
            "tid": _FINDINGS_TRACK,
            "ts": _microseconds(time, start),
            "args": {
                key: _text(found[key])
                for key in ("code", "mode", "mode_step", "tensor", "why", "do", "count", "last_mode_step")
                if found.get(key) is not None
            },
        }


# Samples of the machine -----------------------------------------------------------------------------------

_OF_WORKER = {
    "trainer CPU (% of one core)": "trainer_cpu_percent",
    "flusher CPU (% of one core)": "flusher_cpu_percent",
    "trainer processes": "trainer_processes",
}
_OF_HOST = {"CPU (%)": "cpu_percent", "I/O wait (%)": "iowait_percent"}
_BYTES_OF_WORKER = {"trainer memory (MB)": "trainer_memory", "flusher memory (MB)": "flusher_memory"}
_RATES = {
    "disk (MB/s)": {"read": "disk_read_bytes", "written": "disk_written_bytes"},
    "network (MB/s)": {"received": "network_received_bytes", "sent": "network_sent_bytes"},
}
_GPU_RATES = {
    "PCIe (MB/s)": {"received": "pcie_received_bytes", "sent": "pcie_sent_bytes"},
    "NVLink (MB/s)": {"received": "nvlink_received_bytes", "sent": "nvlink_sent_bytes"},
}
_OF_GPU = {
    "utilization (%)": "utilization_percent",
    "power (W)": "power_watts",
    "temperature (C)": "temperature_celsius",
    "SM clock (MHz)": "sm_clock_mhz",
}


def _sample_events(
    samples: list[dict[str, Any]], workers: dict[str, int], hosts: dict[str, int], start: int
) -> Iterator[Event]:
    for sample in samples:
        worker, host, time = workers[sample["worker"]], hosts[sample["host"]], sample["time_ns"]
        passed = sample["seconds"]
        for title, column in _OF_WORKER.items():
            yield from _counter(title, worker, time, start, {"value": sample[column]})
        for title, column in _BYTES_OF_WORKER.items():
            yield from _counter(title, worker, time, start, {"value": _mega(sample[column])})
        for title, column in _OF_HOST.items():
            yield from _counter(title, host, time, start, {"value": sample[column]})
        total, available = sample["memory_total"], sample["memory_available"]
        used = None if total is None or available is None else total - available
        yield from _counter("memory (MB)", host, time, start, {"used": _mega(used)})
        yield from _counter(
            "container memory (MB)", host, time, start, {"used": _mega(sample["memory_limit_used"])}
        )
        yield from _rates("", _RATES, sample, passed, host, time, start)
        for gpu in sample["gpus"] or ():
            of = f"GPU {gpu['index']} "
            for title, column in _OF_GPU.items():
                yield from _counter(of + title, host, time, start, {"value": gpu[column]})
            yield from _counter(of + "memory (MB)", host, time, start, {"used": _mega(gpu["memory_used"])})
            yield from _rates(of, _GPU_RATES, gpu, passed, host, time, start)


def _rates(
    prefix: str,
    titles: dict[str, dict[str, str]],
    values: dict[str, Any],
    passed: float | None,
    process: int,
    time: int,
    start: int,
) -> Iterator[Event]:
    for title, columns in titles.items():
        series = {
            name: _mega(values[column]) / passed if passed and values[column] is not None else None
            for name, column in columns.items()
        }
        yield from _counter(prefix + title, process, time, start, series)


def _mega(count: int | None) -> Any:
    return None if count is None else count / 1e6


def _counter(
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
            "ts": _microseconds(time, start),
            "args": known,
        }
