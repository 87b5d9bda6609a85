"""RecordedRun: a recording of smdebug, presented as the files of a run. Nothing is written.

Readers of runs need no code for recordings: they read run.json, collections, index files and ends, which this
sink computes from the recording. Each step of a worker is one record (ticket) of attempt 0. Index files have
up to STEPS_PER_FILE steps, and are computed when they are read, which reads all tensors of these steps once
for their statistics and checksums. A segment is an address space: the event file of the step with number n in
its index file begins at n << STEP_BITS. So values are read from the event files when they are requested.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tdcore._version import __version__
from tdcore.compat.recording import Record, Recording, StepIndex
from tdcore.errors import RunCorrupt, SinkError, SinkKeyError
from tdcore.flusher.index_summary import IndexSummary
from tdcore.format import layout
from tdcore.format.documents import Fields
from tdcore.format.smdebug import StepKey
from tdcore.sinks.base import Buffer, check_key, check_prefix
from tdcore.trial.fetch import fetch_all

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.flusher.index_table import Rows
    from tdcore.sinks import Sink

__all__ = ["STEPS_PER_FILE", "RecordedRun", "StepTable"]

STEPS_PER_FILE = 128
_STEP_BITS = 40  # an event file has fewer bytes
_HELD_BYTES = 32 << 20  # of computed index files in memory
_AHEAD = 16  # index files of a remote recording that are read at a time
_READ_ONLY = (
    "this is a recording of smdebug, which is only read; `tdcore convert OLD NEW` writes a run with its data"
)


class StepTable:
    """The rows of some steps of one worker, before they are written: add() each step, then encode()."""

    def __init__(self, worker: str, members: Mapping[str, Sequence[str]], run_id: str) -> None:
        from tdcore.compat.step_rows import RecordedNames

        self.rows: list[Rows] = []
        self._worker = worker
        self._run_id = run_id
        self._names = RecordedNames(members)

    def add(
        self, recording: Recording, index: StepIndex, ticket: int, offset: Callable[[Record], int]
    ) -> None:
        """Read the tensors of a step. offset: see StepRows.add."""
        from tdcore.compat.step_rows import StepRows

        rows = StepRows(self._names, index, ticket)
        for record in recording.records(index):
            rows.add(record, offset)
        self.rows.append(rows.finish())

    def encode(self, first: int, last: int) -> pa.Buffer:
        """The index file of the tickets from `first` to `last`."""
        import numpy as np

        from tdcore.flusher.index_table import encode_index, has_payload, summarise

        rows = np.concatenate(self.rows)
        segment = layout.segment_name(0, first, last)
        stored = bool(has_payload(rows).any())
        size = int(rows["payload_bytes"].sum())
        summary: IndexSummary = summarise(
            rows, records=last - first + 1, segment=(segment, size) if stored else None, run_id=self._run_id
        )
        return encode_index(
            rows, self._names, summary, worker=self._worker, attempt=0, segment=segment if stored else None
        )


class RecordedRun:
    """The recording in `inner` as a run. A Sink without writes. Threads: any, if `inner` allows it."""

    def __init__(self, inner: Sink) -> None:
        self._lock = threading.RLock()  # guards everything but the reads of segments
        self.recording = Recording(inner)
        self._inner = inner
        self._documents: dict[str, bytes] = {}
        self._collections: dict[str, dict[str, Any]] | None = None
        self._indexes: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._events: dict[str, str] = {}  # index file of the recording -> event file
        self._run_id = ""

    # The files. -----------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        return self._content(check_key(key))

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        data = self._content(check_key(key))
        return data[max(0, len(data) - length) :]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        segment = layout.parse_data_key(check_key(key))
        if segment is None:
            data = self._content(key)
            return [data[offset : offset + length] for offset, length in ranges]
        with self._lock:
            steps = self._steps_of(segment)
        return [self._of_segment(steps, offset, length) for offset, length in ranges]

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list. A listing of index files lists the recording again."""
        check_prefix(prefix)
        with self._lock:
            workers = self.recording.steps(again=prefix.startswith(layout.INDEX_PREFIX))
        found = [layout.RUN_KEY, layout.COLLECTIONS_KEY]
        for number, (worker, steps) in enumerate(workers.items()):
            found += [each.index_key for each in _files(worker, len(steps))]
            found += [f"attempts/0000-{worker}.json", layout.end_key(worker, 0)]
            found += [f"{layout.COLLECTIONS_PREFIX}{worker}.json"] if number else []
        return sorted(key for key in found if key.startswith(prefix) and key > after)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Raise SinkError: a recording is not changed."""
        raise SinkError(f"cannot write {key!r}: {_READ_ONLY}", kind="denied")

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Raise SinkError: a recording is not changed."""
        raise SinkError(f"cannot write {key!r}: {_READ_ONLY}", kind="denied")

    def delete(self, key: str) -> None:
        """Raise SinkError if the object exists: a recording is not changed."""
        if key in self.list(key):
            raise SinkError(f"cannot delete {key!r}: {_READ_ONLY}", kind="denied")

    def clean(self, prefix: str) -> None:
        """Do nothing: there are no unfinished writes."""

    def close(self) -> None:
        """Close the sink of the recording."""
        self._inner.close()

    # Documents. -----------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        """An id that differs for another recording at the same place."""
        if not self._run_id:
            digest = hashlib.sha256()
            for worker, steps in self.recording.steps().items():
                digest.update(
                    f"{worker} {steps[0].step} {self._time(steps[0])}\n".encode() if steps else b"-"
                )
            for _, fields in self.recording.collections().values():
                digest.update(json.dumps(fields.document, sort_keys=True).encode())
            self._run_id = digest.hexdigest()[:32]
        return self._run_id

    def has_run(self) -> bool:
        """Whether the place of the recording also has a run of tdcore."""
        return layout.RUN_KEY in self._inner.list(layout.RUN_KEY)

    def members(self, worker: str) -> Mapping[str, Sequence[str]]:
        """Names of tensors by collection, as the worker has recorded them."""
        entries = self._entries()
        found = entries.get(worker) or next(iter(entries.values()), {})
        return {name: entry["tensor_names"] for name, entry in found.items()}

    def indexes(self, steps: Sequence[StepKey]) -> Iterator[StepIndex]:
        """The index files of these steps, in order; several at a time if the recording is remote."""
        for at in range(0, len(steps), _AHEAD):
            yield from fetch_all(self._inner, self.recording.index, steps[at : at + _AHEAD])

    def _content(self, key: str) -> bytes:
        with self._lock:
            file = layout.parse_index_key(key)
            return self._read_document(key) if file is None else self._index(file)

    def _read_document(self, key: str) -> bytes:
        if key not in self._documents:
            found = self._document(key) if key in self.list(key) else None
            if found is None:
                raise SinkKeyError(f"nothing under {key!r} in a recording of smdebug")
            self._documents[key] = json.dumps(found).encode()
        return self._documents[key]

    def _document(self, key: str) -> dict[str, Any] | None:
        workers = list(self.recording.steps())
        if key == layout.RUN_KEY:
            return {
                "format": layout.FORMAT_VERSION,
                "run_id": self.run_id,
                "attempts": [self._attempt(workers)],
            }
        if key.startswith("attempts/"):
            return self._attempt(workers)
        end = layout.parse_end_key(key)
        if end is not None:
            return self._end(end[0])
        worker = key.removeprefix(layout.COLLECTIONS_PREFIX).removesuffix(".json")
        worker = workers[0] if key == layout.COLLECTIONS_KEY and workers else worker
        attempt = {"collections": self._entries().get(worker, {})}
        return {"format": layout.FORMAT_VERSION, "attempts": {"0": attempt}}

    def _attempt(self, workers: Sequence[str]) -> dict[str, Any]:
        first = [self._time(steps[0]) for steps in self.recording.steps().values() if steps]
        told = [_world_size(fields) for _, fields in self.recording.collections().values()]
        return {
            "attempt": 0,
            "started_ns": min(first, default=0),
            "world_size": max(len(workers), 1, *told),
            "framework": "recorded by smdebug",
            "framework_version": "",
            "tdcore_version": __version__,
            "host": "",
            "pid": 0,
            "configuration": {},
            "workers": list(workers),
        }

    def _end(self, worker: str) -> dict[str, Any]:
        clean = self.recording.has_ended()
        reason = "the training closed its hook" if clean else "the recording has no marker of its end"
        steps = self.recording.steps()[worker]
        return {
            "format": layout.FORMAT_VERSION,
            "run_id": self.run_id,
            "worker": worker,
            "attempt": 0,
            "clean": clean,
            "reason": reason,
            "ended_ns": self._time(steps[-1]) if steps else 0,
            "last_step": steps[-1].step if steps else -1,
            "drops": {},
            "gaps": [],
        }

    def _entries(self) -> dict[str, dict[str, Any]]:
        """The collections of each worker, as in collections.json."""
        if self._collections is None:
            self._collections = {}
            for worker, (key, fields) in self.recording.collections().items():
                found = self._collections[worker] = {}
                for name, entry in fields.objects("collections", required=True).items():
                    found[name] = {
                        "include_regex": entry.texts("include_regex"),
                        "tensor_names": entry.texts("tensor_names"),
                        "save_config": _object(entry.document, "save_config", key),
                        "reduction_config": _object(entry.document, "reduction_config", key),
                        "included": bool(entry.texts("tensor_names") or entry.texts("include_regex")),
                    }
        return self._collections

    def _time(self, step: StepKey) -> int:
        """Time of the first tensor of a step; 0 if the step has none."""
        index = self.recording.index(step)
        return next((each.tensor.time_ns for each in self.recording.records(index, index.places[:1])), 0)

    # Index files and segments. --------------------------------------------------------------------

    def _index(self, file: layout.FileRange) -> bytes:
        key = file.index_key
        held = self._indexes.get(key)
        if held is None:
            held = self._computed(file)
            self._indexes[key] = held
            while sum(map(len, self._indexes.values())) > _HELD_BYTES and len(self._indexes) > 1:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(key)
        return held

    def _computed(self, file: layout.FileRange) -> bytes:
        table = StepTable(file.worker, self.members(file.worker), self.run_id)
        for number, index in enumerate(self.indexes(self._steps_of(file))):
            table.add(self.recording, index, file.first + number, partial(_address, number))
        return bytes(table.encode(file.first, file.last))

    def _steps_of(self, file: layout.FileRange) -> tuple[StepKey, ...]:
        """The steps of an index file or segment. Raises SinkKeyError if it does not exist."""
        steps = self.recording.steps().get(file.worker, ())
        valid = file.attempt == 0 and file.first % STEPS_PER_FILE == 0
        if not valid or not file.first <= file.last < min(len(steps), file.first + STEPS_PER_FILE):
            raise SinkKeyError(f"nothing under {file.index_key!r} in a recording of smdebug")
        return steps[file.first : file.last + 1]

    def _of_segment(self, steps: Sequence[StepKey], offset: int, length: int) -> Buffer:
        number, at = offset >> _STEP_BITS, offset & ((1 << _STEP_BITS) - 1)
        if not 0 <= number < len(steps):
            return b""
        index = steps[number].key
        with self._lock:
            events = self._events.get(index)
            if events is None:
                events = self._events[index] = self.recording.index(steps[number]).events
        try:
            (data,) = self._inner.get_ranges(events, [(at, length)])
        except SinkKeyError as error:
            raise SinkKeyError(f"{events}, which {index} refers to, does not exist") from error
        return data


def _address(number: int, record: Record) -> int:
    """Place of a tensor in the segment. number: number of its step in the index file."""
    return (number << _STEP_BITS) + record.begin


def _files(worker: str, steps: int) -> Iterator[layout.FileRange]:
    """The index files of a worker with this number of steps."""
    for first in range(0, steps, STEPS_PER_FILE):
        yield layout.FileRange(worker, 0, first, min(first + STEPS_PER_FILE, steps) - 1)


def _world_size(fields: Fields) -> int:
    """Number of workers of the training, from a file of collections; 0 if it is missing."""
    meta = fields.document.get("_meta", {})
    return Fields(meta, f"{fields.where}: _meta").whole("num_workers", 0, most=1 << 31)


def _object(document: Mapping[str, Any], name: str, key: str) -> dict[str, Any] | None:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise RunCorrupt(f"{key}: {name} of a collection is not an object")
    return value
