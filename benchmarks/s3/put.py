"""Question "put": CPU seconds per GB and MB/s of one client process.

Start-up, from the start of the process until the first small object is acknowledged, is reported separately
and not included otherwise. tdcore captures 4 MB tensors as fast as the ring accepts them, until the session
is closed, so the time includes copy, statistics, checksums, index and end. The end of a session that has
saved almost nothing is measured separately (ALONE), and the report subtracts it. The peers only upload
objects of the same size from memory.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from benchmarks.s3.peers import PEERS, Target

TENSOR_BYTES = 4 << 20
OBJECT_BYTES = 4 * TENSOR_BYTES
_SLACK = 1 << 20  # bytes of a segment in addition to its four tensors
OURS = {  # engine, and the share of the ring above which the flusher spills to disk (None: the default)
    "tdcore, obstore": ("obstore", 1.0),
    "tdcore, aiobotocore": ("aiobotocore", 1.0),
    "tdcore, obstore, spilling": ("obstore", None),
    "tdcore, obstore, alone": ("obstore", 1.0),
    "tdcore, aiobotocore, alone": ("aiobotocore", 1.0),
}
ALONE = {  # the run that measures start and end, for each run of tdcore
    "tdcore, obstore": "tdcore, obstore, alone",
    "tdcore, aiobotocore": "tdcore, aiobotocore, alone",
    "tdcore, obstore, spilling": "tdcore, obstore, alone",
}


@dataclass(frozen=True, kw_only=True)
class PutJob:
    """One measurement. url: a run in the bucket, to which the engine is added. born: start of the process."""

    tool: str
    url: str
    prefix: str
    total_bytes: int
    born: float
    endpoint: str
    bucket: str
    ca_bundle: str | None
    concurrency: int


def measure(job: PutJob) -> dict[str, float]:
    """In a process of its own."""
    return _tdcore(job) if job.tool in OURS else _peer(job)


def _peer(job: PutJob) -> dict[str, float]:
    names = [field.name for field in dataclasses.fields(Target)]
    target = Target(**{name: getattr(job, name) for name in names})
    put_all = PEERS[job.tool].open(target)
    put_all([(f"{job.prefix}/first", b"x")])
    started = _started(job.born, time.process_time())
    import random

    pool = [random.Random(i).randbytes(OBJECT_BYTES) for i in range(4)]
    count = max(1, job.total_bytes // OBJECT_BYTES)
    objects = [(f"{job.prefix}/{i:06}", pool[i % len(pool)]) for i in range(count)]
    cpu, start = time.process_time(), time.perf_counter()
    put_all(objects)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {**started, **_took(count * OBJECT_BYTES, seconds, cpu), "upload_cpu_s": cpu}


def _tdcore(job: PutJob) -> dict[str, float]:
    from benchmarks.s3.sessions import Capturing, client_cpu_seconds, open_session, spooled_bytes, until_ready
    from tdcore.flusher import FlusherOptions

    engine, spill_fill = OURS[job.tool]
    options: dict[str, Any] = {} if spill_fill is None else {"spill_fill": spill_fill}
    place = f"{job.url}&engine={engine}&concurrency={job.concurrency}"
    session = open_session(
        place,
        options=FlusherOptions(
            segment_bytes=OBJECT_BYTES + _SLACK, visible_delay=timedelta(milliseconds=200), **options
        ),
    )
    until_ready(session)
    started = _started(job.born, client_cpu_seconds())
    import numpy as np

    tensors = [np.random.default_rng(i).standard_normal(1 << 20, dtype=np.float32) for i in range(4)]
    capturing, count = Capturing(session, tensors), job.total_bytes // OBJECT_BYTES
    own, cpu, start = time.process_time(), client_cpu_seconds(), time.perf_counter()
    for _ in range(count):
        capturing.capture()
    session.close()
    seconds, cpu = time.perf_counter() - start, client_cpu_seconds() - cpu
    trainer = time.process_time() - own
    return {
        **started,
        **_took(count * OBJECT_BYTES, seconds, cpu),
        "upload_cpu_s": cpu - trainer,
        "drops": session.counters().dropped_tensors,
        "spooled_mb": spooled_bytes(place) / 1e6,
    }


def _started(born: float, cpu: float) -> dict[str, float]:
    return {"start_s": time.time() - born, "start_cpu_s": cpu}


def _took(moved: int, seconds: float, cpu: float) -> dict[str, float]:
    return {"bytes": moved, "seconds": seconds, "cpu_s": cpu}


def rates(answer: dict[str, float], alone: dict[str, float] | None) -> dict[str, float]:
    """Rates per GB and per second, without the cost of `alone`; empty if no bytes were moved."""
    gigabytes = answer["bytes"] / 1e9
    if not gigabytes:
        return {}
    fixed = alone or {"cpu_s": 0.0, "upload_cpu_s": 0.0, "seconds": 0.0}
    seconds = max(answer["seconds"] - fixed["seconds"], 1e-9)
    return {
        "cpu_s_per_gb": max(0.0, answer["cpu_s"] - fixed["cpu_s"]) / gigabytes,
        "upload_cpu_s_per_gb": max(0.0, answer["upload_cpu_s"] - fixed["upload_cpu_s"]) / gigabytes,
        "mb_per_s": gigabytes * 1e3 / seconds,
        "mb_per_s_with_end": gigabytes * 1e3 / answer["seconds"],
        "server_cpu_s_per_gb": answer["server_cpu_s"] / gigabytes,
    }
