"""Live export to TensorBoard: complete steps while the run is written, no row lost or doubled."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.export import Selection, export_run
from tdcore.export.follow import NOTE, _set_note, follow_run
from tests.export.runs import write_run
from tests.export.test_tensorboard import read, scalars, values
from tests.trial.writer import RunWriter
from tests.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "attempt_0/worker_0/TRAIN"


def add_steps(run: RunWriter, steps: range) -> None:
    for step in steps:
        run.add("loss", 1.0 / (step + 1), step=step, kind="loss")
        run.add("w", np.arange(6.0) * step, step=step)
        run.mark_step_end(step)
    run.flush()


def losses(folder: Path) -> list[tuple[int, float]]:
    if not list(folder.glob("events.out.tfevents.*")):
        return []
    reader = read(folder)
    return sorted(scalars(reader, "loss")) if "loss" in reader.Tags()["scalars"] else []


def follower(run: Path, out: Path, *, limit: int | None = None) -> subprocess.Popen[bytes]:
    """Start `tdcore export --follow`. limit: largest size of a file in bytes."""
    command = [sys.executable, "-m", "tdcore.cli", "export", str(run), "--to", "tensorboard", "--follow"]
    if limit is not None:
        command = ["prlimit", f"--fsize={limit}", *command]
    return subprocess.Popen(
        [*command, "--out", str(out)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ends(steps: int) -> list[tuple[int, float]]:
    return [(step, float(np.float32(1.0 / (step + 1)))) for step in range(steps)]


def test_steps_appear_while_the_run_is_written_and_the_follower_ends_with_the_attempt(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    add_steps(run, range(3))
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(follow_run(tmp_path / "run", tmp_path / "tb", poll_seconds=0.05))
    )
    thread.start()
    wait_until(lambda: losses(tmp_path / "tb" / TRAIN) == ends(3), "the first steps are exported")
    add_steps(run, range(3, 5))
    wait_until(lambda: losses(tmp_path / "tb" / TRAIN) == ends(5), "the next steps are exported")
    run.end()
    thread.join(PATIENCE_SECONDS)
    assert found == [5 * (1 + 6)]


@pytest.mark.full
def test_a_killed_follower_is_continued_without_lost_or_doubled_rows(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    add_steps(run, range(3))
    first = follower(tmp_path / "run", tmp_path / "tb")
    wait_until(lambda: losses(tmp_path / "tb" / TRAIN), "the first steps are exported")
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=PATIENCE_SECONDS)
    add_steps(run, range(3, 6))
    run.end()
    (file,) = (tmp_path / "tb" / TRAIN).glob("events.*")
    with file.open("ab") as torn:
        torn.write(b"half an event that the state lacks")
    assert follow_run(tmp_path / "run", tmp_path / "tb") == 3 * 7
    assert losses(tmp_path / "tb" / TRAIN) == ends(6)
    assert follow_run(tmp_path / "run", tmp_path / "tb") == 0


def test_the_result_is_that_of_a_later_export(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    follow_run(tmp_path / "run", tmp_path / "live", selection=Selection(attempt=1))
    export_run(tmp_path / "run", "tensorboard", tmp_path / "later", selection=Selection(attempt=1))
    parts = {
        str(path.parent.relative_to(tmp_path / "later")) for path in (tmp_path / "later").rglob("events.*")
    }
    assert parts == {
        str(path.parent.relative_to(tmp_path / "live")) for path in (tmp_path / "live").rglob("events.*")
    }
    for part in sorted(parts):
        one, other = read(tmp_path / "live" / part), read(tmp_path / "later" / part)
        missing = {"missing"}  # sentences about data that is missing exist only in one of the readings
        assert set(one.Tags()["tensors"]) - missing == set(other.Tags()["tensors"]) - missing
        assert one.Tags()["scalars"] == other.Tags()["scalars"]
        for tag in one.Tags()["scalars"]:
            np.testing.assert_array_equal(scalars(one, tag), scalars(other, tag))
        for tag in set(one.Tags()["tensors"]) - missing:
            for (step, value), (other_step, wanted) in zip(values(one, tag), values(other, tag), strict=True):
                assert step == other_step
                np.testing.assert_array_equal(value, wanted)


@pytest.mark.full
def test_a_full_disk_becomes_a_note_and_the_export_is_continued(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    add_steps(run, range(400))
    stuck = follower(tmp_path / "run", tmp_path / "tb", limit=100_000)  # the kernel refuses to write more
    wait_until(lambda: NOTE in td.create_trial(tmp_path / "run").notes(), "the run has a note")
    assert os.strerror(errno.EFBIG) in td.create_trial(tmp_path / "run").notes()[NOTE]
    assert stuck.poll() is None
    stuck.kill()
    stuck.communicate(timeout=PATIENCE_SECONDS)
    run.end()
    follow_run(tmp_path / "run", tmp_path / "tb")
    assert losses(tmp_path / "tb" / TRAIN) == ends(400)


@pytest.mark.full
def test_a_second_follower_of_the_same_attempt_is_refused(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    add_steps(run, range(2))
    first = follower(tmp_path / "run", tmp_path / "tb")
    wait_until(lambda: losses(tmp_path / "tb" / TRAIN), "the first follower works")
    with pytest.raises(ConfigError, match="in use by another export"):
        follow_run(tmp_path / "run", tmp_path / "tb")
    first.kill()
    first.communicate(timeout=PATIENCE_SECONDS)


def test_a_finished_export_and_another_run_are_not_continued(tmp_path: Path) -> None:
    write_run(tmp_path / "run", hostile=False)
    export_run(tmp_path / "run", "tensorboard", tmp_path / "out")
    with pytest.raises(ConfigError, match="is a finished export"):
        follow_run(tmp_path / "run", tmp_path / "out")
    follow_run(tmp_path / "run", tmp_path / "live")
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    other = write_run(tmp_path / "other", hostile=False)
    (other / "run.json").write_text(json.dumps({**document, "run_id": "4567"}))
    for attempt in (0, 1):  # attempt 0 is not in the folder
        with pytest.raises(ConfigError, match="export of another run"):
            follow_run(other, tmp_path / "live", selection=Selection(attempt=attempt))


def test_the_state_has_one_range_although_records_without_rows_lie_between(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    add_steps(run, range(50))
    run.end()
    follow_run(tmp_path / "run", tmp_path / "tb")
    state: dict[str, Any] = json.loads((tmp_path / "tb/attempt_0/.tdcore-follow.json").read_text())
    assert len(state["tickets"]["worker_0"]) == 1


def test_the_export_of_an_attempt_ends_although_the_next_attempt_runs(tmp_path: Path) -> None:
    first = RunWriter(tmp_path / "run", attempt=0)
    add_steps(first, range(2))
    first.end()
    add_steps(RunWriter(tmp_path / "run", attempt=1, host=os.uname().nodename, pid=os.getpid()), range(2))
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(
            follow_run(tmp_path / "run", tmp_path / "tb", selection=Selection(attempt=0))
        ),
        daemon=True,
    )
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert found == [2 * 7]


def test_hyper_parameters_that_appear_after_the_first_rows_are_exported(tmp_path: Path) -> None:
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    run = RunWriter(tmp_path / "run", host=os.uname().nodename, pid=os.getpid())
    run.add("loss", 1.0, step=0, kind="loss")
    run.flush()
    thread = threading.Thread(target=follow_run, args=(tmp_path / "run", tmp_path / "tb"))
    thread.start()
    wait_until(lambda: (tmp_path / "tb/attempt_0/.tdcore-follow.lock").exists(), "the follower has begun")
    run.add("lr", 0.5, step=0, kind="hyperparameter")
    run.mark_step_end(0)
    run.flush()
    run.end()
    thread.join(PATIENCE_SECONDS)
    reader = read(tmp_path / "tb/attempt_0/worker_0")
    content = reader.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(content).hparams
    assert hparams["hyperparameter/lr"].number_value == 0.5


@pytest.mark.parametrize("damage", ["a shorter event file", "no event file", "another document"])
def test_a_damaged_export_is_not_continued(tmp_path: Path, damage: str) -> None:
    run = RunWriter(tmp_path / "run")
    add_steps(run, range(2))
    run.end()
    follow_run(tmp_path / "run", tmp_path / "tb")
    (file,) = (tmp_path / "tb" / TRAIN).glob("events.*")
    if damage == "a shorter event file":  # as after a power failure
        os.truncate(file, 10)
    elif damage == "no event file":
        file.unlink()
    else:
        (tmp_path / "tb/attempt_0/.tdcore-follow.json").write_text('{"run_id": "0123", "tickets": [7]}')
    with pytest.raises(ConfigError, match=r"remove .*attempt_0 to export the attempt again"):
        follow_run(tmp_path / "run", tmp_path / "tb")


def test_each_sentence_about_missing_data_is_exported(tmp_path: Path) -> None:
    workers = ["worker_0", "worker_1"]
    for worker in workers:
        run = RunWriter(tmp_path / "run", worker=worker, workers=workers, world_size=2)
        add_steps(run, range(1))
        run.ticket += 1
        run._first += 1
        add_steps(run, range(1, 2))
        run.end()
    assert len(td.create_trial(tmp_path / "run").missing()) == 2
    follow_run(tmp_path / "run", tmp_path / "tb")
    for worker in workers:
        ((_, text),) = values(read(tmp_path / "tb/attempt_0" / worker), "missing")
        assert f"rows of {worker} of attempt 0".encode() in text.item()


def test_a_failed_export_writes_no_note_to_a_recording_of_smdebug(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "data" / "smdebug_keras", tmp_path / "old")
    before = sorted((tmp_path / "old").rglob("*"))
    _set_note(tmp_path / "old", 0, "the disk is full")
    assert sorted((tmp_path / "old").rglob("*")) == before
