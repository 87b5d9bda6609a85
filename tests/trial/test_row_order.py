"""Merged files with the order of the rows of each step: readers locate the rows of a tensor without names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import RunCorrupt
from tdcore.format import row_order
from tdcore.format.catalogue import decode_catalogue
from tdcore.format.packed import packed, unpacked
from tdcore.format.row_order import RowOrderBuilder
from tdcore.trial import create_trial
from tests.trial.large_files import EVERY_FILE, NO_FILE, change_catalogue, large_files, seal
from tests.trial.writer import RunWriter

# The tensors of each step; the steps have three orders, and the tensor d is not in all of them.
_STEPS = ["abc", "cab", "abc", "abcd", "abc", "cab", "abcd", "abc"]
_QUESTIONS: list[Callable[[Any], Any]] = [
    lambda trial: trial.stats(["c"], columns=["step", "name", "kind", "status", "mean"]).to_pydict(),
    lambda trial: trial.stats(["a", "d"], steps=range(2, 7), columns=["step", "name", "max"]).to_pydict(),
    lambda trial: trial.stats(columns=["name", "status", "mean"]).to_pydict(),
    lambda trial: trial.stats(merged=True, columns=["name", "step", "l1"]).to_pydict(),
    lambda trial: trial.rows(["d"]).to_pydict(),
    lambda trial: {k: (dict(v.last), v.means) for k, v in trial.condensed("abcd", "abs_mean", 3).items()},
    lambda trial: trial.tensor("c").value(5).tolist(),
]


def _run(root: Path) -> Path:
    """A run of one merged file with row groups of 5 rows."""
    run = RunWriter(root)
    for step, names in enumerate(_STEPS):
        for name in names:
            run.add(name, np.arange(3, dtype=np.float32) + step + ord(name), step=step)
    run.flush()
    run.end()
    (path,) = run.index_files()
    seal(path, groups=5)
    return path


def _answers(root: Path, rows: int = EVERY_FILE) -> list[Any]:
    with large_files(rows, piece=5):
        return [question(create_trial(root)) for question in _QUESTIONS]


def _columns_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The columns that are decoded for the statistics of one tensor."""
    found: set[str] = set()
    read_row_groups = pq.ParquetFile.read_row_groups

    def read(self: Any, groups: Any, *, columns: list[str], **how: Any) -> pa.Table:
        found.update(columns)
        return read_row_groups(self, groups, columns=columns, **how)

    with large_files(EVERY_FILE, piece=5), monkeypatch.context() as patch:
        trial = create_trial(root)
        patch.setattr(pq.ParquetFile, "read_row_groups", read)
        trial.stats(["c"], columns=["step", "mean"])
    return found


def test_a_reader_that_takes_names_from_the_catalogue_answers_like_one_with_all_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(tmp_path)
    assert _columns_read(tmp_path, monkeypatch) == {"mean"}
    assert _answers(tmp_path) == _answers(tmp_path, NO_FILE)


def test_a_file_of_an_earlier_version_without_the_order_gives_the_same_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _run(tmp_path)
    expected = _answers(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RowOrderBuilder, "finish", lambda self, joined: None)
        seal(path, groups=5)
    found = decode_catalogue(pq.read_metadata(path).metadata, 26)
    assert found is not None
    assert found.order is None
    assert _columns_read(tmp_path, monkeypatch) == {"name", "mean"}
    assert _answers(tmp_path) == expected


def test_names_are_read_where_the_order_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(row_order, "_MIN_STORED", 3)
        path = _run(tmp_path)
    found = decode_catalogue(pq.read_metadata(path).metadata, 26)
    assert found is not None
    assert found.order is not None
    assert found.order.stretch.tolist() == [0, -1, 0, -1, 0, -1, -1, 0]  # only the most frequent order
    assert _columns_read(tmp_path, monkeypatch) == {"name", "mean"}
    assert _answers(tmp_path) == _answers(tmp_path, NO_FILE)


def test_a_wrong_order_in_a_catalogue_with_the_right_checksum_is_an_error(tmp_path: Path) -> None:
    def swap(order: dict[str, Any]) -> None:
        entries = unpacked(order["entries"], 26)
        entries[[0, 1]] = entries[[1, 0]]
        order["entries"] = packed(entries)

    change_catalogue(_run(tmp_path), "order", swap, 5)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match="order that contradicts the first row"):
        create_trial(tmp_path)


@pytest.mark.parametrize(
    ("key", "values", "reason"),
    [
        ("stretch", [0, 1, 0, 2, 0, 1, 2, 3], "impossible value in the order's 'stretch'"),
        ("stretch", [0, 1, 0, 2, 0, 1, 2, -2], "impossible value in the order's 'stretch'"),
        ("stretch", [0, 1, 0, 2, 0, 1, 2, 2], "order of other rows"),
        ("stretch", [0], "different lengths"),
        ("entries", [0, 1, 2, 2, 0, 1, 0, 1, 2, 9], "impossible value in the order's 'entries'"),
        ("sizes", [3, 3, 5], "different lengths"),
        ("sizes", [0, 6, 4], "impossible value in the order's 'sizes'"),
    ],
)
def test_an_impossible_order_is_an_error(tmp_path: Path, key: str, values: list[int], reason: str) -> None:
    change_catalogue(_run(tmp_path), "order", lambda order: order.update({key: packed(np.array(values))}), 5)
    with large_files(EVERY_FILE), pytest.raises(RunCorrupt, match=reason):
        create_trial(tmp_path)


def test_rows_that_another_program_has_written_in_another_order_are_an_error(tmp_path: Path) -> None:
    path = _run(tmp_path)
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    swapped = table.take(pa.array([*range(23), 24, 23, 25]))  # within the last step
    pq.write_table(swapped.replace_schema_metadata(metadata), path, row_group_size=5)
    with large_files(EVERY_FILE, piece=5):
        trial = create_trial(tmp_path)
        with pytest.raises(RunCorrupt, match="its catalogue has another tensor for row 23"):
            trial.stats(["b"], columns=["mean"])


def test_rows_of_a_file_without_a_seal_are_compared_and_then_located(tmp_path: Path) -> None:
    path = _run(tmp_path)
    expected = _answers(tmp_path)
    # The bytes of the columns in the new file are not those of the seal.
    change_catalogue(path, "order", lambda order: None, 5)
    assert _answers(tmp_path) == expected


_CASES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=8)


@given(steps=_CASES, chosen=st.data())
def test_the_located_rows_are_those_of_a_search_row_by_row(steps: list[list[int]], chosen: Any) -> None:
    entry = np.array([each for step in steps for each in step], dtype=np.int64)
    first = np.cumsum([0, *map(len, steps[:-1])]).astype(np.int64)
    builder = RowOrderBuilder()
    builder.add(entry, first)
    order = builder.finish(np.arange(len(steps)))
    begin = np.array([chosen.draw(st.integers(0, len(step))) for step in steps])
    rows = np.array(
        [chosen.draw(st.integers(0, len(step) - at)) for step, at in zip(steps, begin, strict=True)]
    )
    expected = [e for step, at, size in zip(steps, begin, rows, strict=True) for e in step[at : at + size]]
    assert order.entries_of(np.arange(len(steps)), begin, rows).tolist() == expected
    entries = np.array(chosen.draw(st.lists(st.booleans(), min_size=5, max_size=5)))
    stretches = np.array(chosen.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps))))
    wanted = np.flatnonzero(entries[entry] & np.repeat(stretches, list(map(len, steps))))
    assert order.rows_with(entries, stretches, first).tolist() == wanted.tolist()


def test_a_step_whose_rows_were_added_in_two_tables_has_one_order() -> None:
    builder = RowOrderBuilder()
    builder.add(np.array([0, 1, 0]), np.array([0, 2]))
    builder.add(np.array([1, 0, 1]), np.array([0, 1]))
    order = builder.finish(np.array([0, 1, 3]))  # the second step has two pieces
    assert order.stretch.tolist() == [0, 0, 0]
    assert order.entries.tolist() == [0, 1]


def test_the_catalogue_of_a_merge_has_the_order(tmp_path: Path) -> None:
    found = decode_catalogue(pq.read_metadata(_run(tmp_path)).metadata, 26)
    assert found is not None
    assert found.order is not None
    names = [found.words["name"][code] for code in found.entries["name"]]
    every = np.arange(len(_STEPS))
    rows = found.order.entries_of(every, np.zeros(len(_STEPS), dtype=np.int64), found.stretches["rows"])
    assert "".join(names[entry] for entry in rows.tolist()) == "".join(_STEPS)
