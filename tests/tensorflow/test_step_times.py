"""Times of steps of the TensorFlow hook: one row per step, of tapes and of captured functions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import keras
import tensorflow as tf

import tdcore as td
from tdcore.format.step_times import PHASES

PAUSE = 0.1  # seconds; other processes of the machine take less
MakeHook = Callable[..., Any]
NEVER = td.SaveConfig(start_step=10**6)
Rows = list[dict[str, Any]]


def rows_of(hook: Any) -> Rows:
    hook.close()
    assert not hook._faults
    rows: Rows = td.create_trial(hook.out_dir).steps_time().to_pylist()
    for row in rows:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
    return rows


def steps_of(rows: Rows) -> list[tuple[str, int]]:
    return [(row["mode"], row["mode_step"]) for row in rows]


def slow(rows: Rows, phase: str) -> list[int]:
    return [number for number, row in enumerate(rows) if row[f"{phase}_ns"] >= PAUSE * 1e9]


class Loop:
    """An eager loop: a wrapped tape and an update are one step."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.weight = tf.Variable(tf.ones(2), name="w")
        self.optimizer = keras.optimizers.SGD(0.1)
        self.optimizer.build([self.weight])

    def gradient(self, seconds: float = 0.0) -> Any:
        with self.hook.wrap_tape(tf.GradientTape()) as tape:
            time.sleep(seconds)
            loss = tf.reduce_sum(self.weight**2)
        return tape.gradient(loss, self.weight)

    def step(self, seconds: float = 0.0) -> None:
        self.optimizer.apply_gradients([(self.gradient(seconds), self.weight)])


@pytest.mark.parametrize("saves", [True, False])
def test_each_step_of_an_eager_loop_has_one_row(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    loop = Loop(hook)
    for _ in range(3):
        loop.step()
    rows = rows_of(hook)
    assert steps_of(rows) == [("TRAIN", step) for step in range(3)]
    assert all(row["compute_ns"] > 0 and row["optimizer_ns"] > 0 for row in rows)


def test_phases_of_an_eager_loop(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    loop = Loop(hook)

    def waiting() -> Any:
        for number in range(5):
            time.sleep(3 * PAUSE * (number == 4))  # the iterator can be one batch ahead
            yield number

    data = tf.data.Dataset.from_generator(waiting, output_signature=tf.TensorSpec((), tf.int32))
    for number, _ in enumerate(data):
        loop.step(PAUSE * (number == 1))
        time.sleep(PAUSE * (number == 2))
    rows = rows_of(hook)
    assert len(rows) == 5
    assert slow(rows, "compute") == [1]
    assert slow(rows, "rest") == [2]
    assert 4 in slow(rows, "data")


def test_accumulated_gradients_are_one_row_with_their_data(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    loop = Loop(hook)
    for _ in range(2):
        total = 0.0
        for _ in range(2):
            with hook.phase("data"):
                time.sleep(PAUSE / 2)
            total = total + loop.gradient()
        loop.optimizer.apply_gradients([(total, loop.weight)])
    rows = rows_of(hook)
    assert [row["data_waits"] for row in rows] == [2, 2]
    assert slow(rows, "data") == [0, 1]


@pytest.mark.parametrize("saves", [True, False])
def test_an_evaluation_within_a_step_has_its_own_row(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    loop = Loop(hook)
    total = loop.gradient()
    hook.set_mode(td.modes.EVAL)
    loop.gradient()
    hook.set_mode(td.modes.TRAIN)
    loop.optimizer.apply_gradients([(total + loop.gradient(), loop.weight)])
    assert steps_of(rows_of(hook)) == [("TRAIN", 0), ("EVAL", 0)]


@pytest.mark.parametrize("saves", [True, False])
def test_each_call_of_a_captured_function_has_one_row_and_the_end_of_data_has_none(
    saves: bool, make_hook: MakeHook
) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    weight = tf.Variable(1.0)

    @hook.capture_step  # type: ignore[untyped-decorator]  # a hook of another environment
    def step(batches: Any) -> Any:
        weight.assign_add(tf.cast(next(batches), tf.float32))
        return weight

    batches = iter(tf.data.Dataset.range(3))
    for number in range(3):
        step(batches)
        time.sleep(PAUSE * (number == 1))
    with pytest.raises((tf.errors.OutOfRangeError, StopIteration)):
        step(batches)
    assert len(rows := rows_of(hook)) == hook.mode_steps[td.modes.TRAIN] + 1 == 3
    assert slow(rows, "rest") == [1]


@pytest.mark.parametrize("manager", [False, True])
def test_a_checkpoint_of_tensorflow_is_a_checkpoint(
    manager: bool, make_hook: MakeHook, tmp_path: Path
) -> None:
    hook = make_hook(save_config=NEVER)
    loop = Loop(hook)
    saved = tf.train.Checkpoint(w=loop.weight)
    for number in range(3):
        loop.step()
        if number == 1 and manager:
            tf.train.CheckpointManager(saved, tmp_path / "many", max_to_keep=2).save()
        elif number == 1:
            saved.save(str(tmp_path / "one"))
    rows = rows_of(hook)
    assert [row["checkpoints"] for row in rows] == [0, 1, 0]
    assert rows[1]["checkpoint_ns"] > 0
