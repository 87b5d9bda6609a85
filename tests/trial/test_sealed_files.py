"""Files whose catalogue has a seal: readers do not decode the sealed columns, and notice other bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.errors import RunCorrupt
from tdcore.format.catalogue import CATALOGUE_KEY, decode_catalogue
from tdcore.format.packed import packed
from tdcore.format.seal import CONSTANT_COLUMNS, Seal
from tdcore.trial import create_trial
from tests.trial.large_files import EVERY_FILE, NO_FILE, change_catalogue, large_files, merged_file, seal


def sealed_file(root: Path) -> Path:
    """A run of one sealed file: 60 rows of the tensors a, b and c in row groups of 6 rows."""
    path, _ = merged_file(root)
    seal(path)
    return path


def columns_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of each later read of a Parquet file."""
    found: list[tuple[str, ...]] = []
    read_row_groups = pq.ParquetFile.read_row_groups

    def read(self: Any, groups: Any, *, columns: list[str], **how: Any) -> pa.Table:
        found.append(tuple(columns))
        return read_row_groups(self, groups, columns=columns, **how)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read)
    return found


def edited(path: Path, column: str, change: Callable[[list[Any]], list[Any]]) -> None:
    """Write a file with other values in a column, and with the metadata and row groups as they were."""
    file = pq.ParquetFile(path)
    table = file.read()
    at, field = table.schema.get_field_index(column), table.schema.field(column)
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    array = pa.array(change(table.column(column).to_pylist()), kind).cast(field.type)
    changed = table.set_column(at, field, array).replace_schema_metadata(file.schema_arrow.metadata)
    metadata = {**file.schema_arrow.metadata, CATALOGUE_KEY: file.metadata.metadata[CATALOGUE_KEY]}
    pq.write_table(changed.replace_schema_metadata(metadata), path, row_group_size=6)


def test_only_the_columns_of_the_answer_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed_file(tmp_path)
    with large_files(EVERY_FILE, piece=6):
        trial = create_trial(tmp_path)
        found = columns_read(monkeypatch)
        table = trial.stats(["c"], columns=["step", "mean", "nan_count", "abs_max"])
    assert table.column("step").to_pylist() == list(range(20))
    assert table.column("nan_count").to_pylist() == [0] * 20
    assert {name for names in found for name in names} == {"mean", "abs_max"}


@pytest.mark.parametrize("column", CONSTANT_COLUMNS)
def test_a_constant_column_is_that_of_a_reader_with_all_rows_in_memory(tmp_path: Path, column: str) -> None:
    sealed_file(tmp_path)
    found = []
    for rows in (EVERY_FILE, NO_FILE):
        with large_files(rows, piece=6):
            found.append(create_trial(tmp_path).rows(["a"], columns=["step", column]))
    assert found[0].equals(found[1])


def test_row_groups_without_a_row_of_the_tensor_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = merged_file(tmp_path)
    edited(path, "name", lambda names: [*names[:12], "d", *names[13:]])
    seal(path)
    with large_files(EVERY_FILE, piece=6):
        trial = create_trial(tmp_path)
        found = columns_read(monkeypatch)
        assert trial.stats(["d"], columns=["step", "mean"]).column("step").to_pylist() == [4]
    assert found == [("mean",)]


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("step", 5, "another 'step' for row 59"),
        ("mode_step", 5, "another 'mode_step' for row 59"),
        ("mode", "TRAIN", "another 'mode' for row 59"),
        ("name", "d", "lacks a name"),
        ("kind", "loss", "lacks a name, kind"),
        ("status", "lost", "lacks a name, kind or status"),
        ("worker", "worker_9", "rows of worker 'worker_9'"),
        ("attempt", 1, "row 5 has attempt 1"),
    ],
)
def test_rows_with_other_values_than_the_sealed_ones_are_an_error(
    tmp_path: Path, column: str, value: object, reason: str
) -> None:
    path = sealed_file(tmp_path)
    edited(path, column, lambda values: [*values[:-1], value])
    with large_files(EVERY_FILE, piece=6), pytest.raises(RunCorrupt, match=reason):
        create_trial(tmp_path).stats(["c"], columns=["mean"])


def test_counts_that_were_edited_later_are_those_of_the_rows(tmp_path: Path) -> None:
    path = sealed_file(tmp_path)
    edited(path, "nan_count", lambda values: [*values[:-1], 2])
    with large_files(EVERY_FILE, piece=6):
        table = create_trial(tmp_path).stats(["c"], columns=["nan_count"])
    assert table.column("nan_count").to_pylist() == [0] * 19 + [2]


def test_a_sealed_file_under_the_name_of_another_attempt_is_an_error(tmp_path: Path) -> None:
    path = sealed_file(tmp_path)
    path.rename(path.with_name(f"0001{path.name[4:]}"))
    with large_files(EVERY_FILE, piece=6), pytest.raises(RunCorrupt, match="row 0 has attempt 0"):
        create_trial(tmp_path).stats(["c"], columns=["mean"])


@pytest.mark.parametrize("key", ["nan_count", "part"])
@pytest.mark.parametrize("value", [-2, 1 << 60])
def test_an_impossible_constant_is_an_error(tmp_path: Path, key: str, value: int) -> None:
    path = sealed_file(tmp_path)
    change_catalogue(
        path, "seal", lambda document: document["values"].update({key: packed(np.full(10, value))}), 6
    )
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match=f"impossible value in the seal of '{key}'"):
        create_trial(tmp_path)


@pytest.mark.parametrize(
    ("crcs", "reason"),
    [
        (np.full(10, -1), "impossible checksum"),
        (np.full(10, 1 << 32), "impossible checksum"),
        (np.zeros(61, dtype=np.int64), "a list of numbers in its catalogue is too long"),
    ],
)
def test_an_impossible_checksum_is_an_error(tmp_path: Path, crcs: Any, reason: str) -> None:
    path = sealed_file(tmp_path)
    change_catalogue(path, "seal", lambda document: document.update(crcs=packed(crcs)), 6)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match=reason):
        create_trial(tmp_path)


def test_a_seal_has_at_most_as_many_numbers_as_a_file_has_row_groups(tmp_path: Path) -> None:
    metadata = pq.read_metadata(sealed_file(tmp_path)).metadata
    document = json.loads(metadata[CATALOGUE_KEY][8:])["seal"]
    document["crcs"] = packed(np.zeros((1 << 16) + 1, dtype=np.int64))
    with pytest.raises(ValueError, match="too long"):
        Seal.of_document(document, rows=1 << 24)


def test_a_seal_is_of_other_bytes_if_the_footer_names_more_bytes_than_the_file_has(tmp_path: Path) -> None:
    path = sealed_file(tmp_path)
    metadata, data = pq.read_metadata(path), path.read_bytes()
    catalogue = decode_catalogue(metadata.metadata, 60)
    assert catalogue is not None
    assert catalogue.seal is not None
    assert not catalogue.seal.matches(metadata, [9] * 100, memoryview(data))


def test_each_row_group_of_a_merged_file_has_the_checksum_of_its_seal(tmp_path: Path) -> None:
    path = sealed_file(tmp_path)
    metadata, data = pq.read_metadata(path), path.read_bytes()
    catalogue = decode_catalogue(metadata.metadata, 60)
    assert catalogue is not None
    assert catalogue.seal is not None
    assert catalogue.seal.matches(metadata, range(10), memoryview(data))
    column = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}["step"]
    damaged = bytearray(data)
    damaged[metadata.row_group(3).column(column).data_page_offset] ^= 1
    assert not catalogue.seal.matches(metadata, [3], memoryview(damaged))
    assert catalogue.seal.matches(metadata, [2, 4], memoryview(damaged))
