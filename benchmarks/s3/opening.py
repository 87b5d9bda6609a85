"""Question "open": a run of many workers in a bucket that answers each request after 50 ms.

tdcore opens the run (it reads the whole index, the attempts and the end files) and returns all statistics.
pyarrow finds the same index files through Arrow's own S3 client, and reads them into a table. Each reader has
its own process.
"""

from __future__ import annotations

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LATENCY_SECONDS = 0.05
READERS = ("tdcore, cold cache", "tdcore, warm cache", "pyarrow", "tdcore, folder")
_ROWS = 40  # rows of an index file
_MODULES = (
    ("tdcore.trial", "tdcore.sinks.s3", "obstore", "botocore.session"),
    ("pyarrow.dataset", "pyarrow.fs"),
)


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """One measurement. reader: one of READERS. place: the run's folder or URL."""

    reader: str
    place: str


def make_run(root: Path, *, workers: int, files: int) -> None:
    """Write a finished run with a number of index files per worker, by the writer of the tests."""
    from tests.trial.writer import RunWriter

    values = np.random.default_rng(0).standard_normal((files * _ROWS, 16), dtype=np.float32)
    for number in range(workers):
        run = RunWriter(root, worker=f"worker_{number}", world_size=workers)
        for step in range(files):
            for row in range(_ROWS):
                run.add(f"layer_{row}.weight", values[step * _ROWS + row], step=step, payload=False)
            run.flush()
        run.end()


def upload(root: Path, put: Any) -> int:
    """Upload every file of the run by put(key, data). Returns the number of files."""
    paths = [path for path in root.rglob("*") if path.is_file()]

    def one(path: Path) -> None:
        reply = put(path.relative_to(root).as_posix(), path.read_bytes())
        assert reply.status == 200, reply

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, paths))
    return len(paths)


def measure(job: OpenJob) -> dict[str, float]:
    """Run the measurement in its own process. Imports are measured separately."""
    start = time.perf_counter()
    for module in _MODULES[job.reader == "pyarrow"]:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    pa = importlib.import_module("pyarrow")
    pa.scalar(0)  # modules that are imported at first use
    imports = time.perf_counter() - start
    answer = _pyarrow(job.place) if job.reader == "pyarrow" else _tdcore(job.place)
    return answer | {"imports_s": imports}


def _tdcore(place: str) -> dict[str, float]:
    from tdcore.trial import create_trial

    start, cpu = time.perf_counter(), time.process_time()
    trial = create_trial(place)
    opened = time.perf_counter()
    rows = trial.stats().num_rows
    done = time.perf_counter()
    cpu = time.process_time() - cpu
    trial.close()
    return {"open_s": opened - start, "all_s": done - start, "rows": rows, "cpu_s": cpu}


def _pyarrow(url: str) -> dict[str, float]:
    import pyarrow.dataset as ds
    import pyarrow.fs as fs

    from tdcore.sinks.s3.options import parse_s3_url

    place = parse_s3_url(url)
    start, cpu = time.perf_counter(), time.process_time()
    system = fs.S3FileSystem(
        region=place.options.region, endpoint_override=place.options.endpoint_url, scheme="http"
    )
    index = ds.dataset(f"{place.bucket}/{place.prefix}/index", filesystem=system, format="parquet")
    found = time.perf_counter()
    rows = index.to_table().num_rows
    done = time.perf_counter()
    return {
        "found_s": found - start,
        "open_s": done - start,
        "all_s": done - start,
        "rows": rows,
        "cpu_s": time.process_time() - cpu,
    }
