"""Large files are read lazily: every answer equals that of a reader with all rows in memory.

The tests set the limit of large files to one row, so that each file is read lazily, and to a number that no
file has, so that no file is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from tdcore.cli.sharding import sharding_texts
from tdcore.errors import RunCorrupt, TdcoreError
from tdcore.format.catalogue import CATALOGUE_KEY, CatalogueBuilder, decode_catalogue
from tdcore.modes import ModeKeys
from tdcore.sinks import LocalSink
from tdcore.trial import Index, Trial, create_trial, index_file
from tdcore.trial.parquet_file import read_columns
from tests.trial.large_files import EVERY_FILE, NO_FILE, large_files, merged_file, rewrite, seal
from tests.trial.writer import RunWriter, place

NAMES = ("a", "b", "c", "loss", "epoch")


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Actions that write a run: (kind, worker) or ("step", its tensors)."""
    workers = draw(st.integers(1, 3))
    actions: list[tuple[str, Any]] = []
    for _ in range(draw(st.integers(1, 25))):
        worker = f"worker_{draw(st.integers(0, workers - 1))}"
        kind = draw(st.sampled_from(["step", "step", "step", "flush", "merge", "look", "attempt"]))
        if kind == "step":
            names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))
            mode = draw(st.sampled_from(["TRAIN", "TRAIN", "EVAL"]))
            actions.append(("step", (worker, mode, names, draw(st.integers(0, 3)))))
        else:
            actions.append((kind, worker))
    return actions


class Writing:
    """Writes the actions of a run into a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._attempt = 0
        self._writers: dict[str, RunWriter] = {}
        self._steps: dict[str, int] = {}

    def _of(self, worker: str) -> RunWriter:
        if worker not in self._writers:
            self._writers[worker] = RunWriter(
                self._root, worker=worker, attempt=self._attempt, world_size=3, epoch_ns=10**18
            )
        return self._writers[worker]

    def add_catalogues(self) -> None:
        """Add a catalogue to each index file, as a merge does."""
        for path in self._root.glob("index/*/*.parquet"):
            table = pq.read_table(path)
            builder = CatalogueBuilder()
            builder.add(table)
            metadata = {**table.schema.metadata, CATALOGUE_KEY: builder.finish().encode()}
            pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=4)

    def seal(self) -> None:
        """Write each index file again with a sealed catalogue, as a merge does."""
        for path in self._root.glob("index/*/*.parquet"):
            seal(path, groups=4)

    def do(self, kind: str, what: Any) -> None:
        """Do one action."""
        if kind == "step":
            self._step(*what)
        elif kind == "attempt":
            for writer in self._writers.values():
                writer.flush()
                writer.end()
            self._attempt += 1
            self._writers.clear()
            self._steps = {worker: max(0, step - 2) for worker, step in self._steps.items()}
        elif kind == "flush":
            self._of(what).flush()
        elif kind == "merge" and self._of(what).index_files():
            path = self._root / self._of(what).merge()
            if self._steps.get(what, 0) % 2:  # else the file has no catalogue
                rewrite(path)

    def _step(self, worker: str, mode: str, names: list[str], shape: int) -> None:
        writer, step = self._of(worker), self._steps.get(worker, 0)
        self._steps[worker] = step + 1
        for at, name in enumerate(names):
            values = np.arange(shape + 1, dtype=np.float32) + step + at
            if shape == 2:
                writer.add(name, None, step=step, mode=mode, status="absent", reason="no_gradient")
            elif shape == 3:
                rank = int(worker[-1])
                box = place([2, 4], [rank % 2, 0])
                writer.add(name, values.reshape(1, 4), step=step, mode=mode, shard=box, payload=at == 0)
            else:
                writer.add(
                    name, values, step=step, mode=mode, parts=shape + 1, kind="output" if at else "weight"
                )


def answers(trial: Trial) -> dict[str, Any]:
    """Answers to all kinds of questions."""
    found: dict[str, Any] = {
        "names": trial.tensor_names(),
        "eval names": trial.tensor_names(mode=ModeKeys.EVAL),
        "kinds": trial.names_and_kinds(),
        "steps": trial.steps(show_incomplete_steps=True),
        "complete": trial.steps(),
        "workers": trial.workers(),
        "modes": trial.modes(),
        "rows": trial.rows().to_pylist(),
        "some rows": trial.rows("a|b", steps=range(1, 4), columns=["name", "step", "ticket"]).to_pylist(),
        "stats": trial.stats().to_pylist(),
        "columns": trial.stats(["a", "c"], columns=["step", "std", "origin"]).to_pylist(),
        "of kind": trial.stats(kinds=["output"], mode=ModeKeys.TRAIN, steps=[0, 1, 2]).to_pylist(),
        "merged": trial.stats(merged=True).to_pylist(),
        "merged columns": trial.stats(merged=True, columns=["name", "mean", "log2_counts"]).to_pylist(),
        "missing": trial.missing(),
        "tensors": trial.list_tensors(),
        "some tensors": trial.list_tensors("a|loss"),
        "totals": trial.totals(),
        "order": trial.in_model_order(),
        "combinations": sorted(trial.combinations(("name", "kind", "status", "mode", "worker"))),
        "saved steps": trial.saved_steps(),
        "shards": trial.newest_shards(columns=("name", "worker", "step", "shape", "shard")).to_pylist(),
        "sharding": sharding_texts(trial, None),
        "first saved rows": {
            row["name"]: row
            for row in trial.first_saved_rows(("name", "worker", "ticket", "seq")).to_pylist()
        },
    }
    for width in (3, 100):
        for name, each in trial.condensed(NAMES, "abs_mean", width).items():
            found[f"{name} {width}"] = [each.last, each.means]
    for name in found["names"]:
        tensor = trial.tensor(name)
        found[f"{name} steps"] = tensor.steps(show_incomplete_steps=True)
        found[f"{name} workers"] = {step: tensor.workers(step) for step in found["steps"]}
        found[f"{name} stats"] = tensor.stats(mode=ModeKeys.TRAIN).to_pylist()
    for statistic in ("abs_mean", "zero_percent", "std"):
        for name, overview in trial.overviews(NAMES, statistic).items():
            of_rows = [overview.steps.tolist(), overview.modes]
            found[f"{name} {statistic}"] = [overview.last, overview.values(), *of_rows]
    return found


def check_saved(found: dict[str, Any]) -> None:
    """Compare combinations, saved steps and first rows with the rows themselves."""
    rows = found["rows"]
    texts = ("name", "kind", "status", "mode", "worker")
    assert found["combinations"] == sorted({tuple(row[text] for text in texts) for row in rows})
    first: dict[str, Any] = {}
    steps: dict[str, set[tuple[str, int]]] = {row["name"]: set() for row in rows}
    for row in sorted(rows, key=lambda row: row["status"] == "absent"):  # stable: saved rows first, in order
        first.setdefault(row["name"], {name: row[name] for name in ("name", "worker", "ticket", "seq")})
        if row["status"] != "absent":
            steps[row["name"]].add((row["mode"], row["mode_step"]))
    assert found["first saved rows"] == first
    valued = {row["name"] for row in rows if row["nbytes"] is not None}
    assert found["saved steps"] == {name: (len(steps[name]), name in valued) for name in steps}


def check_shards(found: dict[str, Any]) -> None:
    """Compare the newest shards with the rows themselves."""
    newest = {
        (row["name"], row["worker"]): {
            name: row[name] for name in ("name", "worker", "step", "shape", "shard")
        }
        for row in found["rows"]
        if row["shard"] is not None and row["shape"] is not None
    }
    assert len(found["shards"]) == len(newest)
    assert all(row in found["shards"] for row in newest.values())


def values(trial: Trial) -> dict[str, Any]:
    """The values of all tensors that have values, and the messages for those that have none."""
    found: dict[str, Any] = {}
    for name in trial.tensor_names():
        for step in trial.steps():
            found[f"{name} {step}"] = _value(trial, name, step)
    return found


def _value(trial: Trial, name: str, step: int) -> Any:
    try:
        return trial.tensor(name).value(step, worker="worker_0").tolist()
    except TdcoreError as error:
        return str(error)


def same(one: Any, other: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def asked(root: Path, question: Callable[[Trial], dict[str, Any]], rows: int) -> dict[str, Any]:
    with large_files(rows):
        return question(create_trial(root))


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(runs())
def test_lazy_readers_give_the_answers_of_a_reader_with_all_rows_in_memory(
    actions: list[tuple[str, Any]],
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        RunWriter(root, epoch_ns=10**18)
        writing = Writing(root)
        followed = {rows: _opened(root, rows) for rows in (EVERY_FILE, NO_FILE)}
        for kind, what in actions:
            writing.do(kind, what)
            if kind == "look":
                with large_files(EVERY_FILE):
                    followed[EVERY_FILE].refresh()
                with large_files(NO_FILE):
                    followed[NO_FILE].refresh()
        new = {rows: asked(root, answers, rows) for rows in (EVERY_FILE, NO_FILE)}
        for key, answer in new[NO_FILE].items():
            assert same(new[EVERY_FILE][key], answer), key
        check_saved(new[NO_FILE])
        check_shards(new[NO_FILE])
        with large_files(EVERY_FILE):
            lazily = answers(followed[EVERY_FILE])
        with large_files(NO_FILE):
            in_memory = answers(followed[NO_FILE])
        for key, answer in in_memory.items():
            assert same(lazily[key], answer), key
        assert same(asked(root, values, EVERY_FILE), asked(root, values, NO_FILE))
        for change in (writing.add_catalogues, writing.seal):
            change()
            with_catalogues = asked(root, answers, EVERY_FILE)
            for key, answer in new[NO_FILE].items():
                assert same(with_catalogues[key], answer), key


def _opened(root: Path, rows: int) -> Trial:
    with large_files(rows):
        return create_trial(root)


@settings(max_examples=30, deadline=None)
@given(runs())
def test_each_row_of_the_files_is_read_once(actions: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder, large_files(EVERY_FILE):
        root = Path(folder)
        index, tables = Index(LocalSink(folder), root), list[pa.Table]()
        writing = Writing(root)
        for kind, what in actions:
            writing.do(kind, what)
            if kind == "look":
                tables.append(index.poll(["worker", "attempt", "ticket", "name", "mean"]))
        tables.append(index.poll(["worker", "attempt", "ticket", "name", "mean"]))
        rows = [row for table in tables for row in table.to_pylist()]
        files = [pq.read_table(path).to_pylist() for path in root.glob("index/*/*.parquet")]
        wanted = [
            {name: row[name] for name in ("worker", "attempt", "ticket", "name", "mean")}
            for file in files
            for row in file
        ]

        def key(row: dict[str, Any]) -> tuple[Any, ...]:
            return row["attempt"], row["worker"], row["ticket"]

        assert same(sorted(rows, key=key), sorted(wanted, key=key))


def test_a_catalogue_does_not_depend_on_the_tables_it_was_computed_from(tmp_path: Path) -> None:
    path, table = merged_file(tmp_path)
    builder = CatalogueBuilder()
    builder.add(table)
    assert decode_catalogue(pq.read_schema(path).metadata, 60) is not None
    assert builder.finish().encode() == pq.read_schema(path).metadata[CATALOGUE_KEY]


def test_names_and_steps_come_from_the_catalogue_without_reading_a_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged_file(tmp_path)

    def read(*_: object, **__: object) -> pa.Table:
        raise AssertionError("a column was read")

    with large_files(EVERY_FILE):
        monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read)
        monkeypatch.setattr(pq.ParquetFile, "read", read)
        trial = create_trial(tmp_path)
        assert trial.tensor_names() == ["a", "b", "c"]
        assert trial.steps() == list(range(20))
        assert trial.steps(ModeKeys.EVAL) == [4, 9, 14, 19]
        assert trial.workers() == ["worker_0"]
        assert trial.status == "ended"


def test_a_foreign_ticket_in_a_file_that_was_read_in_part_is_an_error(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", 1.0, step=0)
    run.flush()
    with large_files(EVERY_FILE):
        trial = create_trial(tmp_path)
        run.add("a", 2.0, step=1)
        run.add("a", 3.0, step=2, ticket=9)
        run.flush()
        run.merge()
        with pytest.raises(RunCorrupt, match="row 2 has ticket 9"):
            trial.refresh()


def test_statistics_are_in_the_order_of_the_workers_if_only_some_files_have_a_catalogue(
    tmp_path: Path,
) -> None:
    for worker in ("worker_0", "worker_1"):
        run = RunWriter(tmp_path, worker=worker, world_size=2)
        run.add("a", 1.0, step=0)
        run.flush()
        run.end()
    (path,) = tmp_path.glob("index/worker_0/*.parquet")
    rewrite(path)
    with large_files(EVERY_FILE):
        assert create_trial(tmp_path).stats().column("worker").to_pylist() == ["worker_0", "worker_1"]


@pytest.mark.parametrize(("limit", "least", "eager"), [(6, 4, 2), (6, 5, 6), (3, 5, 3), (100, 1, 6)])
def test_small_files_of_many_workers_are_not_read_into_memory_once_it_has_many_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, least: int, eager: int
) -> None:
    for number in range(6):
        run = RunWriter(tmp_path, worker=f"worker_{number}", world_size=6)
        for step in range(2):
            run.add("a", float(number + step), step=step)
            run.add("b", np.ones(3, dtype=np.float32), step=step)
        run.flush()
        run.end()
        seal(*tmp_path.glob(f"index/worker_{number}/*.parquet"))
    expected = answers(create_trial(tmp_path))
    monkeypatch.setattr(index_file, "MEMORY_ROWS", limit)
    monkeypatch.setattr(index_file, "SMALL_LAZY_ROWS", least)
    read: list[str] = []

    def reading(parquet: pq.ParquetFile, key: str, names: list[str]) -> pa.Table:
        read.append(key)
        return read_columns(parquet, key, names)

    monkeypatch.setattr(index_file, "read_columns", reading)
    trial = create_trial(tmp_path)
    assert len(read) == eager
    assert same(answers(trial), expected)


@pytest.mark.parametrize("rows", [EVERY_FILE, NO_FILE])
def test_a_frozen_trial_answers_as_before_after_its_index_was_polled(tmp_path: Path, rows: int) -> None:
    run = RunWriter(tmp_path)
    run.add("a", 1.0, step=0)
    run.flush()
    with large_files(rows):
        trial = create_trial(tmp_path)
        trial.frozen = True
        run.add("b", 2.0, step=1, mode="EVAL")
        run.flush()
        assert trial.index.poll(["name"]).num_rows == 2
        assert trial.stats(mode=ModeKeys.TRAIN).column("name").to_pylist() == ["a"]
        assert trial.rows(steps=range(5), workers=["worker_0"]).num_rows == 1
        assert trial.tensor_names() == trial.tensor_names(step=0) == ["a"]
        assert trial.tensor("a").steps(show_incomplete_steps=True) == [0]
        assert not trial.has_tensor("b")
        trial.refresh()
        assert trial.tensor_names() == ["a", "b"]
