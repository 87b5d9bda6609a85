"""Export to CSV, Parquet and DuckDB, read back with their own readers."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

from tdcore.errors import ConfigError, InvalidAttempt
from tdcore.export import Selection, export_run
from tests.export.runs import expected_numbers, write_run
from tests.trial.writer import RunWriter

Rows = list[dict[str, Any]]


def read_csv(out: Path, table: str) -> Rows:
    with (out / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def read_parquet(out: Path, table: str) -> Rows:
    found: Rows = pq.read_table(out / f"{table}.parquet").to_pylist()
    return found


def read_duckdb(out: Path, table: str) -> Rows:
    with duckdb.connect(str(out), read_only=True) as connection:
        found: Rows = connection.sql(f"SELECT * FROM {table}").to_arrow_table().to_pylist()
        return found


READERS: dict[str, Callable[[Path, str], Rows]] = {
    "csv": read_csv,
    "parquet": read_parquet,
    "duckdb": read_duckdb,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo")


@pytest.mark.parametrize("to", READERS)
def test_every_row_is_read_back_with_its_numbers_in_float64(run: Path, tmp_path: Path, to: str) -> None:
    done = export_run(run, to, tmp_path / "out")
    rows = READERS[to](tmp_path / "out", "statistics")
    found: dict[tuple[Any, ...], float] = {}
    for row in rows:
        place = (
            int(row["attempt"]),
            row["worker"],
            row["mode"],
            int(row["step"]),
            row["name"],
            int(row["call"]),
        )
        if row["count"] in (None, ""):
            continue
        if row["value"] not in (None, ""):
            key = (*place, "")
            found[key] = float(row["value"])
            continue
        for name in ("mean", "std", "l2", "abs_max", "non_finite"):
            key = (*place, name)
            found[key] = float(row[name])
    expected = expected_numbers(run)
    assert found.keys() == expected.keys()
    np.testing.assert_array_equal([found[key] for key in expected], list(expected.values()))
    assert len(rows) == done.rows + done.without_statistics
    assert done.values == done.rows
    assert {row["reason"] for row in rows if row["name"] == "absent"} == {"none"}


@pytest.mark.parametrize("to", READERS)
def test_findings_notes_and_parameters_have_tables(run: Path, tmp_path: Path, to: str) -> None:
    export_run(run, to, tmp_path / "out")
    texts = READERS[to](tmp_path / "out", "texts")
    assert [(each["kind"], each["name"]) for each in texts] == [
        ("note", "never_called"),
        ("finding", "ExplodingTensor"),
    ]
    assert json.loads(texts[1]["document"])["why"] == "it has NaN"
    parameters = READERS[to](tmp_path / "out", "parameters")
    rates = [each["value"] for each in parameters if each["name"] == "hyperparameter/lr"]
    assert rates == ["0.25"] * 4


def test_the_first_value_of_a_late_hyper_parameter_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.export.source._BATCH_ROWS", 1)
    run = RunWriter(tmp_path / "run")
    for step in range(3):
        run.add("lr", 1.0 / (step + 1), step=step, kind="hyperparameter")
        if step:
            run.add("momentum", 0.25 * step, step=step, kind="hyperparameter")
    run.flush()
    run.end()
    export_run(tmp_path / "run", "csv", tmp_path / "out")
    found = {row["name"]: row["value"] for row in read_csv(tmp_path / "out", "parameters")}
    assert (found["hyperparameter/lr"], found["hyperparameter/momentum"]) == ("1.0", "0.25")


def test_nan_and_missing_numbers_differ_in_csv(run: Path, tmp_path: Path) -> None:
    export_run(run, "csv", tmp_path / "out", selection=Selection(kinds=["loss"], attempt=0))
    losses = [row["value"] for row in read_csv(tmp_path / "out", "statistics") if row["worker"] == "worker_0"]
    assert [float(each) for each in losses[:1]] == [0.1]
    assert math.isnan(float(losses[1]))
    assert losses[2:] == ["inf", "-inf"]


def test_an_existing_export_is_kept_without_force(run: Path, tmp_path: Path) -> None:
    for to in ("csv", "duckdb"):
        export_run(run, to, tmp_path / to)
        with pytest.raises(ConfigError, match="which exists; give another place, or --force"):
            export_run(run, to, tmp_path / to)
        export_run(run, to, tmp_path / to, force=True, selection=Selection(attempt=0))
        assert {int(row["attempt"]) for row in READERS[to](tmp_path / to, "statistics")} == {0}


def test_a_failed_export_with_force_keeps_the_earlier_one(run: Path, tmp_path: Path) -> None:
    for to in ("csv", "duckdb"):
        export_run(run, to, tmp_path / to)
        rows = READERS[to](tmp_path / to, "statistics")
        with pytest.raises(ConfigError, match="not a regular expression"):
            export_run(run, to, tmp_path / to, force=True, selection=Selection(tensors="("))
        assert len(READERS[to](tmp_path / to, "statistics")) == len(rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["csv", "duckdb"]


def test_force_never_replaces_a_folder_that_is_not_an_export(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    for to in ("csv", "duckdb"):
        with pytest.raises(ConfigError, match=r"which is not|not an export of tdcore"):
            export_run(run, to, tmp_path / "mine", force=True)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError):
        export_run(run, "csv", tmp_path / "link", force=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_failed_export_leaves_nothing(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidAttempt):
        export_run(run, "parquet", tmp_path / "out", selection=Selection(attempt=7))
    with pytest.raises(ConfigError, match="not a regular expression"):
        export_run(run, "parquet", tmp_path / "out", selection=Selection(tensors="("))
    with pytest.raises(ConfigError, match="not a regular expression"):
        export_run(run, "duckdb", tmp_path / "out", selection=Selection(tensors="("))
    assert list(tmp_path.iterdir()) == []
