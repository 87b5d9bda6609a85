"""convert: write a run with the data of a recording of smdebug. The recording is not changed.

run.json is written last, so an interrupted conversion is not a run. Memory is bounded by the largest step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdcore.compat.place import recorded_run
from tdcore.compat.recorded_run import RecordedRun, StepTable
from tdcore.compat.recording import StepIndex
from tdcore.compat.segment_file import SegmentFile
from tdcore.errors import ConfigError, SinkError
from tdcore.format import layout
from tdcore.sinks import is_remote, local_path, open_sink, place_text, shown_place
from tdcore.sinks.base import delete_all

if TYPE_CHECKING:
    from tdcore.sinks import Sink

__all__ = ["Converted", "convert"]

_GROUP_BYTES = 64 << 20  # of event files whose values are stored in one segment, unless a step is larger
_GROUP_TENSORS = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Result of a conversion: numbers of workers, saved steps of all workers, and rows; bytes of values."""

    workers: int
    steps: int
    rows: int
    bytes: int


def convert(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> Converted:
    """Write a run with the tensors, steps, modes, workers and collections of a recording of smdebug.

    Statistics are computed from the stored values, as for an open recording (open_smdebug).

    Args:
        old: Folder or URL of the recording.
        new: Folder or URL of the run. It must not exist or must be empty.

    Raises:
        RunNotFound: `old` is not a recording of smdebug.
        ConfigError: `new` contains files, or is inside the recording.
        RunCorrupt: The recording is damaged. The files of the new run are removed.
        SinkError: A place cannot be read or written.
    """
    target = place_text(new, name="the place of the new run")
    _check_apart(place_text(old), target)
    with closing(recorded_run(old)) as run, closing(open_sink(target)) as sink:
        if _has_files(target, sink):
            raise ConfigError(f"{shown_place(target)} contains files; give a new or an empty place")
        written: list[str] = []
        try:
            return _write(run, sink, written)
        except BaseException:
            with suppress(SinkError):
                delete_all(sink, written)
            raise


def _write(run: RecordedRun, sink: Sink, written: list[str]) -> Converted:
    """Write all files. written: gets each key before it is written."""
    steps = rows = size = 0
    workers = run.recording.steps()
    for worker, keys in workers.items():
        ticket = 0
        for group in _groups(run, worker):
            of_group, bytes_of_group = _write_group(run, sink, worker, ticket, group, written)
            ticket += len(group)
            rows, size = rows + of_group, size + bytes_of_group
        steps += len(keys)
    documents = [key for key in run.list("") if layout.parse_index_key(key) is None and key != layout.RUN_KEY]
    for key in [*documents, layout.RUN_KEY]:
        written.append(key)
        sink.put(key, [run.get(key)])
    return Converted(workers=len(workers), steps=steps, rows=rows, bytes=size)


def _groups(run: RecordedRun, worker: str) -> Iterator[list[StepIndex]]:
    """The steps of a worker, in groups that are written together."""
    group: list[StepIndex] = []
    size = tensors = 0
    for index in run.indexes(run.recording.steps()[worker]):
        of_step = sum(place.nbytes for place in index.places)
        if group and (size + of_step > _GROUP_BYTES or tensors + len(index.places) > _GROUP_TENSORS):
            yield group
            group, size, tensors = [], 0, 0
        group.append(index)
        size, tensors = size + of_step, tensors + len(index.places)
    if group:
        yield group


def _write_group(
    run: RecordedRun, sink: Sink, worker: str, first: int, group: Sequence[StepIndex], written: list[str]
) -> tuple[int, int]:
    """Write a segment, then the index file of some steps. Returns the numbers of rows and of bytes."""
    table = StepTable(worker, run.members(worker), run.run_id)
    segment = SegmentFile(run.run_id)
    for ticket, index in enumerate(group, first):
        table.add(run.recording, index, ticket, segment.add)
    last = first + len(group) - 1
    place = layout.FileRange(worker, 0, first, last)
    if segment.has_tensors:
        parts, start = segment.finish()
        for rows in table.rows:
            rows["segment_offset"] += start
        written.append(place.data_key)
        sink.put(place.data_key, parts)
    written.append(place.index_key)
    sink.put(place.index_key, [table.encode(first, last)])
    return sum(map(len, table.rows)), sum(int(rows["payload_bytes"].sum()) for rows in table.rows)


def _check_apart(old: str, new: str) -> None:
    """Raise ConfigError if the new run would be inside the recording."""
    if is_remote(old) and is_remote(new):
        source, target = (f"{shown_place(each).rstrip('/')}/" for each in (old, new))
    elif not is_remote(old) and not is_remote(new):
        source, target = (f"{os.path.realpath(local_path(each)).rstrip('/')}/" for each in (old, new))
    else:
        return
    if target.startswith(source):
        raise ConfigError(
            f"{shown_place(new)} is inside the recording, which is not changed; give another place"
        )


def _has_files(place: str, sink: Sink) -> bool:
    """Whether the place of the new run is used."""
    if is_remote(place):
        return bool(sink.list(""))
    try:
        return bool(os.listdir(local_path(place)))
    except FileNotFoundError:
        return False
    except NotADirectoryError:
        return True
