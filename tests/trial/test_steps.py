"""Steps, modes, attempts and workers: complete steps, steps that may still come, and what readers return."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tdcore import modes
from tdcore.errors import (
    ConfigError,
    InvalidAttempt,
    NoMoreData,
    StepUnavailable,
)
from tdcore.trial import StepState, Trial, create_trial, no_refresh, refresh
from tests.trial.writer import EPOCH_NS, RunWriter

ONE = np.ones(1)


class Clock:
    """A clock that advances only when a trial waits, and the events of each wait."""

    def __init__(self, trial: Trial, *events: Callable[[], object]) -> None:
        self.now = self.start = trial._reader.clock()
        self._events = list(events)
        reader = trial._reader
        reader.clock = reader.progress._clock = lambda: self.now
        reader.wait = self.wait
        for frontier in reader.progress._frontiers.values():
            frontier.arrived = self.now
        reader.progress._opened = self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self._events:
            self._events.pop(0)()


def status(trial: Trial) -> str:
    assert trial.loaded_all_steps == (trial.status != "running")
    return trial.status


def save(run: RunWriter, *steps: int, name: str = "x", mode: str = "TRAIN") -> None:
    for step in steps:
        run.add(name, np.array([float(run.attempt)]), step=step, mode=mode)
    run.flush()


def test_steps_and_modes(run: RunWriter) -> None:
    for step, mode, mode_step in [(0, "TRAIN", 0), (1, "TRAIN", 1), (2, "EVAL", 0), (3, "TRAIN", 2)]:
        run.add("x", np.array([float(step)]), step=step, mode=mode, mode_step=mode_step)
    run.add("note", ONE, step=2, mode="GLOBAL")
    run.flush()
    run.end()
    trial = create_trial(run.root)
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.steps(mode=modes.TRAIN) == [0, 1, 2]
    assert trial.steps(mode=modes.EVAL) == [0]
    assert trial.steps(mode=modes.PREDICT) == []
    assert trial.modes() == [modes.TRAIN, modes.EVAL]
    assert [trial.mode(step) for step in range(4)] == [modes.TRAIN, modes.TRAIN, modes.EVAL, modes.TRAIN]
    assert [trial.mode_step(step) for step in range(4)] == [0, 1, 0, 2]
    assert trial.global_step(modes.TRAIN, 2) == 3
    assert trial.global_step(modes.GLOBAL, 2) == 2
    assert trial.tensor("x").steps(modes.TRAIN) == [0, 1, 2]
    assert trial.tensor("x").value(2, mode=modes.TRAIN).tolist() == [3.0]
    assert trial.tensor("x").value(2).tolist() == [2.0]
    assert trial.tensor("x").values(modes.EVAL) == {0: np.array([2.0])}
    assert trial.tensor_names(step=2) == ["note", "x"]
    assert trial.tensor_names(step=0, mode=modes.EVAL) == ["x"]
    assert trial.tensor_names(mode=modes.PREDICT) == []
    for question in (
        lambda: trial.mode(9),
        lambda: trial.mode_step(9),
        lambda: trial.global_step(modes.EVAL, 5),
    ):
        with pytest.raises(StepUnavailable):
            question()


def test_previous_steps_are_those_up_to_the_step(run: RunWriter) -> None:
    save(run, 0, 10, 20, 30)
    run.end()
    tensor = create_trial(run.root).tensor("x")
    assert tensor.prev_steps(20, 2) == [10, 20]
    assert tensor.prev_steps(25, 2) == [10, 20]
    assert tensor.prev_steps(20, None) == [0, 10, 20]
    assert tensor.prev_steps(0, 3) == [0]
    assert tensor.prev_steps(30, 0) == []


def test_names_at_a_step_are_those_saved_there(run: RunWriter) -> None:
    run.add("x", ONE, step=0)
    run.add("frozen", None, step=0, status="absent")
    run.add("y", ONE, step=1)
    run.flush()
    trial = create_trial(run.root)
    assert trial.tensor_names() == ["x", "y"]
    assert trial.tensor_names(step=0) == ["x"]
    assert trial.tensor_names(step=7) == []
    assert trial.has_tensor("frozen")
    assert trial.tensor_names(regex="^y") == ["y"]
    assert trial.tensor_names(regex=["^y", "x$"]) == ["x", "y"]
    with pytest.raises(ConfigError, match="not both"):
        trial.tensor_names(regex="x", collection="all")


# Complete steps. --------------------------------------------------------------------------------------


def test_last_step_of_a_running_worker_is_incomplete_until_the_next_one(run: RunWriter) -> None:
    trial = create_trial(run.root)
    save(run, 0)
    assert trial.steps() == []
    assert trial.steps(show_incomplete_steps=True) == [0]
    assert trial.tensor("x").steps() == []
    assert trial.tensor("x").steps(show_incomplete_steps=True) == [0]
    save(run, 10)
    assert trial.steps() == [0]
    assert trial.has_passed_step(0) is StepState.AVAILABLE
    assert trial.has_passed_step(10) is StepState.NOT_YET_AVAILABLE
    run.end()
    assert trial.steps() == [0, 10]


def test_step_is_complete_when_its_worker_says_so_and_not_by_rows_of_later_ones(run: RunWriter) -> None:
    trial = create_trial(run.root)
    run.mark_step_end(-1)
    save(run, 0, 1, name="host")
    assert trial.steps() == []
    save(run, 0, name="device")
    run.mark_step_end(0)
    run.flush()
    assert trial.steps() == [0]
    save(run, 1, name="device")
    run.mark_step_end(1)
    run.flush()
    assert trial.steps() == [0, 1]


def test_step_that_nothing_is_added_to_becomes_complete(run: RunWriter) -> None:
    save(run, 0)
    trial = create_trial(run.root)
    clock = Clock(trial)
    assert trial.steps() == []
    clock.now += 4.9
    assert trial.steps() == []
    save(run, 0, name="y")
    assert trial.steps() == []
    clock.now += 4.9
    assert trial.steps() == []
    clock.now += 0.2
    assert trial.steps() == [0]


def test_step_saved_long_ago_is_complete(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, epoch_ns=EPOCH_NS)
    save(run, 0)
    assert create_trial(tmp_path).steps() == [0]


def test_step_is_complete_when_every_worker_has_passed_it(tmp_path: Path) -> None:
    fast, slow = (RunWriter(tmp_path, worker=f"worker_{rank}") for rank in range(2))
    trial = create_trial(tmp_path)
    save(fast, 0, 1, 2)
    assert trial.steps() == []  # worker_1 has begun, but has no rows
    save(slow, 0, 1)
    assert trial.steps() == [0]
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 2]
    assert trial.has_passed_step(1) is StepState.NOT_YET_AVAILABLE
    slow.end(clean=False)
    assert trial.steps() == [0, 1]
    fast.end()
    assert trial.steps() == [0, 1, 2]
    assert status(trial) == "died"


def test_worker_that_never_shows_anything_does_not_hold_back_for_ever(tmp_path: Path) -> None:
    writers = [RunWriter(tmp_path, worker=f"worker_{rank}") for rank in range(2)]
    trial = create_trial(tmp_path)
    clock = Clock(trial)
    save(writers[0], 0, 1)
    assert trial.steps() == []
    clock.now += 51
    assert trial.steps() == [0, 1]


def test_passed_step_is_unavailable_and_later_one_not_yet(run: RunWriter) -> None:
    trial = create_trial(run.root)
    save(run, 0, 10, 20)
    assert trial.has_passed_step(10) is StepState.AVAILABLE
    assert trial.has_passed_step(5) is StepState.UNAVAILABLE
    assert trial.has_passed_step(25) is StepState.NOT_YET_AVAILABLE
    assert trial.has_passed_step(10, modes.TRAIN) is StepState.AVAILABLE
    assert trial.has_passed_step(0, modes.EVAL) is StepState.NOT_YET_AVAILABLE
    run.end()
    assert trial.has_passed_step(20) is StepState.AVAILABLE
    assert trial.has_passed_step(25) is StepState.UNAVAILABLE


# Waiting. ---------------------------------------------------------------------------------------------


def test_waiting_returns_when_the_steps_are_complete(run: RunWriter) -> None:
    trial = create_trial(run.root)
    Clock(trial, lambda: save(run, 0, 1), lambda: save(run, 2, 3))
    trial.wait_for_steps([0, 1, 2])
    assert trial.steps() == [0, 1, 2]


def test_waiting_for_a_step_that_was_passed_over_fails(run: RunWriter) -> None:
    trial = create_trial(run.root)
    Clock(trial, lambda: save(run, 0, 10, 20))
    with pytest.raises(StepUnavailable, match="saved nothing at step 5"):
        trial.wait_for_steps([0, 5])


@pytest.mark.parametrize("clean", [True, False])
def test_waiting_for_a_step_after_the_end_fails(run: RunWriter, clean: bool) -> None:
    trial = create_trial(run.root)
    save(run, 0)
    Clock(trial, lambda: save(run, 1), lambda: run.end(clean=clean))
    with pytest.raises(NoMoreData, match="before step 7; the last saved step is 1"):
        trial.wait_for_steps([1, 7])
    assert trial.loaded_all_steps


def test_waiting_is_bounded(run: RunWriter) -> None:
    trial = create_trial(run.root)
    clock = Clock(trial)
    with pytest.raises(TimeoutError, match=r"step 3 .* did not appear within 0:00:10"):
        trial.wait_for_steps([3], timeout=timedelta(seconds=10))
    assert clock.now - clock.start < 11


# Status of a run. -------------------------------------------------------------------------------------


def test_status_follows_the_end_files(run: RunWriter) -> None:
    trial = create_trial(run.root)
    assert status(trial) == "running"
    run.end(clean=True, last_step=3, drops={"ring_full": {"tensors": 2, "bytes": 10}})
    assert status(trial) == "ended"
    (end,) = trial.ends().values()
    assert (end.worker, end.attempt, end.clean) == ("worker_0", 0, True)
    assert end.document["drops"]["ring_full"]["tensors"] == 2


def test_unclean_end_is_a_death(run: RunWriter) -> None:
    run.end(clean=False)
    assert create_trial(run.root).status == "died"


def test_run_whose_process_is_gone_has_died(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, host=socket.gethostname(), pid=2**22 - 3, epoch_ns=EPOCH_NS)
    save(run, 0, 1)
    trial = create_trial(tmp_path)
    assert status(trial) == "died"
    assert trial.steps() == [0, 1]
    with pytest.raises(NoMoreData, match="died before step 2"):
        trial.wait_for_steps([2])


def test_run_whose_process_lives_is_running(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, host=socket.gethostname(), pid=os.getpid())
    save(run, 0, 1)
    trial = create_trial(tmp_path)
    Clock(trial).now += 1000
    assert status(trial) == "running"


def test_run_that_wrote_nothing_is_empty(run: RunWriter) -> None:
    trial = create_trial(run.root)
    assert trial.tensor_names() == []
    assert trial.steps() == []
    assert trial.modes() == []
    assert trial.workers() == []
    assert trial.collections() == {}
    assert trial.findings() == []
    assert trial.gaps == []
    assert trial.ends() == {}
    assert trial.attempts == [0]
    assert trial.rows().num_rows == 0
    run.end()
    assert status(trial) == "ended"


def test_answers_hold_still_without_refresh(run: RunWriter) -> None:
    trial = create_trial(run.root)
    save(run, 0, 1)
    with no_refresh(trial):
        assert trial.steps() == []
        with refresh([trial]):
            assert trial.steps() == [0]
        save(run, 2)
        assert trial.steps() == [0]
    assert trial.steps() == [0, 1]


# Attempts. --------------------------------------------------------------------------------------------


def crashed_and_resumed(root: Path) -> Trial:
    first = RunWriter(root)
    save(first, *range(190, 213))
    first.end(clean=False)
    second = RunWriter(root, attempt=1)
    save(second, *range(200, 206))
    return create_trial(root)


def test_resumed_run_is_one_history(tmp_path: Path) -> None:
    trial = crashed_and_resumed(tmp_path)
    assert trial.attempts == [0, 1]
    assert trial.steps() == list(range(190, 205))
    assert trial.steps(show_incomplete_steps=True) == list(range(190, 206))
    tensor = trial.tensor("x")
    assert [tensor.value(step).item() for step in (190, 199, 200, 205)] == [0, 0, 1, 1]
    assert trial.has_passed_step(212) is StepState.NOT_YET_AVAILABLE
    assert trial.stats().num_rows == 16
    assert status(trial) == "running"


def test_each_attempt_can_be_looked_at_alone(tmp_path: Path) -> None:
    trial = crashed_and_resumed(tmp_path)
    assert trial.stats(attempt=0).num_rows == 23
    assert trial.rows(attempt=1).num_rows == 6
    first = create_trial(tmp_path, attempt=0)
    assert first.steps() == list(range(190, 213))
    assert first.tensor("x").value(205).item() == 0
    with pytest.raises(InvalidAttempt, match="it has 0, 1"):
        create_trial(tmp_path, attempt=2)


def test_attempt_that_begins_anew_replaces_all_before_it(tmp_path: Path) -> None:
    save(RunWriter(tmp_path), 0, 1, 2, 3)
    trial = create_trial(tmp_path)
    second = RunWriter(tmp_path, attempt=1)
    assert trial.steps() == [0, 1, 2, 3]  # nothing of the new attempt yet
    save(second, 0, 1)
    assert trial.steps(show_incomplete_steps=True) == [0, 1]
    assert trial.tensor("x").value(0).item() == 1


def test_later_attempt_is_found_while_reading(tmp_path: Path) -> None:
    first = RunWriter(tmp_path)
    save(first, 0, 1, 2)
    first.end()
    trial = create_trial(tmp_path)
    assert status(trial) == "ended"
    second = RunWriter(tmp_path, attempt=1)
    save(second, 2)
    assert status(trial) == "running"
    assert trial.steps() == [0, 1]


def test_range_of_steps_limits_what_is_seen(run: RunWriter) -> None:
    save(run, *range(10))
    run.end()
    trial = create_trial(run.root, range_steps=(3, 6))
    assert trial.steps() == [3, 4, 5]
    assert create_trial(run.root, range_steps=(None, 2)).steps() == [0, 1]
    assert create_trial(run.root, range_steps=(8, None)).stats().num_rows == 2
    with pytest.raises(ConfigError, match="is empty"):
        create_trial(run.root, range_steps=(5, 5))
