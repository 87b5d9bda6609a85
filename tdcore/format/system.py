"""System metrics on disk: names and columns of the files below system/.

    system/<host>/<worker>/<attempt>-<first>-<last>.parquet

Each flusher samples at a fixed interval and numbers its samples from 0 (format/row_files.py). Pure functions,
any thread. system_schema() imports pyarrow.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from tdcore.format.row_files import TIME_LIMIT, RowFiles

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SYSTEM_FILES", "host_name", "system_schema"]


def host_name(name: str) -> str:
    """A host's name as the name of a folder: other characters are replaced by "-"."""
    text = re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:128].lstrip("_.-")
    return text or "host"


@cache
def system_schema() -> pa.Schema:
    """Columns of a file, in order. docs/format.md describes them."""
    import pyarrow as pa

    word = pa.dictionary(pa.int32(), pa.string())
    share, amount = pa.float32(), pa.int64()
    gpu = pa.struct(
        [
            ("index", pa.int32()),
            ("uuid", pa.string()),
            ("utilization_percent", share),
            ("memory_total", amount),
            ("memory_used", amount),
            ("power_watts", share),
            ("temperature_celsius", share),
            ("sm_clock_mhz", pa.int32()),
            ("memory_clock_mhz", pa.int32()),
            ("throttle_reasons", amount),
            ("pcie_sent_bytes", amount),
            ("pcie_received_bytes", amount),
            ("nvlink_sent_bytes", amount),
            ("nvlink_received_bytes", amount),
        ]
    )
    required = [
        ("attempt", pa.int32()),
        ("worker", word),
        ("host", word),
        ("sample", amount),
        ("time_ns", amount),
        ("lost", pa.int32()),
    ]
    optional = [
        ("seconds", share),
        ("trainer_seconds", pa.float64()),
        ("trainer_processes", pa.int32()),
        ("trainer_cpu_percent", share),
        ("trainer_memory", amount),
        ("flusher_cpu_percent", share),
        ("flusher_memory", amount),
        ("cpu_percent", share),
        ("iowait_percent", share),
        ("core_percent", pa.list_(share)),
        ("core_iowait_percent", pa.list_(share)),
        ("cpu_limit", share),
        ("memory_total", amount),
        ("memory_available", amount),
        ("memory_limit", amount),
        ("memory_limit_used", amount),
        ("disk_read_bytes", amount),
        ("disk_written_bytes", amount),
        ("network_received_bytes", amount),
        ("network_sent_bytes", amount),
        ("gpus", pa.list_(gpu)),
    ]
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in required]
        + [pa.field(name, kind) for name, kind in optional]
    )


SYSTEM_FILES = RowFiles(
    what="system samples",
    prefix="system/",
    has_folders=True,
    number="sample",
    schema=system_schema,
    limits={"time_ns": TIME_LIMIT, "lost": 1 << 31},
)
