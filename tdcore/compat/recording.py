"""Recording: the files of one recording of smdebug, read and checked.

Every file is of another program, and may be damaged or hostile: each fault raises RunCorrupt with the key of
the file. No key of a file is taken from a document without a check, so nothing outside the recording is read.
Memory is bounded by the largest tensor and the limits below. Threads: one, except that several threads read
a remote sink.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.compat.events import HEADER_BYTES, MAX_RECORD_BYTES, StoredTensor, check_header, parse_record
from tdcore.errors import RunCorrupt, SinkKeyError
from tdcore.format.documents import Fields, clipped, parse_json
from tdcore.format.layout import MAX_NAME_CHARS
from tdcore.format.smdebug import (
    COLLECTIONS_FOLDER,
    END_MARKERS,
    INDEX_FOLDER,
    StepKey,
    collections_worker,
    parse_step_key,
    run_worker,
)
from tdcore.modes import ModeKeys
from tdcore.sinks.base import is_key
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Record", "Recording", "StepIndex", "is_recording"]

_MAX_DOCUMENT_BYTES = 64 << 20
_WINDOW_BYTES = 32 << 20  # of an event file that is read at a time, unless one tensor is larger
_MAX_STEP = 10**12 - 1
_MAX_DIMENSIONS = 32
_EVENTS = re.compile(r"events/[0-9]{1,20}/(?P<name>[^/]+)\.tfevents")
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON can contain one, UTF-8 cannot


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Place of a record in an event file, from the index."""

    name: str
    begin: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepIndex:
    """The tensors of one worker and step.

    Attributes:
        key: The index file.
        mode, mode_step, step: The step.
        events: Key of the event file.
        places: Records of the event file, in order.
        shapes: Name -> shape, for tensors whose values were not saved.
    """

    key: str
    mode: ModeKeys
    mode_step: int
    step: int
    events: str
    places: tuple[Place, ...]
    shapes: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One tensor with its values. begin: place of the values in the event file. content: the values."""

    tensor: StoredTensor
    begin: int
    content: memoryview


def is_recording(sink: Sink) -> bool:
    """Whether the place has collections as smdebug writes them."""
    return any(map(collections_worker, sink.list(f"{COLLECTIONS_FOLDER}/")))


class Recording:
    """The recording in `sink`."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._steps: dict[str, tuple[StepKey, ...]] = {}

    def steps(self, *, again: bool = False) -> dict[str, tuple[StepKey, ...]]:
        """The index files of each worker, by its name in a run, in order of steps. again: list again."""
        if self._steps and not again:
            return self._steps
        found: dict[str, dict[int, StepKey]] = {worker: {} for worker in self._collection_keys()}
        recorded: dict[str, str] = {}  # name in the run -> name in the recording
        for key in self.sink.list(f"{INDEX_FOLDER}/"):
            parsed = parse_step_key(key) if is_key(key) else None
            if parsed is None:
                continue
            worker = run_worker(parsed.worker)
            if recorded.setdefault(worker, parsed.worker) != parsed.worker:
                raise RunCorrupt(
                    f"{key}: the workers {clipped(parsed.worker)} and {clipped(recorded[worker])} have the "
                    f"same name {worker!r} in a run; rename the files of one of them"
                )
            other = found.setdefault(worker, {}).setdefault(parsed.step, parsed)
            if other is not parsed:
                raise RunCorrupt(f"{key}: {other.key} is the index of the same step and worker")
        self._steps = {
            worker: tuple(found[worker][step] for step in sorted(found[worker]))
            for worker in sorted(found, key=worker_order)
        }
        return self._steps

    def has_ended(self) -> bool:
        """Whether the training has closed its hook."""
        return any(key in END_MARKERS for key in [*self.sink.list("training_job"), *self.sink.list("END_")])

    def collections(self) -> dict[str, tuple[str, Fields]]:
        """Worker -> the key of its file of collections, and the content."""
        return {
            worker: (key, Fields(parse_json(self._document(key), key), key))
            for worker, key in self._collection_keys().items()
        }

    def _collection_keys(self) -> dict[str, str]:
        """Worker -> the last of its files of collections."""
        found = {}
        for key in self.sink.list(f"{COLLECTIONS_FOLDER}/"):
            worker = collections_worker(key) if is_key(key) else None
            if worker is not None:
                found[run_worker(worker)] = key
        return found

    def index(self, step: StepKey) -> StepIndex:
        """Read and check one index file."""
        fields = Fields(parse_json(self._document(step.key), step.key), step.key)
        meta = Fields(fields.document.get("meta"), f"{step.key}: meta")
        mode = ModeKeys.__members__.get(meta.text("mode"))
        if mode is None:
            raise meta.wrong("mode", f"one of {', '.join(ModeKeys.__members__)}")
        events = meta.text("event_file_name")
        match = _EVENTS.fullmatch(events)
        if match is None or match["name"] != f"{step.step:012d}_{step.worker}" or not is_key(events):
            raise meta.wrong("event_file_name", "the event file of this step and worker")
        return StepIndex(
            key=step.key,
            mode=mode,
            mode_step=meta.whole("mode_step", most=_MAX_STEP),
            step=step.step,
            events=events,
            places=_places(fields),
            shapes=_shapes(fields),
        )

    def records(self, index: StepIndex, places: Sequence[Place] | None = None) -> Iterator[Record]:
        """The tensors of one step, in order, checked against the index. A few are in memory at a time.

        places: some of the places of the index; None: all.
        """
        for window in _windows(index.places if places is None else places):
            first = window[0].begin
            data = self._events(index, window)
            for place in window:
                record = data[place.begin - first : place.begin - first + place.nbytes]
                where = f"{index.events}: {clipped(place.name, 80)} at byte {place.begin}"
                try:
                    tensor = parse_record(record)
                except ValueError as error:
                    raise RunCorrupt(f"{where}: {error}; restore the file from a copy") from error
                _compare(index, place, tensor, where)
                content = record[tensor.begin : tensor.end]
                if tensor.dtype == "BOOL" and content.tobytes().strip(b"\0\1"):
                    raise RunCorrupt(
                        f"{where}: a value is neither true nor false; restore the file from a copy"
                    )
                yield Record(tensor=tensor, begin=place.begin + tensor.begin, content=content)

    def _events(self, index: StepIndex, window: Sequence[Place]) -> memoryview:
        """The bytes of some records, which must all exist."""
        first = window[0].begin
        end = window[-1].begin + window[-1].nbytes
        try:
            if end - first > _WINDOW_BYTES:  # one large record: check its header before reading it
                (header,) = self.sink.get_ranges(index.events, [(first, HEADER_BYTES)])
                try:
                    check_header(memoryview(header), end - first)
                except ValueError as error:
                    raise RunCorrupt(f"{index.events}: the record at byte {first}: {error}") from error
            (data,) = self.sink.get_ranges(index.events, [(first, end - first)])
        except SinkKeyError as error:
            raise RunCorrupt(f"{index.key} refers to {index.events}, which does not exist") from error
        if len(data) < end - first:
            raise RunCorrupt(
                f"{index.events}: {index.key} refers to bytes {first}..{end}, and only {len(data)} of them "
                "exist: the file is cut short; restore it from a copy"
            )
        return memoryview(data)

    def _document(self, key: str) -> bytes:
        data = self.sink.tail(key, _MAX_DOCUMENT_BYTES + 1)
        if len(data) > _MAX_DOCUMENT_BYTES:
            raise RunCorrupt(f"{key} has more than {_MAX_DOCUMENT_BYTES:,} bytes, the maximum that is read")
        return data


def _places(fields: Fields) -> tuple[Place, ...]:
    """The places of records. They must be in order and must not overlap, so no byte is read twice."""
    found = []
    end = 0
    for entry in _objects(fields, "tensor_payload"):
        place = Place(
            name=entry.text("tensorname"), begin=entry.whole("start_idx"), nbytes=entry.whole("length")
        )
        if place.begin < end:
            raise entry.wrong("start_idx", f"at least {end}, the end of the tensor before")
        if not HEADER_BYTES < place.nbytes <= MAX_RECORD_BYTES:
            raise entry.wrong("length", f"a number from {HEADER_BYTES + 1} to {MAX_RECORD_BYTES}")
        end = place.begin + place.nbytes
        found.append(place)
    return tuple(found)


def _shapes(fields: Fields) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for entry in _objects(fields, "shape_payload"):
        shape = entry.document.get("shape")
        sizes = shape if isinstance(shape, list) else None
        if sizes is None or not all(type(each) is int and 0 <= each < 1 << 63 for each in sizes):
            raise entry.wrong("shape", "a list of whole numbers")
        if len(sizes) > _MAX_DIMENSIONS:
            raise entry.wrong("shape", f"a list of at most {_MAX_DIMENSIONS} numbers")
        if math.prod(sizes) >= 1 << 63:
            raise entry.wrong("shape", "the shape of fewer than 2^63 elements")
        name = entry.text("tensorname")
        if not 0 < len(name) <= MAX_NAME_CHARS or _SURROGATE.search(name):
            raise entry.wrong("tensorname", f"a name of 1 to {MAX_NAME_CHARS} characters of UTF-8")
        found[name] = tuple(sizes)
    return found


def _objects(fields: Fields, name: str) -> list[Fields]:
    """A list of objects; empty if it is missing."""
    listed: Any = fields.document.get(name, [])
    if not isinstance(listed, list):
        raise fields.wrong(name, "a list")
    return [Fields(each, f"{fields.where}: {name} {number}") for number, each in enumerate(listed)]


def _windows(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Neighbouring records that are read together."""
    window: list[Place] = []
    for place in places:
        if window and place.begin + place.nbytes - window[0].begin > _WINDOW_BYTES:
            yield window
            window = []
        window.append(place)
    if window:
        yield window


def _compare(index: StepIndex, place: Place, tensor: StoredTensor, where: str) -> None:
    """Raise RunCorrupt unless the event is the one that the index names."""
    for what, found, expected in (("name", tensor.name, place.name), ("step", tensor.step, index.step)):
        if found != expected:
            raise RunCorrupt(
                f"{where}: its {what} is {clipped(str(found), 80)}, {index.key} has "
                f"{clipped(str(expected), 80)}; restore the files from a copy"
            )
