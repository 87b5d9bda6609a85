"""Samples of the machine in a timeline: counters of workers, hosts and GPUs. Threads: any; no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tdcore.timeline.events import Event, counter

__all__ = ["sample_events"]

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


def sample_events(
    samples: list[dict[str, Any]], workers: dict[str, int], hosts: dict[str, int], start: int
) -> Iterator[Event]:
    """Counters of the samples.

    Args:
        samples: Rows of Trial.system().
        workers: Numbers of the processes of workers.
        hosts: Numbers of the processes of hosts.
        start: The time that is 0 in the timeline.
    """
    for sample in samples:
        worker, host, time = workers[sample["worker"]], hosts[sample["host"]], sample["time_ns"]
        passed = sample["seconds"]
        for title, column in _OF_WORKER.items():
            yield from counter(title, worker, time, start, {"value": sample[column]})
        for title, column in _BYTES_OF_WORKER.items():
            yield from counter(title, worker, time, start, {"value": _mega(sample[column])})
        for title, column in _OF_HOST.items():
            yield from counter(title, host, time, start, {"value": sample[column]})
        total, available = sample["memory_total"], sample["memory_available"]
        used = None if total is None or available is None else total - available
        yield from counter("memory (MB)", host, time, start, {"used": _mega(used)})
        yield from counter(
            "container memory (MB)", host, time, start, {"used": _mega(sample["memory_limit_used"])}
        )
        yield from _rates("", _RATES, sample, passed, host, time, start)
        for gpu in sample["gpus"] or ():
            of = f"GPU {gpu['index']} "
            for title, column in _OF_GPU.items():
                yield from counter(of + title, host, time, start, {"value": gpu[column]})
            yield from counter(of + "memory (MB)", host, time, start, {"used": _mega(gpu["memory_used"])})
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
        yield from counter(prefix + title, process, time, start, series)


def _mega(count: int | None) -> Any:
    return None if count is None else count / 1e6
