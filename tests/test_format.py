"""The versions of the run format: kept runs stay readable, other versions are refused (docs/format.md)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tdcore as td
from tdcore import _core
from tdcore.cli.app import app, main
from tdcore.errors import ConfigError, UnsupportedFormat
from tdcore.format import layout
from tdcore.format.control import CaptureRequest
from tdcore.rules import run as run_rules
from tdcore.session import Session
from tdcore.sinks.spool import Spool

ROOT = Path(__file__).resolve().parents[1]
KEPT = sorted((ROOT / "tests" / "data").glob("run_v*/"))
PAGE = (ROOT / "docs" / "format.md").read_text()
OTHERS = [0, 2]
BOTH = r"{}.* format .?{}.?, this version of tdcore reads format 1"


def test_a_run_of_this_version_is_kept() -> None:
    assert ROOT / f"tests/data/run_v{layout.FORMAT_VERSION}" in KEPT


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.name)
def test_a_kept_run_reads_as_when_it_was_written(kept: Path) -> None:
    expected = json.loads(kept.with_suffix(".json").read_text())
    trial = td.create_trial(kept)
    assert trial.steps() == expected["steps"]
    assert trial.stats().select(["name", "step", "count", "l2"]).to_pylist() == expected["rows"]
    for name, value in expected["values"].items():
        np.testing.assert_array_equal(trial.tensor(name).value(0), np.array(value, dtype=np.float32))
    assert trial.missing() == []
    verdict = run_rules(kept, ["vanishing_gradient:threshold=1"], write_findings=False).verdicts[0]
    assert verdict.occurrences >= expected["findings"] > 0
    assert CliRunner().invoke(app, ["ls", str(kept)]).exit_code == 0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / f"tests/data/run_v{layout.FORMAT_VERSION}", tmp_path / "run"))


def change(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize("version", OTHERS)
@pytest.mark.parametrize("key", ["run.json", "collections.json", "end/worker_0/0000.json"])
def test_a_document_of_another_version_is_refused_with_both_versions(
    run: Path, key: str, version: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run / key, format=version)
    message = BOTH.format(re.escape(key), version)
    with pytest.raises(UnsupportedFormat, match=message):
        td.create_trial(run).collections()
    monkeypatch.setattr("sys.argv", ["tdcore", "ls", str(run)])
    with pytest.raises(SystemExit, match="3"):
        main()
    assert re.search(message, capsys.readouterr().err)


def test_a_writer_adds_nothing_to_a_run_of_another_version(run: Path) -> None:
    change(run / "run.json", format=2)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UnsupportedFormat, match=BOTH.format("run.json", 2)):
        Session(run, configuration={}, framework="numpy", framework_version="1", flusher="thread")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_additions_that_need_no_new_version_are_ignored(run: Path) -> None:
    for key in ("run.json", "collections.json", "end/worker_0/0000.json"):
        change(run / key, later={"anything": [1]})
    (run / "later").mkdir()
    (run / "later" / "file").write_text("a file of a later version")
    (index,) = run.glob("index/*/*.parquet")
    table = pq.read_table(index)
    table = table.append_column("later", pa.array(["text"] * table.num_rows))
    pq.write_table(table, index)
    expected = json.loads((ROOT / "tests/data/run_v1.json").read_text())
    assert (
        td.create_trial(run).stats().select(["name", "step", "count", "l2"]).to_pylist() == expected["rows"]
    )


def test_a_kind_and_a_reason_of_a_later_version_are_returned_as_text(run: Path) -> None:
    (index,) = run.glob("index/*/*.parquet")
    table = pq.read_table(index)
    absent = [status == "absent" for status in table["status"].to_pylist()]
    changed = {
        "kind": [
            "later_kind" if name == "Sequential_0.weight" else "weight" for name in table["name"].to_pylist()
        ],
        "reason": ["later_reason" if each else None for each in absent],
    }
    for name, texts in changed.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(texts, pa.string()).dictionary_encode())
    pq.write_table(table, index)
    trial = td.create_trial(run)
    assert trial.stats("^Sequential_0.weight$")["kind"].to_pylist()[0] == "later_kind"
    assert trial.why_absent("gradient/Sequential_0.bias", 2) == "later_reason"


def test_a_request_of_another_version_is_refused_with_both_versions() -> None:
    with pytest.raises(ConfigError, match="its format is 2, expected 1"):
        CaptureRequest.parse(json.dumps({"format": 2, "tensors": ["x"], "steps": 1}))


@pytest.mark.parametrize("version", OTHERS)
def test_a_spool_of_another_version_is_refused_with_both_versions(tmp_path: Path, version: int) -> None:
    (tmp_path / "spool.json").write_text(json.dumps({"format": version, "url": "s3://bucket/prefix"}))
    with pytest.raises(UnsupportedFormat, match=BOTH.format("spool.json", version)):
        Spool(tmp_path)


def test_the_page_names_every_column_kind_status_and_reason() -> None:
    words = {
        *layout.index_schema().names,
        *(kind.label for kind in layout.TensorKind),
        *layout.STATUSES,
        *_core.DROP_REASONS.values(),
    }
    assert sorted(word for word in words if f"`{word}`" not in PAGE) == []


def test_the_page_names_every_key_of_the_kept_run(run: Path) -> None:
    keys: set[str] = set()
    for file in [*run.rglob("*.json"), *run.rglob("*.jsonl")]:
        document = json.loads(
            file.read_text().splitlines()[0] if file.suffix == ".jsonl" else file.read_text()
        )
        keys |= document.keys()
        if file.name == "run.json":
            keys |= document["attempts"][0].keys()
        if file.name == "collections.json":
            keys |= document["attempts"]["0"].keys() | document["attempts"]["0"]["collections"]["all"].keys()
        keys |= document.get("totals", {}).keys()
    (index,) = run.glob("index/*/*.parquet")
    keys |= json.loads(pq.read_metadata(index).metadata[layout.SUMMARY_KEY]).keys()
    assert sorted(key for key in keys if f"`{key}`" not in PAGE) == []
