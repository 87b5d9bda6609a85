"""Large index files are read in chunks, by several threads, and only the chunks that a question needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.format.catalogue import CATALOGUE_COLUMNS, PLAIN_COLUMNS
from tdcore.sinks import LocalSink
from tdcore.trial import Index, create_trial
from tdcore.trial.chunk import Chunk
from tdcore.trial.index_file import WIDE
from tests.trial.writer import SCHEMA, RunWriter, index_table

ONE = np.ones(3, dtype=np.float32)
ROWS, GROUP = 40_000, 8_192  # so that a chunk is two row groups and the last chunk is not full


def large_file(root: Path, rows: int = ROWS) -> Path:
    """Write a run with one index file of many row groups: tensors a, b, c and d at each step."""
    run = RunWriter(root)
    for name in "abcd":
        run.add(name, ONE, step=0, payload=False, origin="Linear")
    pattern = index_table([each.row for each in run._pending])
    number = np.arange(rows)
    table = pattern.take(pa.array(number % 4))
    columns = {"ticket": number, "step": number // 4, "mode_step": number // 4, "elements": number}
    for name, values in {**columns, "min": number / 2.0}.items():
        field = SCHEMA.field(name)
        table = table.set_column(SCHEMA.get_field_index(name), field, pa.array(values, field.type))
    path = root / f"index/worker_0/0000-{0:012d}-{rows - 1:012d}.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, row_group_size=GROUP)
    run.end()
    return path


def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list that gets the row groups of each read of a chunk."""
    seen: list[list[int]] = []
    original = pq.ParquetFile.read_row_groups

    def read(self: pq.ParquetFile, groups: list[int], *args: object, **kwargs: object) -> pa.Table:
        seen.append(list(groups))
        return original(self, groups, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read)
    return seen


def test_a_large_file_reads_as_pyarrow_reads_it(tmp_path: Path) -> None:
    path = large_file(tmp_path)
    assert Index(LocalSink(str(tmp_path)), tmp_path).poll().to_pylist() == pq.read_table(path).to_pylist()


def test_a_question_about_some_steps_decodes_their_row_groups_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large_file(tmp_path)
    trial, seen = create_trial(tmp_path), reads(monkeypatch)
    trial.stats(steps=range(100, 110))
    assert {tuple(groups) for groups in seen} == {(0, 1)}


def test_what_was_decoded_is_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large_file(tmp_path)
    trial = create_trial(tmp_path)
    trial.stats(["a"])
    seen = reads(monkeypatch)
    trial.stats(["b"])
    assert seen == []


def test_opening_a_run_decodes_no_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large_file(tmp_path)
    columns: set[str] = set()
    original = pq.ParquetFile.read_row_groups

    def read(self: pq.ParquetFile, groups: list[int], **kwargs: Any) -> pa.Table:
        columns.update(kwargs["columns"])
        return original(self, groups, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read)
    create_trial(tmp_path)
    assert columns == {*CATALOGUE_COLUMNS, *PLAIN_COLUMNS, "attempt", "worker"}


def test_rows_come_in_the_order_in_which_they_are_asked_for(tmp_path: Path) -> None:
    path = large_file(tmp_path)
    index = Index(LocalSink(str(tmp_path)), tmp_path)
    index.advance()
    rows = np.random.default_rng(0).permutation(ROWS)[:5000]
    assert index.table(rows).to_pylist() == pq.read_table(path).take(pa.array(rows)).to_pylist()


def test_one_row_and_no_row_come_as_tables_too(tmp_path: Path) -> None:
    path = large_file(tmp_path)
    index = Index(LocalSink(str(tmp_path)), tmp_path)
    index.advance()
    for rows in ([ROWS - 1], []):
        wanted = pq.read_table(path).take(pa.array(rows, pa.int64()))
        got = index.table(np.array(rows, dtype=np.int64))
        assert got.schema.equals(SCHEMA)
        assert got.to_pylist() == wanted.to_pylist()


def test_a_file_of_which_a_part_was_read_adds_the_rest(tmp_path: Path) -> None:
    path = large_file(tmp_path)
    early = path.with_name(f"0000-{0:012d}-{19_999:012d}.parquet")
    table = pq.read_table(path)
    whole = path.read_bytes()
    path.unlink()
    pq.write_table(table.slice(0, 20_000), early, row_group_size=GROUP)
    index = Index(LocalSink(str(tmp_path)), tmp_path)
    assert index.poll().num_rows == 20_000
    path.write_bytes(whole)
    assert index.poll().to_pylist() == table.slice(20_000).to_pylist()


def test_large_chunks_are_never_joined_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(chunks: object) -> Chunk:
        raise AssertionError("large chunks were joined")

    monkeypatch.setattr("tdcore.trial.row_columns._JOIN_CHUNKS", 2)
    monkeypatch.setattr(Chunk, "joined", staticmethod(joined))
    large_file(tmp_path)
    index = Index(LocalSink(str(tmp_path)), tmp_path)
    assert index.advance() == ROWS


def test_joined_chunks_hold_the_same_rows(tmp_path: Path) -> None:
    run, index = RunWriter(tmp_path), Index(LocalSink(str(tmp_path)), tmp_path)
    for step in range(70):  # 64 of them become one
        run.add("a", ONE * step, step=step, payload=False, origin=f"M{step}")
        run.flush()
        index.advance()
    table = index.table(np.arange(70), ["step", *WIDE])
    assert table.column("origin").to_pylist() == [f"M{step}" for step in range(70)]
    assert table.column("max").to_pylist() == list(range(70))
