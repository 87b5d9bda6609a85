"""Merge many small index files, and their small segments, into one, so that the number of files is bounded.

A merge writes the merged segment, then the merged index file, which replaces the small files. The small files
are deleted later, so that readers with a list of the small files can finish. The run is valid if the flusher
is killed at any point: an index file whose range is contained in another file's range is ignored, and a
segment that is in no index file is deleted. Every row is rewritten about log(number of files) /
log(merge_fan_in) times, every payload byte at most a few times. Threads: only the flusher's thread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tdcore.flusher.index_summary import IndexSummary
from tdcore.flusher.index_writer import ROWS_PER_GROUP, IndexWriter
from tdcore.flusher.ledger import IndexEntry
from tdcore.flusher.options import FlusherOptions
from tdcore.format.layout import INDEX_SCHEMA, PAD_PREFIX, FileRange, segment_key, segment_name
from tdcore.sinks.base import Buffer, Sink, announce, put_straight

__all__ = [
    "MergeResult",
    "MergedSegment",
    "final_groups",
    "join_segments",
    "large_groups",
    "merge_files",
    "next_group",
    "small_files",
]

_MAX_HEADER_BYTES = 100 * 1024 * 1024  # the limit of the safetensors readers
_MERGED_PER_SECOND = 8 << 20  # bytes of index files that a merge reads and writes in a second
_MAX_ROWS = 1 << 23  # of an index file; readers refuse files with twice as many rows
_DATA_START = 4096
_ALIGN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedSegment:
    """A segment joined from others. moves: the bytes to add to the offsets of each source segment."""

    parts: list[Buffer]
    size: int
    moves: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of a merge. unneeded: keys of files that it replaces, index files first."""

    entry: IndexEntry
    unneeded: list[str]


def small_files(entries: Sequence[IndexEntry], options: FlusherOptions) -> int:
    """Number of small index files with a small neighbour, which a merge could reduce."""
    return sum(len(run) for run, _ in _small_runs(entries, options) if len(run) > 1)


def next_group(entries: Sequence[IndexEntry], options: FlusherOptions) -> list[IndexEntry]:
    """The oldest neighbours to be merged now; empty if there are none.

    These are merge_fan_in neighbours of one level, so that a row is rewritten once per level. After kills and
    failed merges the levels can be in any order. If a sequence of small files is longer than the maximum of
    ordered levels, the smallest neighbours of any level are merged.
    """
    for run, closed in _small_runs(entries, options):
        levels = [entry.summary.level if entry.summary else 0 for entry in run]
        start = 0
        for at in range(1, len(run) + 1):
            if at == len(run) or levels[at] != levels[start]:
                if at - start >= options.merge_fan_in:
                    return _fitting(run[start : start + options.merge_fan_in], options)
                start = at
        if len(run) > _most_in_order(run, options.merge_fan_in):
            group = _fitting(_smallest_window(run, options.merge_fan_in), options)
            if len(group) >= 2:
                return group
        if closed and len(run) >= 4:  # a large file follows, so no more neighbours will be added
            group = _fitting(run, options)
            if len(group) >= 2:
                return group
    return []


def final_groups(entries: Sequence[IndexEntry], options: FlusherOptions) -> list[list[IndexEntry]]:
    """All groups to be merged at the end of the run."""
    groups = []
    for run, _ in _small_runs(entries, options):
        rest = list(run)
        while len(rest) >= 2:
            group = _fitting(rest, options)
            if len(group) >= 2:
                groups.append(group)
            rest = rest[max(1, len(group)) :]
    return groups


def large_groups(
    entries: Sequence[IndexEntry], options: FlusherOptions, seconds: float
) -> list[list[IndexEntry]]:
    """Groups to be merged to large index files after all small files are merged, without their segments.

    seconds: Time for a merge; groups that would take longer are left out.
    """
    limit = min(options.large_index_bytes, int(min(seconds, 1e6) * _MERGED_PER_SECOND))
    groups: list[list[IndexEntry]] = []
    group: list[IndexEntry] = []
    for entry in entries:
        rows = sum(each.summary.rows for each in (*group, entry) if each.summary is not None)
        size = sum(each.size for each in (*group, entry))
        joins = not group or group[-1].range.last + 1 == entry.range.first
        if entry.summary is None or not joins or size > limit or rows > _MAX_ROWS:
            groups.append(group)
            group = []
        if entry.summary is not None and entry.size <= limit:
            group.append(entry)
    return [each for each in (*groups, group) if len(each) >= 2]


def merge_files(
    sink: Sink, group: Sequence[IndexEntry], options: FlusherOptions, *, segments: bool = True
) -> MergeResult:
    """Merge neighbouring files into one index file, without deleting files.

    segments: whether small segments are joined too.

    Raises SinkError, or ValueError for damaged files.
    """
    summaries = [entry.summary for entry in group if entry.summary is not None]
    if len(summaries) != len(group) or len(group) < 2:
        raise ValueError("only two or more index files with a summary can be merged")
    first, last = group[0].range, group[-1].range
    place = FileRange(first.worker, first.attempt, first.first, last.last)
    total = IndexSummary.total(summaries)
    small = sorted(name for name, size in total.segments.items() if size < options.small_segment_bytes)
    small = small if segments else []
    moves: dict[str, tuple[str, int]] = {}
    sizes = dict(total.segments)
    announce(sink, [segment_key(place.worker, each) for each in small] if len(small) >= 2 else [])
    announce(sink, [entry.range.index_key for entry in group])
    if len(small) >= 2:
        name = segment_name(place.attempt, place.first, place.last)
        merged = join_segments([sink.get(segment_key(place.worker, each)) for each in small])
        moves = {each: (name, move) for each, move in zip(small, merged.moves, strict=True)}
        sizes = {each: size for each, size in sizes.items() if each not in moves} | {name: merged.size}
        put_straight(sink, segment_key(place.worker, name), merged.parts)
        del merged
    summary = replace(total, segments=sizes, level=total.level + 1)
    data = _join_index_files(sink, group, summary, moves)
    put_straight(sink, place.index_key, [memoryview(data)])
    unneeded = [entry.range.index_key for entry in group] + [
        segment_key(place.worker, each) for each in moves
    ]
    return MergeResult(entry=IndexEntry(range=place, size=len(data), summary=summary), unneeded=unneeded)


def join_segments(files: Sequence[bytes]) -> MergedSegment:
    """Join safetensors files into one. Raises ValueError if one is damaged.

    The data of each file stays contiguous and unchanged; equal names get "~2", "~3", ...
    """
    header: dict[str, Any] = {}
    pieces: list[Buffer] = []
    starts: list[tuple[int, int]] = []  # where each file's data begins: in the file, and in the joined data
    end = pads = 0
    for file in files:
        tensors, data_start = _parse_segment(file)
        gap = -end % _ALIGN
        if gap:
            header[f"{PAD_PREFIX}{pads}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
            pads += 1
            pieces.append(bytes(gap))
        base = end + gap
        for name, tensor in tensors.items():
            if name == "__metadata__":
                header.setdefault(name, tensor)
                continue
            begin, stop = tensor["data_offsets"]
            if name.startswith(PAD_PREFIX):
                name, pads = f"{PAD_PREFIX}{pads}", pads + 1
            header[_free_name(header, name)] = {**tensor, "data_offsets": [base + begin, base + stop]}
        starts.append((data_start, base))
        pieces.append(memoryview(file)[data_start:])
        end = base + len(file) - data_start
    text = json.dumps(header, separators=(",", ":")).encode()
    data_start = -(-(8 + len(text)) // _DATA_START) * _DATA_START
    text = text.ljust(data_start - 8)
    moves = [data_start + base - old for old, base in starts]
    return MergedSegment(
        parts=[len(text).to_bytes(8, "little") + text, *pieces], size=data_start + end, moves=moves
    )


def _small_runs(
    entries: Sequence[IndexEntry], options: FlusherOptions
) -> Iterator[tuple[list[IndexEntry], bool]]:
    """Sequences of neighbouring small files, each with whether a large file follows."""
    run: list[IndexEntry] = []
    for entry in entries:
        joins = not run or run[-1].range.last + 1 == entry.range.first
        small = entry.summary is not None and entry.size < options.small_index_bytes
        if run and not (small and joins):
            yield run, True
            run = []
        if small:
            run.append(entry)
    if run:
        yield run, False


def _most_in_order(run: Sequence[IndexEntry], fan_in: int) -> int:
    """Maximum number of files in a sequence if each level has fewer than fan_in files."""
    records = run[-1].range.last - run[0].range.first + 1
    return (fan_in - 1) * (1 + math.ceil(math.log(max(records, fan_in), fan_in)))


def _smallest_window(run: Sequence[IndexEntry], length: int) -> Sequence[IndexEntry]:
    """The `length` neighbours with the smallest total size."""
    start = min(range(len(run) - length + 1), key=lambda at: sum(each.size for each in run[at : at + length]))
    return run[start : start + length]


def _fitting(run: Sequence[IndexEntry], options: FlusherOptions) -> list[IndexEntry]:
    """The longest prefix of `run` whose merged files are within the limits."""
    index_bytes = segment_bytes = 0
    for at, entry in enumerate(run):
        sizes = entry.summary.segments.values() if entry.summary else ()
        index_bytes += entry.size
        segment_bytes += sum(size for size in sizes if size < options.small_segment_bytes)
        too_much = index_bytes > options.small_index_bytes * options.merge_fan_in
        if at and (too_much or segment_bytes > options.merged_segment_bytes):
            return list(run[:at])
    return list(run)


def _join_index_files(
    sink: Sink, group: Sequence[IndexEntry], summary: IndexSummary, moves: dict[str, tuple[str, int]]
) -> pa.Buffer:
    """Rows of all files in order, with one file in memory at a time."""
    writer = IndexWriter(summary, catalogue=True)
    waiting: list[pa.Table] = []
    rows = written = 0
    for entry in group:
        for table in _row_groups(sink.get(entry.range.index_key)):
            waiting.append(_moved(table, moves))
            rows += table.num_rows
            if rows >= ROWS_PER_GROUP:
                written += _write_all(writer, waiting)
                rows = 0
    written += _write_all(writer, waiting)
    if written != summary.rows:
        raise ValueError(f"index files have {written} rows, and their summaries count {summary.rows}")
    return writer.finish()


def _row_groups(data: bytes) -> Iterator[pa.Table]:
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if not file.schema_arrow.remove_metadata().equals(INDEX_SCHEMA):
            raise ValueError("an index file has different columns than this version writes")
        for at in range(file.num_row_groups):
            yield file.read_row_group(at)
    except pa.ArrowException as error:
        raise ValueError(f"an index file cannot be read: {error}") from error


def _write_all(writer: IndexWriter, tables: list[pa.Table]) -> int:
    if not tables:
        return 0
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    tables.clear()
    writer.write(table)
    return int(table.num_rows)


def _moved(table: pa.Table, moves: dict[str, tuple[str, int]]) -> pa.Table:
    """`table` with its rows referring to the merged segment."""
    table = table.replace_schema_metadata(None)
    if not moves or not table.num_rows:
        return table
    column = table["segment"].unify_dictionaries().combine_chunks()
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    names = column.dictionary.to_pylist()
    if not any(name in moves for name in names):
        return table
    index = pc.fill_null(column.indices, 0).to_numpy()
    shift = np.array([moves[name][1] if name in moves else 0 for name in names], dtype=np.int64)[index]
    targets = [moves[name][0] if name in moves else name for name in names]
    distinct = sorted(set(targets))
    target_index = np.array([distinct.index(name) for name in targets], dtype=np.int32)[index]
    null = pc.is_null(column).to_numpy(zero_copy_only=False)
    offset = table["offset"].combine_chunks()
    offsets = pc.fill_null(offset, 0).to_numpy() + shift
    segment = pa.DictionaryArray.from_arrays(
        pa.array(target_index, mask=null), pa.array(distinct, type=pa.string())
    )
    names_in_order = table.schema.names
    table = table.set_column(names_in_order.index("segment"), INDEX_SCHEMA.field("segment"), segment)
    moved = pa.array(offsets, mask=null, type=pa.int64())
    return table.set_column(names_in_order.index("offset"), INDEX_SCHEMA.field("offset"), moved)


def _parse_segment(file: bytes) -> tuple[dict[str, Any], int]:
    """Header and start of the data of a segment. Only the properties that joining needs are checked."""
    length = int.from_bytes(file[:8], "little")
    if len(file) < 8 or length > min(len(file) - 8, _MAX_HEADER_BYTES):
        raise ValueError("not a safetensors file: its header is longer than the file")
    try:
        tensors = json.loads(file[8 : 8 + length])
        offsets = sorted(tuple(t["data_offsets"]) for name, t in tensors.items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a safetensors file: {error!r}") from error
    end = 0
    for begin, stop in offsets:
        if begin != end or stop < begin:
            raise ValueError("not a safetensors file: its tensors are not contiguous")
        end = stop
    if end != len(file) - 8 - length:
        raise ValueError("not a safetensors file: its tensors do not fill the file")
    return tensors, 8 + length


def _free_name(taken: dict[str, Any], name: str) -> str:
    free, number = name, 2
    while free in taken:
        free, number = f"{name}~{number}", number + 1
    return free
