"""Forked children (DataLoader, multiprocessing, os.fork) do not capture, and their exit closes nothing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.trainers.checks import Trainer, check_run, end_of, read_index
from tests.trainers.quadratic import NAMES

# Python 3.12 warns about every fork in a process with threads.
STRICT = {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    started: list[Trainer] = []
    yield started
    for trainer in started:
        trainer.stop()


@pytest.mark.parametrize("how", ["os._exit", "sys.exit", "pool"])
def test_a_forked_child_captures_nothing_and_disturbs_nothing(
    tmp_path: Path, trainers: list[Trainer], how: str
) -> None:
    trainer = Trainer(tmp_path, script="forking.py", steps=30, how=how, env=STRICT)
    trainers.append(trainer)
    assert trainer.wait() == 0, trainer.output
    assert trainer.output == ""
    assert check_run(trainer.out, trainer.captured()) == 30 * len(NAMES)
    assert end_of(trainer.out)["clean"] is True
    assert not trainer.flushers()


def test_forks_while_threads_capture_meet_no_lock(tmp_path: Path, trainers: list[Trainer]) -> None:
    trainer = Trainer(tmp_path, script="forking.py", steps=4, how="threads", forks=25)
    trainers.append(trainer)
    assert trainer.wait() == 0, trainer.output
    rows = read_index(trainer.out)
    assert rows.num_rows > 4 * len(NAMES)
    assert 999_999 not in rows["step"].to_pylist()
    assert end_of(trainer.out)["clean"] is True


def test_a_child_that_outlives_its_trainer_does_not_keep_the_flusher(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, script="forking.py", steps=10, how="linger")
    trainers.append(trainer)
    trainer.wait()
    child = psutil.Process(int(trainer.output))
    try:
        trainer.wait_for_flushers()
        assert child.is_running()
        check_run(trainer.out, trainer.captured())
        assert end_of(trainer.out)["clean"] is False
    finally:
        child.kill()


def test_a_data_loader_with_forked_workers_runs_beside_a_hook(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    trainer = Trainer(tmp_path, script="loading.py", workers=2, epochs=2)
    trainers.append(trainer)
    assert trainer.wait() == 0, trainer.output
    rows = read_index(trainer.out)
    assert set(rows["step"].to_pylist()) == set(range(12))
    assert not any("from_a_worker" in name for name in rows["name"].to_pylist())
    losses = [row for row in rows.to_pylist() if row["kind"] == "loss"]
    assert len(losses) == 12
    assert end_of(trainer.out)["clean"] is True
    assert not trainer.flushers()
