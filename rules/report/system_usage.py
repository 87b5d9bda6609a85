"""overall_system_usage: distribution of the use of each machine over a run (OverallSystemUsage of smdebug).

A summary that never fires. Functions without state; any thread.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.rules.measures.series import groups
from tdcore.rules.samples import Samples
from tdcore.rules.window import Columns

__all__ = ["STATISTICS", "overall_system_usage"]

STATISTICS = ("max", "p99", "p95", "p50", "min")
Floats = npt.NDArray[np.float64]

_RATES = {
    "disk read": "disk_read_bytes",
    "disk written": "disk_written_bytes",
    "network received": "network_received_bytes",
    "network sent": "network_sent_bytes",
}


def overall_system_usage(samples: pa.Table) -> dict[str, dict[str, dict[str, float]]]:
    """Max, p99, p95, p50 and min of each value, by machine and name of the value with its unit.

    Args:
        samples: Rows with the columns of tdcore.format.system.system_schema(), such as Trial.system().
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    if not samples.num_rows:
        return found
    rows = Samples(samples)
    columns = rows.columns
    values = _machine_values(columns)
    for host, mine in groups(columns, np.arange(len(rows)), "host"):
        of_host = {name: _distribution(column[mine]) for name, column in values.items()}
        found[host] = {name: each for name, each in of_host.items() if each}
    gpus = rows.gpus
    of_gpus = {
        "utilization (%)": gpus.floats("utilization_percent"),
        "memory (%)": 100 * _ratio(gpus.floats("memory_used"), gpus.floats("memory_total")),
    }
    for host, index, mine in groups(gpus, np.arange(len(gpus.table)), "host", "index"):
        for name, column in of_gpus.items():
            distribution = _distribution(column[mine])
            if distribution:
                found[host][f"gpu{index} {name}"] = distribution
    return found


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
    rates = {f"{name} (MiB/s)": _ratio(floats(column), seconds) / 2**20 for name, column in _RATES.items()}
    return values | rates


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


def _distribution(values: Floats) -> dict[str, float]:
    """The statistics of the known values; empty without any."""
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    percentiles = np.percentile(known, [100, 99, 95, 50, 0]).tolist()
    return dict(zip(STATISTICS, percentiles, strict=True))
