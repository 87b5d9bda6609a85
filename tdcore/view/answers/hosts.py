"""The load of the machines of a run over time, from its system samples. Functions without state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.trial.worker_order import worker_order
from tdcore.view.answers.arrow import coded, numbers, whole_numbers
from tdcore.view.answers.buckets import points

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["hosts"]

Floats = npt.NDArray[np.float64]

_GIB = float(1 << 30)
_MB = 1e6
# Column, name and unit of series of each worker's processes, and the number that a value is divided by.
_OF_WORKER = (
    ("trainer_cpu_percent", "CPU of the training", "%", 1.0),
    ("trainer_memory", "memory of the training", "GiB", _GIB),
)
_OF_MACHINE = (
    ("cpu_percent", "CPU of the machine", "%", 1.0),
    ("iowait_percent", "waiting for disks", "%", 1.0),
    ("memory_used", "memory of the machine", "GiB", _GIB),
    ("disk_read_bytes", "disk reads", "MB/s", _MB),
    ("disk_written_bytes", "disk writes", "MB/s", _MB),
    ("network_received_bytes", "network received", "MB/s", _MB),
    ("network_sent_bytes", "network sent", "MB/s", _MB),
)
_RATES = frozenset(column for column, _, unit, _ in _OF_MACHINE if unit == "MB/s")
_OF_GPU = (
    ("utilization_percent", "utilisation", "%", 1.0),
    ("memory_used", "memory", "GiB", _GIB),
    ("power_watts", "power", "W", 1.0),
    ("temperature_celsius", "temperature", "°C", 1.0),
)


def hosts(
    trial: Trial, columns: int, seconds: tuple[int | None, int | None] = (None, None)
) -> list[dict[str, Any]]:
    """`Host` of the contract for each machine.

    Args:
        trial: The run.
        columns: Maximum number of pixel columns.
        seconds: First and last second since the first sample, both included; None for no limit.
    """
    table = trial.system()
    if not table.num_rows:
        return []
    times = whole_numbers(table, "time_ns")
    times = (times - times.min()) / 1e9
    codes, texts = coded(table, "host")
    found = []
    for host in sorted({texts[code] for code in np.unique(codes).tolist()}):
        visible = (times >= (seconds[0] or 0)) & (times <= (np.inf if seconds[1] is None else seconds[1]))
        chosen = np.flatnonzero((codes == texts.index(host)) & visible)
        rows, of_rows = table.take(pa.array(chosen)), times[chosen]
        series = [*_series(rows, of_rows, columns), *_gpu_series(rows, of_rows, columns)]
        found.append({"host": host, "series": series})
    return found


def _series(table: pa.Table, seconds: Floats, columns: int) -> Iterator[dict[str, Any]]:
    """Series of the machine, then of the processes of each worker."""
    for column, name, unit, divisor in _OF_MACHINE:
        yield from _one(name, unit, seconds, _machine_values(table, column) / divisor, columns)
    codes, texts = coded(table, "worker")
    workers = sorted({texts[code] for code in np.unique(codes).tolist()}, key=worker_order)
    for column, name, unit, divisor in _OF_WORKER:
        values = numbers(table, column) / divisor
        for worker in workers:
            rows = codes == texts.index(worker)
            whose = f"{name}, {worker}" if len(workers) > 1 else name
            yield from _one(whose, unit, seconds[rows], values[rows], columns)


def _machine_values(table: pa.Table, column: str) -> Floats:
    if column == "memory_used":
        return numbers(table, "memory_total") - numbers(table, "memory_available")
    values = numbers(table, column)
    if column not in _RATES:
        return values
    duration = numbers(table, "seconds")
    return values / np.where(duration > 0, duration, np.nan)


def _gpu_series(table: pa.Table, seconds: Floats, columns: int) -> Iterator[dict[str, Any]]:
    """Series of each GPU."""
    lists = table.column("gpus").combine_chunks()
    row = np.asarray(pc.list_parent_indices(lists).to_numpy(), dtype=np.int64)
    if not row.size:
        return
    gpus = pa.Table.from_struct_array(lists.flatten())
    index = numbers(gpus, "index")
    for number in np.unique(index[~np.isnan(index)]).tolist():
        mine = index == number
        for column, name, unit, divisor in _OF_GPU:
            values = numbers(gpus, column)[mine] / divisor
            yield from _one(f"GPU {int(number)}: {name}", unit, seconds[row[mine]], values, columns)


def _one(name: str, unit: str, seconds: Floats, values: Floats, columns: int) -> Iterator[dict[str, Any]]:
    """A series, unless it has no values."""
    there = ~np.isnan(values)
    if there.any():
        milliseconds = np.round(seconds[there] * 1e3).astype(np.int64)
        yield {"name": name, "unit": unit, "points": points(milliseconds, values[there], columns, unit=1e-3)}
