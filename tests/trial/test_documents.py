"""run.json, collections.json, findings: read if valid; errors name the file otherwise."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import (
    ConfigError,
    InvalidCollection,
    RunCorrupt,
    RunNotFound,
    TdcoreError,
    UnsupportedFeature,
    UnsupportedFormat,
)
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

ONE = np.ones(1)


def test_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="does not exist") as caught:
        create_trial(tmp_path / "none")
    assert isinstance(caught.value, FileNotFoundError)


def test_folder_without_a_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"has no run\.json"):
        create_trial(tmp_path)


def test_file_instead_of_a_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunNotFound, match="is a file"):
        create_trial(tmp_path / "file")


def test_place_that_is_not_served_says_so() -> None:
    with pytest.raises(UnsupportedFeature, match="no sink for gs://"):
        create_trial("gs://bucket/prefix")


def test_url_that_went_through_a_path_says_so() -> None:
    with pytest.raises(ConfigError, match="give the URL as a string"):
        create_trial(Path("s3://bucket/prefix"))


def test_waiting_for_a_run_to_begin_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        create_trial(tmp_path / "none", wait=timedelta(milliseconds=1))


def test_trial_is_named_after_its_folder(run: RunWriter) -> None:
    assert create_trial(f"{run.root}/").name == "run"
    assert create_trial(f"file://{run.root}").name == "run"
    trial = create_trial(str(run.root), "mine")
    assert (trial.name, trial.path, trial.run_id) == ("mine", str(run.root), "0123")
    assert "mine" in repr(trial)


def test_attempts_are_described(run: RunWriter) -> None:
    info = create_trial(run.root).attempt_info()
    assert info is not None
    assert (info.number, info.world_size, info.host, info.document["framework"]) == (0, 1, "test", "tests")


@pytest.mark.parametrize("version", [0, 2, "1", None, True])
def test_other_format_version_is_refused_with_both_numbers(run: RunWriter, version: object) -> None:
    document = json.loads((run.root / "run.json").read_text())
    run.put("run.json", document | {"format": version})
    with pytest.raises(
        UnsupportedFormat, match=rf"format '?{version}'?, this version of tdcore reads format 1"
    ):
        create_trial(run.root)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b'{"format": 1}',
        b'{"format": 1, "run_id": 5, "attempts": []}',
        b'{"format": 1, "run_id": "x", "attempts": {}}',
        b'{"format": 1, "run_id": "x", "attempts": [3]}',
        b'{"format": 1, "run_id": "x", "attempts": [{"attempt": -1}]}',
        b'{"format": 1, "run_id": "x", "attempts": [{"attempt": true}]}',
        b'{"format": 1, "run_id": "x", "attempts": [{"attempt": 0, "pid": "one"}]}',
        b'{"format": 1, "run_id": "x", "attempts": [{"attempt": 0, "started_ns": 1e400}]}',
        b'{"format": 1, "run_id": "x", "attempts": [{"attempt": 0, "pid": 99999999999999999999999}]}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"format": ' + b"9" * 10_000 + b"}",
    ],
)
def test_damaged_run_document_is_refused(run: RunWriter, text: bytes) -> None:
    run.write("run.json", text)
    with pytest.raises(RunCorrupt, match=r"run\.json") as caught:
        create_trial(run.root)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", [b"{", b"{}", b'{"clean": 1}', b"[1]"])
def test_damaged_end_document_is_refused(run: RunWriter, text: bytes) -> None:
    run.write("end/worker_0/0000.json", text)
    with pytest.raises(RunCorrupt, match=r"end/worker_0/0000\.json"):
        create_trial(run.root)


# Collections. -----------------------------------------------------------------------------------------


def collections(run: RunWriter, attempt: int = 0, **entries: dict[str, Any]) -> None:
    run.put("collections.json", {"format": 1, "attempts": {str(attempt): {"collections": entries}}})


def test_collections_select_tensors_by_pattern_and_by_name(run: RunWriter) -> None:
    for name in ("fc.weight", "fc.bias", "odd", "gradient/fc.weight"):
        run.add(name, ONE, step=0, kind="gradient" if name.startswith("gradient") else "weight")
    run.flush()
    collections(
        run,
        mine={
            "include_regex": ["bias$"],
            "tensor_names": ["odd", "never"],
            "save_config": {"save_interval": 5},
        },
        empty={"include_regex": [], "tensor_names": []},
    )
    trial = create_trial(run.root)
    assert sorted(trial.collections()) == ["empty", "mine"]
    mine = trial.collection("mine")
    assert mine.include_regex == ("bias$",)
    assert mine.save_config == {"save_interval": 5}
    assert mine.reduction_config is None
    assert trial.tensor_names(collection="mine") == ["fc.bias", "odd"]
    assert trial.tensor_names(collection=mine) == ["fc.bias", "odd"]
    assert trial.tensor_names(collection="empty") == []
    with pytest.raises(InvalidCollection, match="it has empty, mine"):
        trial.tensor_names(collection="weights")


@pytest.mark.parametrize("pattern", ["^(?!gradient).*weight", ".*"])
def test_built_in_collection_takes_only_its_kind_of_tensor(run: RunWriter, pattern: str) -> None:
    run.add("Net_fc.weight", ONE, step=0, kind="weight")
    run.add("optimizer/exp_avg/Net_fc.weight", ONE, step=0, kind="optimizer_state")
    run.add("weight_net_output_0", ONE, step=0, kind="output")
    run.flush()
    collections(run, weights={"include_regex": [pattern], "tensor_names": []})
    assert create_trial(run.root).tensor_names(collection="weights") == ["Net_fc.weight"]


def test_latest_attempt_with_a_collection_describes_it(run: RunWriter) -> None:
    entry: dict[str, Any] = {"include_regex": ["a"], "tensor_names": []}
    other: dict[str, Any] = {"include_regex": ["b"], "tensor_names": []}
    RunWriter(run.root, attempt=1)
    attempts = {"0": {"collections": {"x": entry, "old": entry}}, "1": {"collections": {"x": other}}}
    run.put("collections.json", {"format": 1, "attempts": attempts})
    found = create_trial(run.root).collections()
    assert found["x"].include_regex == ("b",)
    assert found["old"].include_regex == ("a",)
    assert create_trial(run.root, attempt=0).collection("x").include_regex == ("a",)


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"format": 9, "attempts": {}},
        {"format": 1},
        {"format": 1, "attempts": {"x": {"collections": {}}}},
        {"format": 1, "attempts": {"-1": {"collections": {}}}},
        {"format": 1, "attempts": {"0": []}},
        {"format": 1, "attempts": {"0": {"collections": {"a": 3}}}},
        {"format": 1, "attempts": {"0": {"collections": {"a": {"include_regex": "x"}}}}},
        {"format": 1, "attempts": {"0": {"collections": {"a": {"include_regex": [3]}}}}},
        {"format": 1, "attempts": {"0": {"collections": {"a": {"tensor_names": None}}}}},
    ],
)
def test_damaged_collections_are_refused(run: RunWriter, document: object) -> None:
    run.put("collections.json", document)
    with pytest.raises(RunCorrupt, match=r"collections\.json"):
        create_trial(run.root).collections()


def test_notes_of_several_workers_are_joined(run: RunWriter) -> None:
    first = {"collections": {}, "frozen": ["a", "b"], "place": "here", "faults": {"a": "x", "b": "y"}}
    other = {"collections": {}, "frozen": ["b", "c"], "place": "there", "faults": {"b": "z", "c": "z"}}
    run.put("collections.json", {"format": 1, "attempts": {"0": first}})
    run.put("collections/worker_1.json", {"format": 1, "attempts": {"0": other, "9" * 5000: other}})
    assert create_trial(run.root).notes() == {
        "frozen": ["a", "b", "c"],
        "place": "here",
        "faults": {"a": "x", "b": "y", "c": "z"},
    }


# Findings. --------------------------------------------------------------------------------------------


def test_findings_are_read_and_an_unfinished_line_is_left(run: RunWriter) -> None:
    run.write("findings/b.jsonl", b'{"step": 1}\n\n{"step": 2}\n{"st')
    run.write("findings/a.jsonl", b'{"step": 0}\n')
    run.write("findings/notes.txt", b"x")
    assert [finding["step"] for finding in create_trial(run.root).findings()] == [0, 1, 2]


@pytest.mark.parametrize("line", [b"{", b"3", b"\xff", b"[" * 100_000])
def test_damaged_finding_is_named_by_line(run: RunWriter, line: bytes) -> None:
    run.write("findings/a.jsonl", b'{"step": 0}\n' + line + b"\n")
    with pytest.raises(TdcoreError, match=r"findings/a\.jsonl, line 2"):
        create_trial(run.root).findings()
