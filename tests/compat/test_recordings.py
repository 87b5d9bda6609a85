"""Recordings of smdebug 1.0.34, read in place and converted, compared with what smdebug's own trial reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
import tdcore.smd as smd
from tdcore.compat import convert, open_smdebug
from tdcore.errors import ConfigError, RunNotFound, SinkError, TensorUnavailableForStep
from tdcore.rules import AllZero, ExplodingTensor, run
from tests.compat.recordings import KINDS, Expected, expected, folder, frame, split
from tests.trial.writer import RunWriter

Open = Callable[[str], td.Trial]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Convert a recording once; return the folder of the run."""
    root = tmp_path_factory.mktemp("converted")

    @cache
    def place(kind: str) -> Path:
        convert(folder(kind), root / kind)
        return root / kind

    return place


@pytest.fixture(params=["in place", "converted"])
def opened(request: pytest.FixtureRequest, converted: Callable[[str], Path]) -> Open:
    """Open a recording, or the run that it was converted to."""
    if request.param == "in place":
        return lambda kind: open_smdebug(folder(kind))
    return lambda kind: td.create_trial(converted(kind))


def texts(want: Expected) -> set[str]:
    """Names of tensors that are texts, or that were saved without values."""
    return {name for name, entry in want.document["tensors"].items() if entry["text"]}


@pytest.mark.parametrize("kind", KINDS)
def test_names_steps_modes_and_workers_are_those_of_smdebug(kind: str, opened: Open) -> None:
    trial, want = opened(kind), expected(kind)
    assert set(trial.tensor_names()) == set(want.document["tensors"]) - texts(want)
    assert trial.steps() == want.document["steps"]
    assert trial.workers() == want.document["workers"]
    for step, (mode, mode_step) in want.document["modes_of_steps"].items():
        assert trial.mode(int(step)).name == mode
        assert trial.mode_step(int(step)) == mode_step
    for name in trial.tensor_names():
        assert trial.tensor(name).steps() == want.document["tensors"][name]["steps"]
    assert trial.status == "ended"


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_smdebug_bit_for_bit(kind: str, opened: Open) -> None:
    trial, want = opened(kind), expected(kind)
    assert len(want.values) > 10
    for key, value in want.values.items():
        name, step, worker = split(key)
        found = trial.tensor(name).value(step, worker=worker)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes(), key


def test_reductions_are_those_of_smdebug(opened: Open) -> None:
    trial, want = opened("pytorch"), expected("pytorch")
    compared = 0
    for name, entry in want.document["tensors"].items():
        for key, reductions in entry["reductions"].items():
            _, step, worker = split(key)
            for reduction, number in reductions.items():
                if reduction == "std":  # smdebug divides by n - 1
                    count = want.values[key].size
                    number *= np.sqrt((count - 1) / count)
                plain = reduction.removeprefix("abs_")
                got = trial.tensor(name).reduction_value(step, plain, worker=worker, abs=plain != reduction)
                assert got == pytest.approx(number, rel=1e-6), (key, reduction)
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("kind", KINDS)
def test_collections_have_the_tensors_that_smdebug_lists(kind: str, opened: Open) -> None:
    trial, want = opened(kind), expected(kind)
    for name, tensors in want.document["collections"].items():
        assert set(tensors) - texts(want) <= set(trial.tensor_names(collection=name)), name


def test_statistics_are_computed_from_the_stored_values(opened: Open) -> None:
    trial, want = opened("pytorch"), expected("pytorch")
    rows = [row for row in trial.stats().to_pylist() if row["name"] == "gradient/Sequential_0.weight"]
    assert len(rows) == 6
    for row in rows:
        values = want.values[f"{row['name']}|{row['step']}|{row['worker']}"].astype(np.float64)
        assert row["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert row["l2"] == pytest.approx(np.linalg.norm(values), rel=1e-12)


def test_kinds_of_tensors_follow_collections_and_names(opened: Open) -> None:
    kinds = {row["name"]: row["kind"] for row in opened("pytorch").stats().to_pylist()}
    assert kinds["gradient/Sequential_0.bias"] == "gradient"
    assert (kinds["Sequential_0.weight"], kinds["Sequential_0.bias"]) == ("weight", "bias")
    assert (kinds["CrossEntropyLoss_output_0"], kinds["scalar/accuracy"]) == ("loss", "scalar")
    assert (kinds["2_output_0"], kinds["extra/i64"]) == ("output", "custom")


def test_a_tensor_saved_as_shape_or_reductions_has_no_values(opened: Open) -> None:
    trial = opened("pytorch")
    assert trial.tensor("0_output_0").shape(2) == (2, 4)
    assert {row["elements"] for row in trial.stats(["0_output_0"]).to_pylist()} == {8}
    for name in ("0_output_0", "1_output_0"):
        with pytest.raises(TensorUnavailableForStep, match="without its values"):
            trial.tensor(name).value(2)


def test_a_tensor_of_texts_is_listed_as_skipped(opened: Open) -> None:
    rows = opened("xgboost").stats().to_pylist()
    found = {(row["status"], row["reason"]) for row in rows if row["name"] == "hyperparameters/objective"}
    assert found == {("skipped", "unsupported_dtype")}


def test_a_name_saved_twice_in_a_step_returns_both_values(opened: Open) -> None:
    tensor = opened("pytorch").tensor("scalar/accuracy")
    assert tensor.value(2, worker="worker_0").tolist() == [0.5]  # the value that smdebug returns
    assert tensor.value(2, worker="worker_0", call=1).tolist() == [0.25]


def test_create_trial_and_the_trial_of_smdebug_scripts_open_a_recording() -> None:
    for create in (td.create_trial, smd.create_trial):
        assert create(str(folder("xgboost"))).steps() == [0, 2, 4]


def test_rules_judge_a_recording(opened: Open) -> None:
    found = run(opened("pytorch").path, [ExplodingTensor(), AllZero()])
    assert {finding.tensor for finding in found.findings} == {"extra/f16"}


def test_a_recording_is_never_written(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("pytorch"), copy)
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    trial = open_smdebug(copy)
    trial.stats()
    found = run(copy, [ExplodingTensor()])
    assert any("only read" in problem for problem in found.problems)
    with pytest.raises(SinkError, match="tdcore convert"):
        trial._reader.sink.put("findings/x.jsonl", [b""])
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == before


def test_the_computed_index_comes_from_the_cache_at_the_next_opening(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("xgboost"), copy)
    before = open_smdebug(copy).stats()
    for file in (copy / "events").rglob("*_worker_0.tfevents"):
        if "000000000004" in file.name:
            continue  # the time of the last step is read at each opening
        content = file.read_bytes()
        file.write_bytes(content[:200] + bytes(len(content) - 200))
    again = open_smdebug(copy)
    assert again.stats().equals(before)
    with pytest.raises(td.errors.RunCorrupt, match="checksum"):
        again.tensor("train-logloss").value(2)


def test_a_recording_without_a_marker_of_its_end_is_not_shown_as_ended(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    (copy / "training_job_end.ts").unlink()
    trial = open_smdebug(copy)
    assert trial.status == "died"
    assert [end.reason for end in trial.ends().values()] == ["the recording has no marker of its end"]
    assert trial.steps() == [0, 2, 4]


def test_workers_named_after_devices_get_names_of_a_run(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    for path in sorted(copy.rglob("*worker_0*")):
        if path.suffix == ".json" and "index" in path.parts:
            path.write_text(path.read_text().replace("worker_0", "_job-worker_device-GPU-0"))
        os.rename(path, path.with_name(path.name.replace("worker_0", "_job-worker_device-GPU-0")))
    trial = open_smdebug(copy)
    assert trial.workers() == ["job-worker_device-GPU-0"]
    assert trial.tensor("loss").value(0).shape == (1,)


def test_runs_below_a_folder_include_recordings(tmp_path: Path) -> None:
    from tdcore.trial.run_search import runs_below

    shutil.copytree(folder("keras"), tmp_path / "runs" / "old")
    convert(folder("keras"), tmp_path / "runs" / "new")
    assert runs_below(tmp_path / "runs") == [str(tmp_path / "runs" / each) for each in ("new", "old")]


def test_a_place_without_a_recording_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="not a recording of smdebug"):
        open_smdebug(tmp_path)
    with pytest.raises(RunNotFound, match="does not exist"):
        td.create_trial(tmp_path / "missing")


def test_a_place_with_a_recording_and_a_run_is_not_guessed(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    RunWriter(copy).end()
    with pytest.raises(ConfigError, match="a recording of smdebug and a run"):
        open_smdebug(copy)
    convert(copy, tmp_path / "new")
    assert td.create_trial(tmp_path / "new").steps() == [0, 2, 4]


def test_a_step_without_tensors_has_no_rows(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    for path in (copy / "index" / "000000000").iterdir():
        document = json.loads(path.read_text()) | {"tensor_payload": [], "shape_payload": []}
        path.write_text(json.dumps(document))
    convert(copy, tmp_path / "new")
    for trial in (open_smdebug(copy), td.create_trial(tmp_path / "new")):
        assert (trial.tensor_names(), trial.steps(), trial.status) == ([], [], "ended")


def test_steps_of_several_index_files_are_read_in_order(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    for step in range(6, 300, 2):
        add_step(copy, step)
    trial = open_smdebug(copy)
    assert trial.steps() == [0, 2, 4, *range(6, 300, 2)]
    assert trial.tensor("loss").value(298).tobytes() == trial.tensor("loss").value(2).tobytes()
    convert(copy, tmp_path / "new")
    assert td.create_trial(tmp_path / "new").stats().equals(trial.stats())


@pytest.mark.parametrize("alone", [False, True])
def test_a_tensor_without_elements_is_an_empty_array(tmp_path: Path, alone: bool) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("keras"), copy)
    index = copy / "index/000000000/000000000000_worker_0.json"
    document = json.loads(index.read_text())
    events = copy / document["meta"]["event_file_name"]
    tensor = bytes([8, 1, 18, 8, 18, 2, 8, 0, 18, 2, 8, 3])  # float32, of shape (0, 3)
    value = b"\x0a\x05empty" + bytes([66, len(tensor)]) + tensor
    summary = bytes([10, len(value)]) + value
    record = frame(b"\x09" + np.float64(1.6e9).tobytes() + bytes([16, 0, 42, len(summary)]) + summary)
    place = {"tensorname": "empty", "start_idx": events.stat().st_size, "length": len(record)}
    with events.open("ab") as file:
        file.write(record)
    document["tensor_payload"] = [*([] if alone else document["tensor_payload"]), place]
    index.write_text(json.dumps(document))
    if alone:
        for step in (2, 4):
            (copy / f"index/000000000/{step:012d}_worker_0.json").unlink()
    convert(copy, tmp_path / "new")
    for trial in (open_smdebug(copy), td.create_trial(tmp_path / "new")):
        found = trial.tensor("empty").value(0)
        assert (found.shape, found.dtype.name) == ((0, 3), "float32")


def add_step(root: Path, step: int) -> None:
    """Copy step 2 of a recording to another step below 256 + 128, without checksums of messages."""
    old, new = f"{2:012d}", f"{step:012d}"
    (root / "events" / new).mkdir()
    number = bytes([0x10, step]) if step < 128 else bytes([0x10, step % 128 | 128, step // 128])
    records, places = b"", []
    index = json.loads((root / f"index/000000000/{old}_worker_0.json").read_text())
    data = (root / f"events/{old}/{old}_worker_0.tfevents").read_bytes()
    for place in index["tensor_payload"]:
        record = data[place["start_idx"] : place["start_idx"] + place["length"]]
        message = record[12:-4].replace(b"\x10\x02*", number + b"*", 1)
        places.append({**place, "start_idx": len(records), "length": len(message) + 16})
        records += frame(message)
    (root / f"events/{new}/{new}_worker_0.tfevents").write_bytes(records)
    index["tensor_payload"] = places
    index["meta"] |= {"event_file_name": f"events/{new}/{new}_worker_0.tfevents", "mode_step": step}
    (root / f"index/000000000/{new}_worker_0.json").write_text(json.dumps(index))


def test_convert_refuses_a_place_with_files_and_a_place_inside_the_recording(tmp_path: Path) -> None:
    convert(folder("keras"), tmp_path / "new")
    files = {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="contains files"):
        convert(folder("keras"), tmp_path / "new")
    assert {path: path.read_bytes() for path in (tmp_path / "new").rglob("*") if path.is_file()} == files
    with pytest.raises(ConfigError, match="inside the recording"):
        convert(folder("keras"), folder("keras") / "new")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="contains files"):
        convert(folder("keras"), tmp_path / "file")


def test_a_conversion_that_fails_leaves_no_run(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder("pytorch"), copy)
    (copy / "events/000000000007/000000000007_worker_1.tfevents").unlink()
    with pytest.raises(td.errors.RunCorrupt, match="000000000007_worker_1"):
        convert(copy, tmp_path / "new")
    assert [path for path in (tmp_path / "new").rglob("*") if path.is_file()] == []


def test_segments_of_a_converted_run_are_safetensors_files(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    convert(folder("xgboost"), tmp_path / "new")
    (file,) = (tmp_path / "new" / "data" / "worker_0").iterdir()
    assert (
        load_file(file)["train-logloss@2"].tobytes()
        == expected("xgboost").values["train-logloss|2|worker_0"].tobytes()
    )


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder("pytorch"), tmp_path / "old" / "recording")
    page = (Path(__file__).parents[2] / "docs" / "moving.md").read_text()
    (code,) = [each for each in page.split("```") if "open_smdebug(" in each]
    names: dict[str, Any] = {}
    exec(code.removeprefix("python\n"), names)
    assert (
        list(names["losses"]["CrossEntropyLoss_output_0"])
        == names["run"].tensor("CrossEntropyLoss_output_0").steps()
    )
