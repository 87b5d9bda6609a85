"""A catalogue that is damaged, or that does not describe the rows of its file, is an error."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.errors import RunCorrupt
from tdcore.format.catalogue import CATALOGUE_KEY
from tdcore.trial import create_trial
from tests.trial.large_files import EVERY_FILE, large_files, merged_file, rewrite


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-3], lambda raw: b"00000000" + raw[8:], lambda raw: b"x"]
)
def test_a_damaged_catalogue_is_an_error_that_names_the_file(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    path, _ = merged_file(tmp_path)
    table = pq.read_table(path)
    metadata = dict(table.schema.metadata)
    metadata[CATALOGUE_KEY] = change(metadata[CATALOGUE_KEY])
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match=r"0000-.*parquet is damaged"):
        create_trial(tmp_path)


def test_a_catalogue_of_another_file_is_an_error(tmp_path: Path) -> None:
    path, table = merged_file(tmp_path)
    metadata = pq.read_schema(path).metadata
    pq.write_table(table.slice(3).replace_schema_metadata(metadata), path)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match="its catalogue has 60 rows"):
        create_trial(tmp_path)


def _with(column: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Change of a table: the last row has another value in a column."""

    def change(table: pa.Table) -> pa.Table:
        at, field = table.schema.get_field_index(column), table.schema.field(column)
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        array = pa.array([*table.column(column).to_pylist()[:-1], value], kind)
        return table.set_column(at, field, array.cast(field.type))

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_with("step", 5), "another 'step' for row 59"),
        (_with("mode_step", 5), "another 'mode_step' for row 59"),
        (_with("mode", "TRAIN"), "another 'mode' for row 59"),
        (_with("name", "d"), "lacks a name"),
        (_with("kind", "loss"), "lacks a name, kind"),
        (_with("status", "lost"), "lacks a name, kind or status"),
        (_with("worker", "worker_9"), "rows of worker 'worker_9'"),
        (_with("attempt", 1), "row 5 has attempt 1"),
        (lambda table: table.take(list(range(59, -1, -1))), "another 'mode_step' for row 0"),
    ],
)
def test_rows_that_their_catalogue_does_not_describe_are_an_error(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], reason: str
) -> None:
    path, _ = merged_file(tmp_path)
    rewrite(path, change, groups=6)
    with large_files(EVERY_FILE, piece=6):
        trial = create_trial(tmp_path)
        for names in (None, ["c"]):
            with pytest.raises(RunCorrupt, match=reason):
                trial.stats(names, columns=["mean"])
        with pytest.raises(RunCorrupt, match=reason):
            trial.rows()


def _packed(numbers: Sequence[int]) -> str:
    differences = np.diff(np.array([0, *numbers], dtype=np.uint64)).tobytes()
    return base64.b64encode(zlib.compress(differences)).decode()


@pytest.mark.parametrize(
    ("group", "key", "value", "reason"),
    [
        ("stretches", "rows", _packed([*[1 << 62] * 4, *[1] * 15, 45]), "value in 'rows'"),
        ("stretches", "rows", _packed([0] * 100_000_000), "too long"),
        ("entries", "name", _packed([0, 1])[:-8] + "AAAAAAA=", "cannot be read|is cut"),
        ("entries", "name", _packed([7, 1, 1, 1, 1, 1]), "impossible value in 'name'"),
        ("", "last_time_ns", 1 << 70, "impossible value in 'last_time_ns'"),
        ("details", "entries", _packed([0] * 6), "an entry that is in no pattern"),
        ("details", "last", _packed([60] * 6), "impossible value in 'last'"),
        ("details", "pattern", _packed([0]), "different lengths"),
    ],
)  # fmt: skip
def test_impossible_numbers_in_a_catalogue_are_an_error(
    tmp_path: Path, group: str, key: str, value: object, reason: str
) -> None:
    merged_file_with(tmp_path, group, key, value)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match=reason):
        create_trial(tmp_path)


def test_further_keys_of_a_catalogue_are_ignored(tmp_path: Path) -> None:
    merged_file_with(tmp_path, "details", "a_later_version", {"has": "more"})
    with large_files(EVERY_FILE):
        assert [each.name for each in create_trial(tmp_path).list_tensors()] == ["a", "b", "c"]


def merged_file_with(root: Path, group: str, key: str, value: object) -> None:
    """A run of one file with another value in its catalogue, whose checksum is right."""
    path, table = merged_file(root)
    metadata = dict(pq.read_schema(path).metadata)
    document = json.loads(metadata[CATALOGUE_KEY][8:])
    (document[group] if group else document)[key] = value
    text = json.dumps(document).encode()
    metadata[CATALOGUE_KEY] = b"%08x" % zlib.crc32(text) + text
    pq.write_table(table.replace_schema_metadata(metadata), path)
