"""Merging: a bounded number of files, and a correct run at every moment of a merge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.compactor import Compactor
from tdcore.flusher.index_summary import IndexGap, IndexSummary, coalesce
from tdcore.flusher.index_table import read_footer
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.flusher.merge import final_groups, join_segments, large_groups, merge_files, next_group
from tdcore.format.catalogue import CatalogueBuilder, decode_catalogue
from tdcore.format.layout import FileRange, data_prefix, index_prefix, parse_data_key
from tdcore.sinks import LocalSink, MemorySink, SinkError
from tests.flushing import Trainer, flush_all, index_ranges, payloads, read_end, read_index, segment_tensors

ONE_BY_ONE = FlusherOptions(segment_bytes=1, merge_fan_in=4, grace=timedelta(), final_merge=timedelta())


def entry(
    first: int, last: int, *, size: int = 1000, level: int = 0, segment: int = 0, gap: bool = False
) -> IndexEntry:
    segments = {f"{first}.safetensors": segment} if segment else {}
    summary = None if gap else IndexSummary(rows=1, records=last - first + 1, segments=segments, level=level)
    return IndexEntry(range=FileRange("worker_0", 0, first, last), size=size, summary=summary)


def row(count: int, **how: Any) -> list[IndexEntry]:
    return [entry(at, at, **how) for at in range(count)]


def spans(group: list[IndexEntry]) -> list[tuple[int, int]]:
    return [(each.range.first, each.range.last) for each in group]


def many_files(count: int = 10, elements: int = 50) -> tuple[MemorySink, Ledger]:
    """Write a run of `count` index files, each with a segment, without merges."""
    trainer, sink = Trainer(slots=64), MemorySink()
    for step in range(count):
        trainer.capture(step, {"w": np.full(elements, step, dtype=np.float32), "gone": None})
    flush_all(trainer, sink, options=replace(ONE_BY_ONE, merge_fan_in=1000))
    ledger = Ledger(sink, worker="worker_0", attempt=0)
    ledger.recover()
    assert len(ledger.entries) == count
    return sink, ledger


def same_rows(a: pa.Table, b: pa.Table) -> bool:
    where = ["segment", "offset"]
    return bool(a.drop(where).to_pylist() == b.drop(where).to_pylist())


# Selection of files


def test_so_many_small_neighbours_of_one_level_are_merged() -> None:
    options = FlusherOptions(merge_fan_in=4)
    assert next_group(row(3), options) == []
    assert spans(next_group(row(4), options)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert spans(next_group(row(9), options)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    older = [entry(0, 3, level=1), entry(4, 7, level=1)]
    newer = [entry(at, at) for at in range(8, 12)]
    assert next_group([*older, *newer[:3]], options) == []
    assert spans(next_group([*older, *newer], options)) == spans(newer)


def test_large_files_and_unreadable_ones_are_left_alone() -> None:
    options = FlusherOptions(merge_fan_in=3, small_index_bytes=5000)
    assert next_group(row(9, size=5000), options) == []
    assert next_group(row(9, gap=True), options) == []
    assert final_groups(row(9, size=5000), options) == []


def test_small_files_before_a_large_one_are_merged_although_they_are_few() -> None:
    options = FlusherOptions(merge_fan_in=16, small_index_bytes=5000)
    files = [entry(0, 0, level=1), *[entry(at, at) for at in range(1, 4)], entry(4, 4, size=9000)]
    assert spans(next_group(files, options)) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert next_group(files[1:], options) == []


def test_files_with_a_hole_between_them_are_not_merged() -> None:
    options = FlusherOptions(merge_fan_in=4)
    assert next_group([entry(0, 0), entry(1, 1), entry(5, 5), entry(6, 6)], options) == []
    assert [
        spans(group) for group in final_groups([entry(0, 0), entry(1, 1), entry(5, 5), entry(6, 6)], options)
    ] == [
        [(0, 0), (1, 1)],
        [(5, 5), (6, 6)],
    ]


def test_at_the_end_neighbours_of_any_size_are_merged_up_to_the_size_of_a_large_file() -> None:
    options = FlusherOptions(large_index_bytes=5000)
    mixed = [entry(0, 0, size=4000), entry(1, 1, size=900), entry(2, 2, size=900), entry(3, 3, size=900)]
    assert [spans(group) for group in large_groups(mixed, options, 60)] == [
        [(0, 0), (1, 1)],
        [(2, 2), (3, 3)],
    ]
    assert large_groups([entry(0, 0, size=4000), entry(1, 1, size=4000)], options, 60) == []
    assert large_groups([entry(0, 0), entry(2, 2)], options, 60) == []
    assert large_groups(row(4, gap=True), options, 60) == []


def test_no_large_merge_begins_that_would_take_longer_than_the_rest_of_the_time() -> None:
    options = FlusherOptions()
    files = row(4, size=8 << 20)
    assert [len(group) for group in large_groups(files, options, 60)] == [4]
    assert [len(group) for group in large_groups(files, options, 2.5)] == [2, 2]
    assert large_groups(files, options, 0.5) == []


def test_a_large_merge_joins_index_files_and_leaves_their_segments() -> None:
    sink, ledger = many_files(6)
    before, segments = read_index(sink), sorted(sink.list(data_prefix("worker_0")))
    merge = merge_files(sink, ledger.entries, FlusherOptions(), segments=False)
    assert sorted(sink.list(data_prefix("worker_0"))) == segments
    assert not any(parse_data_key(key) for key in merge.unneeded)
    table = pq.read_table(pa.BufferReader(sink.get(merge.entry.range.index_key)))
    assert table.to_pylist() == before.to_pylist()


def test_a_merged_file_has_the_catalogue_of_its_rows() -> None:
    sink, ledger = many_files(6)
    merge = merge_files(sink, ledger.entries, FlusherOptions())
    file = pq.ParquetFile(
        pa.BufferReader(sink.get(merge.entry.range.index_key)),
        read_dictionary=["mode", "name", "kind", "status"],
    )
    table, builder = file.read(), CatalogueBuilder()
    builder.add(table)
    found = decode_catalogue(file.metadata.metadata, table.num_rows)
    assert found is not None
    assert found.seal is not None
    assert replace(found, seal=None).encode() == builder.finish().encode()
    assert found.plain
    assert sorted(found.words["name"]) == ["gone", "w"]


def test_no_merged_segment_is_larger_than_allowed() -> None:
    options = FlusherOptions(merge_fan_in=8, small_segment_bytes=4000, merged_segment_bytes=10_000)
    assert spans(next_group(row(8, segment=3000), options)) == [(0, 0), (1, 1), (2, 2)]
    assert [len(group) for group in final_groups(row(8, segment=3000), options)] == [3, 3, 2]
    assert len(next_group(row(8, segment=4000), options)) == 8  # not small, so they stay unchanged


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=400), st.integers(2, 6))
@settings(max_examples=50, deadline=None)
def test_the_number_of_files_stays_bounded_and_work_is_linear(sizes: list[int], fan_in: int) -> None:
    options = FlusherOptions(merge_fan_in=fan_in, small_index_bytes=10_000)
    files: list[IndexEntry] = []
    rewritten = 0
    for at, size in enumerate(sizes):
        files.append(entry(at, at, size=size))
        while group := next_group(files, options):
            start = files.index(group[0])
            assert files[start : start + len(group)] == group
            merged = sum(each.size for each in group)
            rewritten += merged
            summary = IndexSummary.total(each.summary for each in group if each.summary)
            level = replace(summary, level=summary.level + 1)
            place = FileRange("worker_0", 0, group[0].range.first, group[-1].range.last)
            files[start : start + len(group)] = [IndexEntry(range=place, size=merged, summary=level)]
    large = sum(each.size >= options.small_index_bytes for each in files)
    levels = len(sizes).bit_length() + 1
    assert len(files) - large <= (large + 1) * max(3, (fan_in - 1) * levels)
    assert rewritten <= sum(sizes) * levels


# Results of a merge


def test_a_merge_keeps_every_row_and_every_byte() -> None:
    sink, ledger = many_files(10)
    before, bytes_before = read_index(sink), payloads(sink, read_index(sink))
    merge = merge_files(sink, ledger.entries, FlusherOptions())
    for key in merge.unneeded:
        sink.delete(key)
    after = read_index(sink)
    assert same_rows(before, after)
    assert payloads(sink, after) == bytes_before
    assert sink.list(index_prefix("worker_0")) == [merge.entry.range.index_key]
    assert sink.list(data_prefix("worker_0")) == [merge.entry.range.data_key]
    assert sorted(segment_tensors(sink)) == sorted(f"w@{step}" for step in range(10))
    assert set(after["offset"].drop_null().to_numpy() % 64) == {0}


def test_the_summary_of_a_merged_file_is_the_sum() -> None:
    sink, ledger = many_files(6)
    total = ledger.totals()
    merge = merge_files(sink, ledger.entries, FlusherOptions())
    data = sink.get(merge.entry.range.index_key)
    summary, size = read_footer(data[-65536:])
    assert summary == merge.entry.summary
    assert abs(size - len(data)) < 64
    assert (summary.rows, summary.records, summary.level) == (12, 6, 1)
    assert replace(summary, segments={}, level=0) == replace(total, segments={})
    segment = sink.get(merge.entry.range.data_key)
    assert list(summary.segments.values()) == [len(segment)]


def test_large_segments_stay_where_they_are() -> None:
    sink, ledger = many_files(6)
    smallest = min(size for each in ledger.entries if each.summary for size in each.summary.segments.values())
    before = read_index(sink)
    merge = merge_files(sink, ledger.entries, FlusherOptions(small_segment_bytes=smallest))
    assert [key for key in merge.unneeded if key.startswith("data/")] == []
    for key in merge.unneeded:
        sink.delete(key)
    assert before.to_pylist() == read_index(sink).to_pylist()


def test_merged_files_merge_again() -> None:
    sink, ledger = many_files(9)
    before = read_index(sink)
    for _ in range(2):
        for at in range(0, len(ledger.entries), 1):
            group = ledger.entries[at : at + 3]
            if len(group) > 1:
                merge = merge_files(sink, group, FlusherOptions())
                ledger.replace(group, merge.entry)
                for key in merge.unneeded:
                    sink.delete(key)
    assert len(ledger.entries) == 1
    after = read_index(sink)
    assert same_rows(before, after)
    assert len(payloads(sink, after)) == 9


def test_gaps_are_kept_by_a_merge() -> None:
    sink, ledger = many_files(3)
    gap = IndexGap(first_step=1, last_step=1, tensors=2, bytes=3, reason="io_error")
    first = ledger.entries[0]
    assert first.summary is not None
    with_gap = replace(first, summary=replace(first.summary, gaps=(gap,)))
    merge = merge_files(sink, [with_gap, *ledger.entries[1:]], FlusherOptions())
    assert merge.entry.summary is not None
    assert merge.entry.summary.gaps == (gap,)


def test_joined_segments_keep_equal_names_apart_and_satisfy_safetensors() -> None:
    values = [np.full(at + 1, at, dtype=np.float32) for at in range(4)]
    files = [
        safetensors.numpy.save({"w@0": value, "__pad__0": np.zeros(3, dtype=np.uint8)}) for value in values
    ]
    joined = join_segments(files)
    data = b"".join(bytes(part) for part in joined.parts)
    assert len(data) == joined.size
    loaded = {
        name: value for name, value in safetensors.numpy.load(data).items() if not name.startswith("__pad__")
    }
    assert sorted(loaded) == ["w@0", "w@0~2", "w@0~3", "w@0~4"]
    for file, move in zip(files, joined.moves, strict=True):
        start = 8 + int.from_bytes(file[:8], "little")
        assert data[start + move : len(file) + move] == file[start:]


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"\x10",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{}trailing",
        (13).to_bytes(8, "little") + b'{"a":{"b":1}}',
        *(
            len(text).to_bytes(8, "little") + text + bytes(8)
            for text in (
                json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": offsets}}).encode()
                for offsets in ([4, 8], [0, 4], [8, 0], [0, 99], ["0", "8"], [0], 8)
            )
        ),
    ],
)
def test_a_damaged_segment_is_refused(file: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a safetensors file|not enough values"):
        join_segments([safetensors.numpy.save({"a": np.zeros(2)}), file])


def test_an_index_file_with_other_columns_is_refused() -> None:
    sink, ledger = many_files(2)
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), stream)
    sink.objects[ledger.entries[1].range.index_key] = stream.getvalue().to_pybytes()
    with pytest.raises(ValueError, match="different columns"):
        merge_files(sink, ledger.entries, FlusherOptions())


# Merges while the flusher runs


def test_a_long_run_ends_with_few_files_and_all_its_rows() -> None:
    trainer, sink = Trainer(slots=1024), MemorySink()
    for step in range(120):
        trainer.capture(step, {"w": np.full(20, step, dtype=np.float32)})
    options = replace(ONE_BY_ONE, final_merge=timedelta(seconds=60))
    flush_all(trainer, sink, options=options)
    assert len(sink.list(index_prefix("worker_0"))) <= 2
    assert len(sink.list(data_prefix("worker_0"))) <= 2
    table = read_index(sink)
    assert table["step"].to_pylist() == list(range(120))
    assert len(payloads(sink, table)) == 120
    assert read_end(sink)["totals"]["payload_bytes"] == 120 * 80


def test_files_are_merged_while_nothing_else_is_to_be_done() -> None:
    trainer, sink = Trainer(slots=1024), MemorySink()
    consumer = _core.Consumer(trainer.ring.fd)
    clock = [0.0]
    steps = iter(range(80))
    counts: list[int] = []

    def wait(seconds: float) -> None:
        clock[0] += 1.0
        step = next(steps, None)
        if step is None:
            trainer.ring.set_closing()
        else:
            trainer.capture(step, {"w": np.full(20, step, dtype=np.float32)})
        counts.append(len(sink.list("")))

    options = FlusherOptions(visible_delay=timedelta(), merge_fan_in=4, grace=timedelta(seconds=5))
    Flusher(consumer, sink, worker="worker_0", attempt=0, options=options, clock=lambda: clock[0]).run(
        wait=wait
    )
    assert max(counts) < 60  # without merging there would be 160
    assert read_index(sink)["step"].to_pylist() == list(range(80))


def test_a_run_removed_during_a_merge_starts_over(tmp_path: Path) -> None:
    trainer, root = Trainer(), tmp_path / "run"

    class Fragile(LocalSink):
        """A sink whose folder is removed just before the first merged segment is written."""

        def put(self, key: str, parts: Any) -> None:
            place = parse_data_key(key)
            if place is not None and place.last > place.first and root.exists() and not removed:
                removed.append(key)
                shutil.rmtree(root)
            super().put(key, parts)

    removed: list[str] = []
    sink = Fragile(root)
    sink.put("run.json", [b"{}"])
    for step in range(8):
        trainer.capture(step, {"w": np.full(20, step, dtype=np.float32)})
    flush_all(trainer, sink, options=replace(ONE_BY_ONE, merge_fan_in=2, final_merge=timedelta(seconds=60)))
    assert removed
    assert sink.get("run.json") == b"{}"
    table = read_index(sink)
    end = read_end(sink)
    assert [gap["reason"] for gap in end["gaps"]] == ["gone"]
    assert end["gaps"][0]["tensors"] + table.num_rows == 8


def test_what_was_merged_is_deleted_only_after_its_grace() -> None:
    sink, ledger = many_files(4)
    old = sink.list(index_prefix("worker_0"))
    clock = [0.0]
    options = FlusherOptions(merge_fan_in=4, grace=timedelta(seconds=3))
    compactor = Compactor(sink, ledger, options, lambda: clock[0])
    assert compactor.step(0.0)
    assert set(old) < set(sink.list(index_prefix("worker_0")))
    assert not compactor.step(2.9)
    assert compactor.step(3.0)
    assert not compactor.step(3.0)
    assert len(sink.list(index_prefix("worker_0"))) == len(sink.list(data_prefix("worker_0"))) == 1


def test_a_file_that_cannot_be_merged_is_left_and_the_others_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink, ledger = many_files(8)
    segment = sink.list(data_prefix("worker_0"))[1]
    sink.objects[segment] = b"nonsense"
    options = FlusherOptions(merge_fan_in=4, grace=timedelta())
    compactor = Compactor(sink, ledger, options, lambda: 0.0)
    compactor.step(0.0)
    compactor.step(0.0)
    assert index_ranges(sink) == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 7)]
    assert capsys.readouterr().err.count("were not merged") == 1
    assert sink.objects[segment] == b"nonsense"


def test_a_sink_that_refuses_a_merge_only_delays_it() -> None:
    sink, ledger = many_files(4)

    def fault(operation: str, key: str) -> None:
        if operation == "put":
            raise SinkError("full", kind="full")

    sink.fault = fault
    compactor = Compactor(sink, ledger, FlusherOptions(merge_fan_in=4, grace=timedelta()), lambda: 0.0)
    assert not compactor.step(0.0)
    sink.fault = None
    assert not compactor.step(1.0)
    assert compactor.step(60.0)
    assert index_ranges(sink) == [(0, 3)]


@pytest.mark.parametrize("stop_at", range(4))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_merge_cut_off_anywhere_leaves_a_right_run(stop_at: int, after: bool) -> None:
    sink, ledger = many_files(4)
    before = read_index(sink)
    bytes_before = payloads(sink, before)
    writes = [0]

    class CutError(Exception):
        pass

    def cut(original: Callable[..., None]) -> Callable[..., None]:
        def write(*args: Any) -> None:
            writes[0] += 1
            if writes[0] == stop_at + 1 and not after:
                raise CutError
            original(*args)
            if writes[0] == stop_at + 1:
                raise CutError

        return write

    cutting = MemorySink()
    cutting.objects = sink.objects
    cutting.put = cut(cutting.put)  # type: ignore[method-assign]
    cutting.delete = cut(cutting.delete)  # type: ignore[method-assign]

    def merge() -> None:
        for key in merge_files(cutting, ledger.entries, FlusherOptions()).unneeded:
            cutting.delete(key)

    with pytest.raises(CutError):
        merge()
    halfway = read_index(sink)  # as a reader finds the folder before any cleaning
    assert same_rows(before, halfway)
    assert payloads(sink, halfway) == bytes_before
    again = Ledger(sink, worker="worker_0", attempt=0)
    again.recover()
    assert again.covered == 3
    assert again.totals().rows == 8
    tidy = read_index(sink)
    assert same_rows(before, tidy)
    assert payloads(sink, tidy) == bytes_before
    assert len(sink.list(index_prefix("worker_0"))) == len(again.entries)
    assert len(sink.list(data_prefix("worker_0"))) == len(again.totals().segments)


# Summaries


def test_gaps_that_touch_are_joined_and_others_are_not() -> None:
    def gap(first: int, last: int, reason: str = "io_error") -> IndexGap:
        return IndexGap(first_step=first, last_step=last, tensors=1, bytes=10, reason=reason)

    joined = coalesce([gap(0, 1), gap(1, 3), gap(4, 4), gap(6, 7), gap(8, 8, "gone")])
    assert [(each.first_step, each.last_step, each.tensors, each.bytes) for each in joined] == [
        (0, 4, 3, 30),
        (6, 7, 1, 10),
        (8, 8, 1, 10),
    ]
    many = coalesce([gap(at * 10, at * 10) for at in range(1000)])
    assert [(each.first_step, each.last_step, each.tensors) for each in many] == [(0, 9990, 1000)]
    unknown = IndexGap(first_step=None, last_step=None, tensors=None, bytes=None, reason="io_error")
    assert coalesce([unknown, gap(1, 1)]) == [unknown, gap(1, 1)]


def test_of_several_index_files_the_highest_step_that_is_over_counts() -> None:
    told = [IndexSummary(whole_step=step) for step in (None, -1, 4, None)]
    assert IndexSummary.total(told).whole_step == 4
    assert IndexSummary.total(told[:2]).whole_step == -1
    assert IndexSummary.total(told[:1]).whole_step is None


def test_a_summary_survives_its_file_and_a_bad_one_is_refused() -> None:
    summary = IndexSummary(
        rows=3,
        records=2,
        payload_bytes=9,
        last_step=7,
        last_mode_steps={"TRAIN": 7},
        gaps=(
            IndexGap(first_step=1, last_step=2, tensors=None, bytes=4, reason="gone", statistics_kept=True),
        ),
        segments={"x": 9},
        level=2,
        whole_step=6,
    )
    assert IndexSummary.from_metadata(summary.to_metadata()) == summary
    for metadata in (None, {}, {b"tdcore": b"nonsense"}, {b"tdcore": b"[]"}, {b"tdcore": b'{"gaps": [1]}'}):
        with pytest.raises(ValueError, match="no usable tdcore summary"):
            IndexSummary.from_metadata(metadata)
