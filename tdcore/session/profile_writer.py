"""Profile writer: a short-lived process that stores a profile in the run.

The training process leaves the files of a profile and job.json in a temporary folder. This process compresses
the trace, computes the totals of operators and functions, stores the files in the run, stores the document of
the profile last, and removes the folder. If the run cannot be written, a message on standard error has the
folder, which stays.

Threads: main() and write_profile() by any thread.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pstats
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO

from tdcore.errors import SinkError, TdcoreError
from tdcore.format.kineto import base_time, trace_events
from tdcore.format.layout import FORMAT_VERSION
from tdcore.format.profiles import MAX_TRACE_BYTES, MAX_TRACE_JSON_BYTES, functions_schema, profile_key
from tdcore.session.operator_totals import operator_totals
from tdcore.sinks import Sink, is_remote, open_sink

__all__ = ["JOB_FILE", "PSTATS_FILE", "TRACE_FILE", "main", "write_profile"]

JOB_FILE, TRACE_FILE, PSTATS_FILE = "job.json", "trace.json", "python.pstats"
_LEVEL = 5  # of gzip
_PIECE_BYTES = 1 << 20
_PATIENCE = timedelta(minutes=5)
_NICENESS = 10


def main(arguments: Sequence[str]) -> int:
    """Entry point of the process. arguments: a JSON object with the folder of the profile."""
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    return write_profile(Path(json.loads(arguments[0])["folder"]))


def write_profile(folder: Path) -> int:
    """Store the profile in the folder. Return an exit status. Never raises an Exception."""
    try:
        job = json.loads((folder / JOB_FILE).read_text())
        with contextlib.closing(_open(job["out"])) as sink:
            _store(sink, folder, job["document"])
    except Exception as error:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            print(
                f"tdcore: a profile could not be stored: {error}; its files are in {folder}",
                file=sys.stderr,
                flush=True,
            )
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _open(out: str) -> Sink:
    if not is_remote(out):
        return open_sink(out)
    from tdcore.sinks.s3 import S3Sink

    return S3Sink(out, patience=_PATIENCE)


def _store(sink: Sink, folder: Path, document: dict[str, Any]) -> None:
    """Store the files, and the document last."""
    place = (document["worker"], document["attempt"], document["number"])
    sizes: dict[str, int] = {}
    messages: list[str] = document["messages"]

    def put(file: str, data: bytes) -> None:
        sink.put(profile_key(*place, file), [data])
        sizes[file] = len(data)

    trace, stats = folder / TRACE_FILE, folder / PSTATS_FILE
    data: bytes | None
    if trace.exists():
        with _part(messages, "the totals of the operators are missing"):
            with trace.open("rb") as stream:
                data = _parquet(operator_totals(trace_events(stream, TRACE_FILE)), document)
            put("operators", data)
        with _part(messages, "the trace is not stored"):
            with trace.open("rb") as stream:
                document["base_ns"] = base_time(stream, TRACE_FILE)
            data = _compressed(trace)
            if data is None:
                messages.append(
                    f"the trace is not stored: it has {trace.stat().st_size:,} bytes, and readers accept "
                    f"{MAX_TRACE_JSON_BYTES:,}, or {MAX_TRACE_BYTES:,} compressed; profile fewer steps"
                )
            else:
                put("trace", data)
    if stats.exists():
        with _part(messages, "the totals of the Python functions are missing"):
            put("functions", _parquet(_functions(stats), document))
        with _part(messages, "the file of cProfile is not stored"):
            put("pstats", stats.read_bytes())
    document = {"format": FORMAT_VERSION, **document, "files": sizes}
    sink.put(profile_key(*place), [json.dumps(document, indent=1).encode()])


@contextlib.contextmanager
def _part(messages: list[str], missing: str) -> Iterator[None]:
    """Add a message after an exception, so that the other parts are stored. A failed write is raised."""
    try:
        yield
    except SinkError:
        raise
    except Exception as error:
        reason = str(error) if isinstance(error, TdcoreError) else f"{type(error).__name__}: {error}"
        messages.append(f"{missing}: {reason}"[:1000])


def _compressed(path: Path) -> bytes | None:
    """The compressed trace; None if it is larger than readers accept."""
    if path.stat().st_size > MAX_TRACE_JSON_BYTES:
        return None
    target = path.with_suffix(".gz")
    try:
        with path.open("rb") as stream, gzip.open(target, "wb", compresslevel=_LEVEL) as file:
            while piece := stream.read(_PIECE_BYTES):
                file.write(piece)
                if _size(file.fileobj) > MAX_TRACE_BYTES:
                    return None
        return target.read_bytes() if target.stat().st_size <= MAX_TRACE_BYTES else None
    finally:
        target.unlink(missing_ok=True)


def _size(file: BinaryIO | Any) -> int:
    return int(file.tell()) if file is not None else 0


def _functions(path: Path) -> Any:
    """Totals of the Python functions of a file of cProfile, with the largest self time first."""
    import pyarrow as pa

    found: Mapping[tuple[str, int, str], tuple[int, int, float, float, Any]]
    found = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]  # missing in the type stubs
    rows = sorted(found.items(), key=lambda each: (-each[1][2], each[0]))
    columns = [
        [_text(file) for (file, _, _), _ in rows],
        [line for (_, line, _), _ in rows],
        [_text(name) for (_, _, name), _ in rows],
        [calls for _, (_, calls, _, _, _) in rows],
        [primitive for _, (primitive, _, _, _, _) in rows],
        [round(own * 1e9) for _, (_, _, own, _, _) in rows],
        [round(total * 1e9) for _, (_, _, _, total, _) in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, functions_schema(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=functions_schema())


def _text(name: str) -> str:
    """The name with a question mark for each byte of the path of a file that is not UTF-8."""
    return name.encode(errors="replace").decode()


def _parquet(table: Any, document: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = json.dumps({"run_id": document["run_id"]}).encode()
    out = pa.BufferOutputStream()
    pq.write_table(
        table.replace_schema_metadata({b"tdcore": about}), out, compression="zstd", write_page_checksum=True
    )
    data: bytes = out.getvalue().to_pybytes()
    return data
