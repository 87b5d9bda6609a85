"""TDC210: the use of the machines over a run. A summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.rules.base import Finding, Summary
from tdcore.rules.columns import Columns
from tdcore.rules.measures.distribution import Distribution
from tdcore.rules.measures.series import groups
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.window import Window

__all__ = ["OverallSystemUsage"]

Floats = npt.NDArray[np.float64]

_RATES = {
    "disk read (MiB/s)": "disk_read_bytes",
    "disk written (MiB/s)": "disk_written_bytes",
    "network received (MiB/s)": "network_received_bytes",
    "network sent (MiB/s)": "network_sent_bytes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverallSystemUsage:
    """A summary of the use of each machine: CPU, memory, disks, network and GPUs. It never finds a fault.

    What it does:
        Computes the maximum, the 99 %, 95 % and 50 % percentiles and the minimum of each value of a machine:
        all CPUs, the busiest core, waits for disks, memory of the machine and of the trainer, bytes per
        second of disks and network, and utilization and memory of each GPU.

    Why it matters:
        The summary shows at a glance which resource is near its limit, and which one is idle.

    Decides by:
        The rule is a summary. It has no condition, and its verdict is never an issue. The summary is in the
        verdict. A percentile is within 0.5 % of its value, so the rule needs little memory also in long runs.

        The rule runs only if it is named, or as a part of ProfilerReport. "all" does not include it.

    Parameters:

    False alarms:
        None, because the rule never fires.

    Do:
        Compare the values with the limits of the machine. The other rules from TDC201 on judge the values.

    Source:
        The rule OverallSystemUsage of smdebug.
    """

    code: ClassVar[str] = "TDC210"
    judged_by: ClassVar[JudgedBy] = "run"
    is_summary: ClassVar[bool] = True
    system_columns: ClassVar[tuple[str, ...]] = ("cpu_percent",)

    def needs(self) -> Need:
        """System samples."""
        return Need(what="system samples")

    def check(self, window: Window) -> Iterator[Finding]:
        """Add the samples to the distributions. There are no findings."""
        if window.samples is not None:
            machines, gpus = window.samples.columns, window.samples.gpus
            values = _machine_values(machines)
            for host, rows in groups(machines, np.arange(len(window.samples)), "host"):
                _add(window.memory, host, -1, values, rows)
            values = _gpu_values(gpus)
            for host, index, rows in groups(gpus, np.arange(len(gpus.table)), "host", "index"):
                _add(window.memory, host, index, values, rows)
            if window.memory:
                window.judged(len(window.samples))
        return iter(())

    def summary(self, memory: Mapping[Any, Any]) -> Summary:
        """One table per machine, with a row for each value."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (host, index, _, name), distribution in sorted(memory.items(), key=lambda entry: entry[0]):
            gpu = f"gpu{index} " if index >= 0 else ""
            found.setdefault(host, {})[gpu + name] = distribution.statistics()
        return found


def _add(memory: Any, host: str, index: int, values: Mapping[str, Floats], rows: Any) -> None:
    """Add the known values of one machine (index -1) or GPU to its distributions."""
    for position, (name, column) in enumerate(values.items()):
        known = column[rows]
        if np.isfinite(known).any():
            memory.setdefault((host, index, position, name), Distribution()).add(known)


def _machine_values(columns: Columns) -> dict[str, Floats]:
    floats = columns.floats
    seconds = floats("seconds")
    values = {
        "cpu (%)": floats("cpu_percent"),
        "busiest core (%)": _largest(columns, "core_percent"),
        "waits for disks (%)": floats("iowait_percent"),
        "memory (%)": 100 - 100 * _ratio(floats("memory_available"), floats("memory_total")),
        "trainer memory (MiB)": floats("trainer_memory") / 2**20,
    }
    return values | {name: _ratio(floats(column), seconds) / 2**20 for name, column in _RATES.items()}


def _gpu_values(gpus: Columns) -> dict[str, Floats]:
    return {
        "utilization (%)": gpus.floats("utilization_percent"),
        "memory (%)": 100 * _ratio(gpus.floats("memory_used"), gpus.floats("memory_total")),
    }


def _ratio(value: Floats, whole: Floats) -> Floats:
    found: Floats = np.divide(value, whole, out=np.full(len(value), np.nan), where=whole > 0)
    return found


def _largest(columns: Columns, name: str) -> Floats:
    """The largest value of a list in each row; NaN without a list."""
    lists = columns.table.column(name).combine_chunks()
    parents = np.asarray(pc.list_parent_indices(lists).cast(pa.int64()))
    levels = np.asarray(lists.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False))
    found = np.full(len(lists), np.nan)
    np.fmax.at(found, parents, levels)
    return found
