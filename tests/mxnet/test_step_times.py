"""Times of steps of the MXNet hook: one row per step, and the phases that Gluon shows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon, nd

import tdcore as td
from tdcore.format.step_times import PHASES
from tdcore.hooks.mxnet import Hook
from tests.mxnet.networks import Training, batches

PAUSE = 0.1  # seconds; other processes of the machine take less
Rows = list[dict[str, Any]]


def hooked(folder: Path, *, saves: bool = False) -> tuple[Training, Hook]:
    training = Training("dense")
    every = td.SaveConfig(save_interval=1) if saves else td.SaveConfig(start_step=10**6)
    hook = Hook(folder, flusher="thread", save_config=every)
    hook.register_block(training.net)
    return training, hook


def rows_of(hook: Hook) -> Rows:
    hook.close()
    rows: Rows = td.create_trial(hook.out_dir).steps_time().to_pylist()
    for row in rows:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
    return rows


def slow(rows: Rows, phase: str) -> list[int]:
    return [number for number, row in enumerate(rows) if row[f"{phase}_ns"] >= PAUSE * 1e9]


@pytest.mark.parametrize("saves", [True, False])
def test_each_step_has_one_row_in_its_mode(saves: bool, tmp_path: Path) -> None:
    training, hook = hooked(tmp_path, saves=saves)
    for x, y in batches(3):
        training.step(x, y)
    for x, _ in batches(2):
        training.net(x)
    rows = rows_of(hook)
    assert [(row["mode"], row["mode_step"]) for row in rows] == [
        *(("TRAIN", step) for step in range(3)),
        *(("EVAL", step) for step in range(2)),
    ]
    assert all(row["optimizer_ns"] > 0 for row in rows[:3])


def test_time_after_the_update_is_rest_and_a_named_wait_is_data(tmp_path: Path) -> None:
    training, hook = hooked(tmp_path)
    for number, (x, y) in enumerate(batches(5)):
        with hook.phase("data"):
            time.sleep(PAUSE * (number == 3))
        training.step(x, y)
        time.sleep(PAUSE * (number == 1))
    rows = rows_of(hook)
    assert len(rows) == 5
    assert slow(rows, "rest") == [1]
    assert slow(rows, "data") == [3]


def test_saved_parameters_are_a_checkpoint(tmp_path: Path) -> None:
    before = gluon.Block.save_parameters, gluon.Trainer.save_states
    training, hook = hooked(tmp_path / "run")
    for number, (x, y) in enumerate(batches(3)):
        training.step(x, y)
        if number == 1:
            training.net.save_parameters(str(tmp_path / "parameters"))
            training.trainer.save_states(str(tmp_path / "states"))
    assert [row["checkpoints"] for row in rows_of(hook)] == [0, 2, 0]
    assert (gluon.Block.save_parameters, gluon.Trainer.save_states) == before


class Slow(gluon.data.Dataset):  # type: ignore[misc]  # mxnet has no annotations
    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        time.sleep(PAUSE)
        return np.ones(12, np.float32)


def test_a_data_loader_with_workers_is_data(tmp_path: Path) -> None:
    training, hook = hooked(tmp_path)
    for x in gluon.data.DataLoader(Slow(), batch_size=1, num_workers=1, thread_pool=True, prefetch=1):
        training.step(x, nd.zeros(1))
        mx.nd.waitall()
    rows = rows_of(hook)
    assert len(rows) == 4
    assert sum(row["data_ns"] for row in rows) >= PAUSE * 1e9


def test_an_evaluation_within_a_step_has_its_own_row(tmp_path: Path) -> None:
    training, hook = hooked(tmp_path)
    (x, y), (other, _) = batches(2)
    with autograd.record():
        loss = training.criterion(training.net(x), y)
    training.net(other)
    loss.backward()
    training.trainer.step(len(x))
    assert [(row["mode"], row["mode_step"]) for row in rows_of(hook)] == [("TRAIN", 0), ("EVAL", 0)]
