"""The tests' writer of runs agrees with the documented format, safetensors, and tdcore's constants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

from tdcore.format import layout
from tests.trial import writer


def test_writer_and_layout_describe_the_same_columns() -> None:
    assert writer.SCHEMA.equals(layout.index_schema())


def test_writer_checksum_matches_the_published_vector() -> None:
    assert writer.crc32c(b"123456789") == 0xE3069283
    assert writer.crc32c(bytes(32)) == 0x8A9136AA


def test_native_checksum_matches_the_writer() -> None:
    from tdcore import _core

    data = bytes(range(256)) * 3
    assert _core.crc32c(memoryview(data)[1:]) == writer.crc32c(data[1:])


def test_segments_open_with_safetensors(tmp_path: Path) -> None:
    run = writer.RunWriter(tmp_path)
    values = np.arange(7, dtype=np.float32)
    run.add("a", values, step=3)
    run.add("b", values.astype(np.int64), step=3)
    run.flush()
    (segment,) = (tmp_path / "data/worker_0").iterdir()
    with safe_open(str(segment), "np") as opened:
        assert np.array_equal(opened.get_tensor("a@3"), values)
        assert np.array_equal(opened.get_tensor("b@3"), values.astype(np.int64))
    rows = pq.read_table(tmp_path / "index/worker_0/0000-000000000000-000000000001.parquet").to_pylist()
    assert all(row["offset"] % 64 == 0 and row["offset"] >= 4096 for row in rows)


@pytest.mark.parametrize("values", [[], [0.0], [1.0, -2.0, float("nan")], [5e-40, 1e30]])
def test_writer_histogram_counts_every_finite_value_but_zeros(values: list[float]) -> None:
    row = writer.statistics(np.array(values, dtype=np.float32))
    finite = row["count"] - row["nan_count"]
    assert sum(row["log2_counts"]) == finite - row["zero_count"]
