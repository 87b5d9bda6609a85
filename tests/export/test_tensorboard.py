"""Export to TensorBoard, read back with TensorBoard's own reader."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.export import Selection, export_run
from tdcore.export.tensorboard import _NAMING
from tests.export.runs import HOURS_AGO_NS, expected_numbers, write_run
from tests.trial.writer import RunWriter
from tests.waiting import PATIENCE_SECONDS, wait_until

event_accumulator: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
tensor_util: Any = pytest.importorskip("tensorboard.util.tensor_util")


def read(folder: Path) -> Any:
    """Read one run of TensorBoard."""
    everything = dict.fromkeys((event_accumulator.TENSORS, event_accumulator.SCALARS), 0)
    reader = event_accumulator.EventAccumulator(str(folder), size_guidance=everything)
    return reader.Reload()


def scalars(reader: Any, tag: str) -> list[tuple[int, float]]:
    """Step and number of each event of a tag."""
    return [(each.step, each.value) for each in reader.Scalars(tag)]


def values(reader: Any, tag: str) -> list[tuple[int, Any]]:
    """Step and array of each event of a tag."""
    return [(each.step, tensor_util.make_ndarray(each.tensor_proto)) for each in reader.Tensors(tag)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo")


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(export_run(run, "tensorboard", tmp_path_factory.mktemp("tb") / "out").out)


def test_every_number_of_every_attempt_worker_and_mode_is_read_back_in_float32(
    run: Path, exported: Path
) -> None:
    expected = expected_numbers(run)
    assert len(expected) > 200
    readers = {path.parent: read(path.parent) for path in exported.rglob("events.out.tfevents.*")}
    found, wanted = [], []
    for (attempt, worker, mode, step, name, call, statistic), number in expected.items():
        reader = readers[exported / f"attempt_{attempt}" / worker / mode]
        history = dict(scalars(reader, _NAMING.tag(name, call, statistic)))
        found.append(history[step])
        wanted.append(np.float32(number))
    np.testing.assert_array_equal(found, wanted)


def test_no_two_tensors_share_a_tag(run: Path, exported: Path) -> None:
    reader = read(exported / "attempt_0" / "worker_0" / "TRAIN")
    names = {key[4:] for key in expected_numbers(run) if key[:3] == (0, "worker_0", "TRAIN")}
    assert len(reader.Tags()["scalars"]) == len(names)


def test_histograms_have_the_stored_counts_in_buckets_that_touch(run: Path, exported: Path) -> None:
    row = td.create_trial(run, attempt=0).stats(["w"], steps=0, workers="worker_0").to_pylist()[0]
    buckets = dict(values(read(exported / "attempt_0/worker_0/TRAIN"), "w/magnitudes"))[0]
    assert buckets[0].tolist() == [0.0, 2.0 ** row["log2_first"], row["zero_count"]]
    assert buckets[1:, 2].tolist() == row["log2_counts"]
    assert buckets[1:, 0].tolist() == buckets[:-1, 1].tolist()
    assert buckets[:, 2].sum() == row["count"]


def test_the_outermost_buckets_reach_the_smallest_and_largest_magnitude(exported: Path) -> None:
    reader = read(exported / "attempt_0/worker_0/TRAIN")
    smallest = dict(values(reader, "w/magnitudes"))[2]
    largest = dict(values(read(exported / "attempt_0/worker_0/EVAL"), "w/magnitudes"))[3]
    assert smallest[0, 0] == 1e-300
    assert largest[-1, 1] == 2.0**60


def test_times_are_those_of_the_captures(exported: Path) -> None:
    reader = read(exported / "attempt_0/worker_0/TRAIN")
    assert abs(reader.Scalars("loss")[0].wall_time - HOURS_AGO_NS / 1e9) < 1


def test_findings_and_notes_are_texts_of_their_worker(exported: Path) -> None:
    ((step, text),) = values(read(exported / "attempt_1/worker_1"), "findings/ExplodingTensor")
    assert step == 2
    assert "it has NaN" in text.item().decode()
    ((_, note),) = values(read(exported / "attempt_0/worker_0"), "notes/never_called")
    assert b"layer 7" in note.item()


def test_hyper_parameters_are_those_that_the_run_recorded(exported: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    reader = read(exported / "attempt_0/worker_1")
    content = reader.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert hparams["hyperparameter/lr"].number_value == 0.25
    assert hparams["worker"].string_value == "worker_1"


def test_the_selection_limits_tensors_statistics_and_attempts(run: Path, tmp_path: Path) -> None:
    selection = Selection(attempt=1, tensors="^w$", statistics=("min",), histograms=False)
    export_run(run, "tensorboard", tmp_path / "out", selection=selection)
    assert [path.name for path in (tmp_path / "out").glob("attempt_*")] == ["attempt_1"]
    tags = read(tmp_path / "out/attempt_1/worker_0/TRAIN").Tags()
    assert tags["tensors"] == []
    assert sorted(tags["scalars"]) == ["w/min", "w@1/min"]


def test_a_run_without_rows_is_exported(tmp_path: Path) -> None:
    write_run(tmp_path / "empty", hostile=False, steps=0)
    done = export_run(tmp_path / "empty", "tensorboard", tmp_path / "out")
    assert (done.parts, done.rows, done.values) == (4, 0, 0)


def test_an_unknown_statistic_is_refused() -> None:
    with pytest.raises(ConfigError, match="'median' is not a statistic of an export; use mean"):
        Selection(statistics=("median",))


def test_a_large_finite_number_is_not_infinite(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for step, number in enumerate((1e150, -1e150, float("inf"), 1e-150)):
        run.add("loss", number, step=step, kind="loss")
    run.flush()
    run.end()
    export_run(tmp_path / "run", "tensorboard", tmp_path / "out")
    largest = float(np.finfo(np.float32).max)
    found = [number for _, number in scalars(read(tmp_path / "out/attempt_0/worker_0/TRAIN"), "loss")]
    assert found == [largest, -largest, float("inf"), 0.0]


@pytest.mark.full
def test_the_pages_of_tensorboard_have_the_numbers_and_histograms(exported: Path, tmp_path: Path) -> None:
    """TensorBoard reads files by a data server that skips values of unsupported types."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(exported), "--port", "0"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=file, stderr=file)
    try:
        wait_until(
            lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), "TensorBoard has an address"
        )
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        assert found is not None

        def get(path: str) -> Any:
            with urllib.request.urlopen(f"{found[0]}/data/plugin/{path}") as answer:
                return json.load(answer)

        part = "attempt_1/worker_1/TRAIN"
        wait_until(lambda: "loss" in get("scalars/tags").get(part, ()), "TensorBoard has read the numbers")
        numbers = get(f"scalars/scalars?run={part}&tag=w/l2")
        wait_until(lambda: "w/magnitudes" in get("histograms/tags").get(part, ()), "it has the histograms")
        assert [step for _, step, _ in numbers] == [0, 2]
        assert [step for _, step, *_ in get(f"histograms/histograms?run={part}&tag=w/magnitudes")] == [0, 2]
        texts = get("text/tags")["attempt_1/worker_1"]
        assert "findings/ExplodingTensor" in texts
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
