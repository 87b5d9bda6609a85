"""Index.poll: returns every row once, also while the flusher writes and merges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.errors import RunCorrupt, SinkError
from tdcore.sinks import LocalSink, MemorySink
from tdcore.trial import Hole, Index
from tests.trial.writer import SCHEMA, RunWriter, index_bytes, parquet_bytes

ONE = np.ones(3, dtype=np.float32)


def open_index(root: Path, waits: list[float] | None = None) -> Index:
    return Index(LocalSink(str(root)), root, wait=(waits if waits is not None else []).append)


def steps(table: pa.Table) -> list[int]:
    return [int(step) for step in table.column("step").to_pylist()]


def memory_run(root: Path) -> MemorySink:
    """The files of a run in a MemorySink, whose faults a test can set."""
    sink = MemorySink()
    for path in root.rglob("*"):
        if path.is_file():
            sink.put(path.relative_to(root).as_posix(), [path.read_bytes()])
    return sink


def test_poll_returns_new_rows_only(tmp_path: Path) -> None:
    run, index = RunWriter(tmp_path), open_index(tmp_path)
    assert index.poll().num_rows == 0
    run.add("a", ONE, step=0)
    run.flush()
    assert steps(index.poll()) == [0]
    assert index.poll().num_rows == 0
    run.add("a", ONE, step=1)
    run.flush()
    assert steps(index.poll()) == [1]


def test_poll_returns_the_rows_as_they_were_written(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", ONE, step=0, origin="Linear")
    run.add("b", None, step=0, status="absent")
    run.add("c", ONE, step=1, payload=False, reason="degraded")
    run.add("c", ONE, step=1, parts=2)
    key = run.flush()
    table = open_index(tmp_path).poll()
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == pq.read_table(tmp_path / str(key)).to_pylist()


def test_merged_file_adds_nothing_that_was_read(tmp_path: Path) -> None:
    run, index = RunWriter(tmp_path), open_index(tmp_path)
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    assert steps(index.poll()) == [0, 1, 2]
    run.merge()
    assert index.poll().num_rows == 0


def test_merged_file_gives_only_the_rows_that_are_new_in_it(tmp_path: Path) -> None:
    run, index = RunWriter(tmp_path), open_index(tmp_path)
    run.add("a", ONE, step=0)
    run.flush()
    index.poll()
    for step in (1, 2):
        run.add("a", ONE, step=step)
        run.flush()
    run.merge()
    table = index.poll()
    assert steps(table) == [1, 2]
    assert table.column("max").to_pylist() == [1.0, 1.0]


def test_small_files_left_beside_their_merger_are_not_read_again(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    run.merge(delete=False)
    assert steps(open_index(tmp_path).poll()) == [0, 1, 2]


def test_empty_index_file_covers_its_tickets(tmp_path: Path) -> None:
    run, waits = RunWriter(tmp_path), list[float]()
    index = open_index(tmp_path, waits)
    run.skip_tickets(3)
    run.flush()
    run.add("a", ONE, step=7)
    run.flush()
    assert steps(index.poll()) == [7]
    assert index.holes == []
    assert waits == []


def test_hole_is_listed_again_and_then_reported(tmp_path: Path) -> None:
    run, waits = RunWriter(tmp_path), list[float]()
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    hidden = run.index_files()[1]
    kept = hidden.read_bytes()
    hidden.unlink()
    index = open_index(tmp_path, waits)
    assert steps(index.poll()) == [0, 2]
    assert 0 < len(waits) <= 10
    assert index.holes == [Hole(worker="worker_0", attempt=0, first=1, last=1)]
    before = len(waits)
    assert index.poll().num_rows == 0
    assert len(waits) == before  # a known hole costs no request
    hidden.write_bytes(kept)
    assert steps(index.poll()) == [1]
    assert index.holes == []


def test_hole_that_closes_while_listing_keeps_the_order(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    hidden = run.index_files()[1]
    kept = hidden.read_bytes()
    hidden.unlink()

    def bring_back(seconds: float) -> None:
        hidden.write_bytes(kept)

    index = Index(LocalSink(str(tmp_path)), tmp_path, wait=bring_back)
    assert steps(index.poll()) == [0, 1, 2]
    assert index.holes == []


def test_file_that_vanishes_before_it_is_opened_is_found_in_its_merger(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(3):
        run.add("a", ONE, step=step)
        run.flush()
    before = memory_run(tmp_path)
    run.merge()
    after = memory_run(tmp_path)

    def merge_now(operation: str, key: str) -> None:
        if operation == "get" and key.startswith("index/"):
            before.objects, before.fault = after.objects, None

    before.fault = merge_now
    index = Index(before, wait=lambda _: None)
    assert steps(index.poll()) == [0, 1, 2]


def test_workers_and_attempts_have_tickets_of_their_own(tmp_path: Path) -> None:
    for worker in ("worker_0", "worker_1"):
        for attempt in (0, 1):
            run = RunWriter(tmp_path, worker=worker, attempt=attempt)
            run.add("a", ONE, step=attempt)
            run.flush()
    table = open_index(tmp_path).poll()
    places = set(zip(table["worker"].to_pylist(), table["attempt"].to_pylist(), strict=True))
    assert places == {("worker_0", 0), ("worker_0", 1), ("worker_1", 0), ("worker_1", 1)}


def test_many_small_files_join_and_keep_their_rows(tmp_path: Path) -> None:
    run, index = RunWriter(tmp_path), open_index(tmp_path)
    for step in range(70):
        run.add(f"t{step % 5}", np.full(2, step, np.float32), step=step, origin="O" if step % 2 else None)
        run.flush()
        assert steps(index.poll()) == [step]
    everything = index.table(np.arange(70))
    assert steps(everything) == list(range(70))
    assert everything["max"].to_pylist() == list(range(70))
    assert everything["origin"].to_pylist() == [("O" if step % 2 else None) for step in range(70)]
    chosen = np.array([69, 3, 65], dtype=np.int64)
    assert index.table(chosen, ["step", "mean", "shape"]).to_pylist() == [
        {"step": step, "mean": float(step), "shape": [2]} for step in (69, 3, 65)
    ]


def test_other_files_in_the_index_folder_are_ignored(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", ONE, step=0)
    run.flush()
    for name in ("README", "0000-x.parquet", "0000-000000000005-000000000002.parquet", ".tmp-1.parquet"):
        (tmp_path / "index/worker_0" / name).write_bytes(b"nothing")
    assert steps(open_index(tmp_path).poll()) == [0]


def _rows(tmp_path: Path) -> tuple[Path, pa.Table]:
    run = RunWriter(tmp_path)
    run.add("a", ONE, step=0)
    run.add("b", ONE, step=0)
    path = tmp_path / str(run.flush())
    return path, pq.read_table(path)


def _garbage(data: bytes) -> bytes:
    return b"PAR1 this is no parquet"


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_garbage, _cut, _empty])
def test_damaged_file_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path, _ = _rows(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        RunCorrupt, match=r"index/worker_0/0000-000000000000-000000000001\.parquet is damaged"
    ):
        open_index(tmp_path).poll()


@pytest.mark.parametrize("column", ["name", "shape", "max", "segment"])
def test_missing_column_is_named(tmp_path: Path, column: str) -> None:
    path, table = _rows(tmp_path)
    path.write_bytes(parquet_bytes(table.drop_columns([column])))
    with pytest.raises(RunCorrupt, match=rf"column '{column}' is not there"):
        open_index(tmp_path).poll()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("step", pa.array(["0", "1"])),
        ("name", pa.array([1, 2])),
        ("shape", pa.array([3, 3])),
        ("shape", pa.array([["3"], ["3"]])),
        ("max", pa.array([1, 2])),
        ("crc32c", pa.array([1, 2], pa.int64())),
    ],
)
def test_column_of_another_type_is_named(tmp_path: Path, column: str, values: pa.Array) -> None:
    path, table = _rows(tmp_path)
    at = table.schema.get_field_index(column)
    path.write_bytes(parquet_bytes(table.set_column(at, column, values)))
    with pytest.raises(RunCorrupt, match=rf"column '{column}' has type"):
        open_index(tmp_path).poll()


def test_unknown_columns_are_ignored(tmp_path: Path) -> None:
    path, table = _rows(tmp_path)
    path.write_bytes(parquet_bytes(table.append_column("later", pa.array([1, 2]))))
    assert open_index(tmp_path).poll().schema.names == SCHEMA.names


def test_columns_in_another_order_and_plain_texts_are_read(tmp_path: Path) -> None:
    path, table = _rows(tmp_path)
    plain = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    other = pa.table(plain, names=table.column_names).select(table.column_names[::-1])
    path.write_bytes(parquet_bytes(other))
    assert open_index(tmp_path).poll().to_pylist() == table.to_pylist()


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"attempt": 3}, "attempt 3"),
        ({"worker": "worker_9"}, "rows of worker 'worker_9'"),
        ({"ticket": 77}, "ticket 77"),
        ({"mode": "DREAM"}, "mode 'DREAM'"),
        ({"status": "fine"}, "status 'fine'"),
        ({"part": 5}, "part 5 of 1 parts"),
        ({"part": -1}, "part -1"),
        ({"call": -1}, "call -1"),
        ({"seq": -4}, "seq -4"),
        ({"offset": -8}, "offset -8"),
        ({"nbytes": -8}, "nbytes -8"),
        ({"offset": None}, "without offset"),
        ({"segment": "../../../etc/passwd"}, "segment"),
        ({"segment": "/etc/passwd"}, "segment"),
        ({"segment": "0007-000000000000-000000000001.safetensors"}, "attempt 0"),
        ({"name": "n" * 100_000}, "100000 characters"),
    ],
)
def test_rows_that_contradict_the_format_are_refused(
    tmp_path: Path, columns: dict[str, object], complaint: str
) -> None:
    path, table = _rows(tmp_path)
    path.write_bytes(index_bytes([row | columns for row in table.to_pylist()]))
    with pytest.raises(RunCorrupt, match=complaint) as caught:
        open_index(tmp_path).poll()
    assert len(str(caught.value)) < 1000


def test_files_written_before_shards_could_be_partial_are_read(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    place = {"global_shape": [4], "offset": [1], "partial": None}
    run.add("a", ONE, step=0, shard=place)
    run.add("b", ONE, step=0)
    path = tmp_path / str(run.flush())
    table = pq.read_table(path)
    before = pa.struct([("global_shape", pa.list_(pa.int64())), ("offset", pa.list_(pa.int64()))])
    at = table.schema.get_field_index("shard")
    old = pa.array([{"global_shape": [4], "offset": [1]}, None], before)
    path.write_bytes(parquet_bytes(table.set_column(at, "shard", old)))
    assert open_index(tmp_path).poll().column("shard").to_pylist() == [place, None]


def test_null_where_none_is_allowed_is_refused(tmp_path: Path) -> None:
    path, table = _rows(tmp_path)
    loose = pa.schema([field.with_nullable(True) for field in SCHEMA])
    at = SCHEMA.get_field_index("step")
    columns = [pa.array([0, None]) if i == at else table.column(i) for i in range(table.num_columns)]
    path.write_bytes(parquet_bytes(pa.Table.from_arrays(columns, schema=loose)))
    with pytest.raises(RunCorrupt, match="'step' has 1 nulls"):
        open_index(tmp_path).poll()


def test_refusal_of_the_sink_is_passed_on(tmp_path: Path) -> None:
    _rows(tmp_path)
    sink = memory_run(tmp_path)

    def refuse(operation: str, key: str) -> None:
        raise SinkError("no", kind="denied")

    sink.fault = refuse
    with pytest.raises(SinkError):
        Index(sink).poll()
