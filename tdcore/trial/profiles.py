"""Profile: the operators and Python functions of a window of training steps, as read from a run.

    for profile in create_trial("runs/demo").profiles():
        profile.operators()                    # pyarrow.Table, largest self time first
        Path("step.json.gz").write_bytes(profile.trace())     # for ui.perfetto.dev

Files of a run are untrusted: readers check their sizes, and every fault raises RunCorrupt.
Threads: see Trial.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.errors import ProfileUnavailable, RunCorrupt, SinkKeyError
from tdcore.format import kineto
from tdcore.format.layout import PROFILES_PREFIX, size_limit
from tdcore.format.profiles import (
    ProfileDocument,
    functions_schema,
    operators_schema,
    parse_profile,
    parse_profile_key,
    profile_key,
)
from tdcore.sinks.base import Sink, announce
from tdcore.text.short_repr import cut
from tdcore.trial.parquet_file import LIMITS, check_run, check_size, reading

__all__ = ["Profile", "read_profiles"]

_MAX_ROWS = 1_000_000


class Profile:
    """A profile of one worker. The attributes are those of its document.

    Attributes:
        worker, attempt, number: The worker, its attempt, and the number of the profile, from 0.
        state: "complete", "partial" (the window ended early) or "failed" (nothing was recorded).
        reason: The cause of the states "partial" and "failed".
        mode, first_step, last_step: The profiled steps; the steps are None without a record.
        begin_ns, end_ns: Time of the window, in nanoseconds since 1970 (UTC).
        messages: Parts that are missing, and their reasons.
        request: Number of the request of `tdcore profile`; None for a window of ProfilerConfig.
        keys: Keys of the stored files in the run, by their kind: trace, operators, functions, pstats.
        nbytes: Size of the stored files.
    """

    def __init__(self, sink: Sink, document: ProfileDocument, run_id: str) -> None:
        self._sink = sink
        self._run_id = run_id
        self._document = document
        self.worker = document.worker
        self.attempt = document.attempt
        self.number = document.number
        self.state = document.state
        self.reason = document.reason
        self.mode = document.mode
        self.first_step = document.first_step
        self.last_step = document.last_step
        self.begin_ns = document.begin_ns
        self.end_ns = document.end_ns
        self.base_ns = document.base_ns
        self.messages = document.messages
        self.request = document.request
        self.nbytes = sum(document.files.values())
        self.keys: dict[str, str] = {
            file: profile_key(self.worker, self.attempt, self.number, file) for file in document.files
        }

    def __repr__(self) -> str:
        return cut(f"<Profile {self.number} of {self.worker} in attempt {self.attempt}: {self._about()}>")

    def _about(self) -> str:
        if self.first_step is None or self.last_step is None:
            return f"{self.state}, {self.reason}"
        return f"{self.mode} steps {self.first_step} to {self.last_step}, {self.state}"

    @property
    def document(self) -> Mapping[str, Any]:
        """The whole document of the profile. docs/format.md describes it."""
        return self._document.document

    def operators(self) -> pa.Table:
        """Totals of the operators, with the largest self time first.

        Raises ProfileUnavailable, RunCorrupt.
        """
        return self._table("operators", operators_schema())

    def functions(self) -> pa.Table:
        """Totals of the Python functions, with the largest self time first.

        Raises ProfileUnavailable, RunCorrupt.
        """
        return self._table("functions", functions_schema())

    def trace(self) -> bytes:
        """The trace of torch.profiler, compressed with gzip. Raises ProfileUnavailable, RunCorrupt."""
        return self._bytes("trace")

    def pstats(self) -> bytes:
        """The file of cProfile, for the module pstats. Load the file only if the run is trusted.

        functions() has the same numbers and is safe. Raises ProfileUnavailable, RunCorrupt.
        """
        return self._bytes("pstats")

    def trace_events(self) -> Iterator[dict[str, Any]]:
        """The events of the trace, one at a time. Raises ProfileUnavailable, RunCorrupt."""
        with gzip.open(io.BytesIO(self.trace())) as stream:
            yield from kineto.trace_events(stream, self.keys["trace"])

    def _bytes(self, file: str) -> bytes:
        key = self.keys.get(file)
        if key is None:
            why = "; ".join(filter(None, [self.reason, *self.messages])) or "they were not requested"
            raise ProfileUnavailable(f"profile {self.number} of {self.worker} has no {file}: {why}")
        try:
            data, limit = self._sink.get(key), size_limit(key)
        except SinkKeyError as error:
            raise RunCorrupt(f"{key} is missing, although the document of the profile names it") from error
        if limit is not None and len(data) > limit:
            raise RunCorrupt(f"{key} has {len(data):,} bytes; at most {limit:,} are read")
        return data

    def _table(self, file: str, schema: pa.Schema) -> pa.Table:
        data = self._bytes(file)
        key = self.keys[file]
        with reading(key, "opening"):
            parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, **LIMITS)
        check_size(parquet, key, len(data))
        check_run(key, parquet.metadata.metadata, self._run_id)
        if parquet.metadata.num_rows > _MAX_ROWS:
            raise RunCorrupt(f"{key} has {parquet.metadata.num_rows:,} rows; at most {_MAX_ROWS:,} are read")
        with reading(key, "reading"):
            return parquet.read(columns=schema.names).select(schema.names).cast(schema)


def read_profiles(
    sink: Sink, run_id: str, attempts: Sequence[int], workers: Sequence[str] | None
) -> list[Profile]:
    """The profiles of these attempts and workers (None: all workers), by attempt, number and worker.

    Raises RunCorrupt, UnsupportedFormat, SinkError.
    """
    keys = {}
    for key in sink.list(PROFILES_PREFIX):
        place = parse_profile_key(key)
        if place is not None and place[1] in attempts and (workers is None or place[0] in workers):
            keys[key] = place
    announce(sink, list(keys))
    found = []
    for key in keys:
        try:
            data = sink.get(key)
        except SinkKeyError:
            continue  # the attempt was removed in the meantime
        found.append(Profile(sink, parse_profile(data, key, run_id), run_id))
    return sorted(found, key=lambda each: (each.attempt, each.number, each.worker))
