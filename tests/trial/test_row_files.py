"""Files with numbered rows that contradict their key, or have impossible values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.errors import RunCorrupt
from tdcore.format.row_files import RowFiles
from tdcore.format.step_times import STEP_TIME_FILES
from tdcore.format.system import SYSTEM_FILES
from tdcore.rules.trace import Trace
from tdcore.sinks import LocalSink
from tdcore.trial.row_files import NewRows, read_rows
from tdcore.trial.step_times import joined_steps
from tests.rules.system_samples import RUN_ID, write_samples, write_step_times

ROWS = 10_000  # more than one table of NewRows


def time_file(root: Path) -> Path:
    """Write a file with times of steps, and return its path."""
    trace = Trace()
    for step in range(ROWS):
        trace.add_step_time(step, forward=1)
    write_step_times(root, trace, per_file=ROWS)
    (path,) = (root / "time").rglob("*.parquet")
    return path


def with_column(table: pa.Table, name: str, value: Any) -> pa.Table:
    """Return the table with `value` in the last row of a column."""
    at = table.schema.get_field_index(name)
    values = [*table[name].to_pylist()[:-1], value]
    kind = table.schema.field(at).type
    if pa.types.is_dictionary(kind):
        return table.set_column(at, table.schema.field(at), pa.array(values).dictionary_encode())
    return table.set_column(at, table.schema.field(at), pa.array(values, kind))


def hostile(path: Path, name: str, value: Any) -> None:
    """Replace the last value of a column in a file."""
    table = pq.read_table(path)
    pq.write_table(with_column(table, name, value), path, write_page_checksum=True)


def assert_refused(files: RowFiles, root: Path, path: Path, name: str, value: str) -> None:
    """Assert that both readers name the file, the column and the value."""
    with pytest.raises(RunCorrupt) as caught:
        read_rows(files, LocalSink(root), RUN_ID, [0], None)
    for part in (path.relative_to(root).as_posix(), f"column {name} ", value):
        assert part in str(caught.value)
    reader = NewRows(files, LocalSink(root))
    for table in reader.read(RUN_ID, lambda attempt: True):
        assert table.num_rows < ROWS
    assert [str(caught.value) in each for each in reader.remarks] == [True]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("worker", "other"),
        ("attempt", 7),
        ("row", 2**63 - 1),
        ("row", -5),
        ("row", 3),
        ("mode", "[/]x"),
        ("mode", "\x1b[2J"),
        ("time_ns", 2**62),
        ("time_ns", -1),
        ("duration_ns", 2**63 - 1),
        ("data_ns", -1),
        ("gpu_ns", -1),
        ("checkpoints", -1),
        ("mode_step", -1),
    ],
)
def test_impossible_times_of_steps_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = time_file(tmp_path)
    assert read_rows(STEP_TIME_FILES, LocalSink(tmp_path), RUN_ID, [0], None).num_rows == ROWS
    hostile(path, name, value)
    assert_refused(STEP_TIME_FILES, tmp_path, path, name, repr(value))


def test_a_sum_that_would_overflow_is_refused(tmp_path: Path) -> None:
    path = time_file(tmp_path)
    table = pq.read_table(path)
    at = table.schema.get_field_index("data_ns")
    huge = pa.array(np.full(ROWS, 2**55))
    pq.write_table(table.set_column(at, table.schema.field(at), huge), path, write_page_checksum=True)
    with pytest.raises(RunCorrupt, match="the column data_ns has the sum"):
        read_rows(STEP_TIME_FILES, LocalSink(tmp_path), RUN_ID, [0], None)
    reader = NewRows(STEP_TIME_FILES, LocalSink(tmp_path))
    assert list(reader.read(RUN_ID, lambda attempt: True)) == []
    assert "the column data_ns has the sum" in reader.remarks[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("worker", "other"), ("host", "other"), ("attempt", 7), ("sample", 3), ("time_ns", 2**62), ("lost", -1)],
)
def test_impossible_samples_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = write_samples(tmp_path, [{"cpu_percent": 1.0}] * ROWS)
    hostile(path, name, value)
    assert_refused(SYSTEM_FILES, tmp_path, path, name, repr(value))


def test_counts_of_a_step_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    time_file(tmp_path)
    table = read_rows(STEP_TIME_FILES, LocalSink(tmp_path), RUN_ID, [0], None).slice(ROWS - 1)
    huge = with_column(table, "checkpoints", 2**31 - 1)
    with pytest.raises(RunCorrupt, match="counts of a step in time/ are impossible"):
        joined_steps(pa.concat_tables([huge, huge]))
