"""Workers with different global steps: a step is identified by attempt, mode and mode step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdcore import modes
from tdcore.errors import StepUnavailable
from tdcore.trial import StepState, Trial, create_trial
from tests.trial.clocks import W, evaluating, ranks

# Rank 0 counts TRAIN 0 1 2, EVAL 3 4, TRAIN 5 6 7, EVAL 8 9, TRAIN 10 11 12, EVAL 13 14.
# Rank 1 counts TRAIN 0 to 8.
TRAINED = [0, 1, 2, 5, 6, 7, 10, 11, 12]
EVALUATED = [3, 4, 8, 9, 13, 14]


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    """A finished run in which only rank 0 evaluates."""
    evaluating(tmp_path, [2, 0])
    return create_trial(tmp_path)


def states(trial: Trial) -> list[tuple[Any, ...]]:
    names = ("worker", "mode", "mode_step", "step", "name")
    return sorted(tuple(row.values()) for row in trial.rows(columns=names).to_pylist())


def test_global_steps_are_those_of_the_first_worker(trial: Trial) -> None:
    assert trial.steps() == list(range(15))
    assert trial.steps(modes.TRAIN) == list(range(9))
    assert trial.steps(modes.EVAL) == list(range(6))
    assert [step for step in range(15) if trial.mode(step) is modes.TRAIN] == TRAINED
    assert [trial.mode_step(step) for step in TRAINED] == list(range(9))
    assert [trial.global_step(modes.TRAIN, step) for step in range(9)] == TRAINED
    assert [trial.global_step(modes.EVAL, step) for step in range(6)] == EVALUATED
    with pytest.raises(StepUnavailable):
        trial.mode(15)


def test_tables_show_common_steps(trial: Trial) -> None:
    for worker in ("worker_0", "worker_1"):
        table = trial.stats(["x"], mode=modes.TRAIN, workers=worker)
        assert table.column("step").to_pylist() == TRAINED
        assert table.column("mean").to_pylist() == list(range(9))
    assert trial.rows(["x"], steps=5).column("mode_step").to_pylist() == [3, 3]
    assert trial.rows(["x"], steps=range(3, 5)).column("worker").to_pylist() == ["worker_0"] * 2
    assert trial.stats(["x"], steps=[3, 5]).column("worker").to_pylist() == ["worker_0"] * 2 + ["worker_1"]


def test_equal_workers_do_not_deviate(trial: Trial) -> None:
    rows = trial.compare_workers(["x"], column="mean").to_pylist()
    assert {row["deviation"] for row in rows if row["mode"] == "TRAIN"} == {0.0}
    assert {row["alike"] for row in rows if row["mode"] == "TRAIN"} == {2}
    assert {(row["alike"], row["worker"]) for row in rows if row["mode"] == "EVAL"} == {(1, "worker_0")}


def test_parts_of_one_step_make_the_whole(trial: Trial) -> None:
    weight = trial.tensor("w")
    for mode_step, step in enumerate(TRAINED):
        for found in (weight.value(step), weight.value(mode_step, modes.TRAIN), weight.global_value(step)):
            assert np.array_equal(found, W + mode_step)
        assert np.array_equal(weight.value(step, worker="worker_1"), W[2:] + mode_step)
        assert [shard.worker for shard in weight.shards(step)] == ["worker_0", "worker_1"]
        assert weight.workers(step) == ["worker_0", "worker_1"]
    by_step = weight.values(modes.TRAIN)
    assert {step: values.tolist() for step, values in by_step.items()} == {
        step: (W + step).tolist() for step in range(9)
    }
    assert list(weight.values(worker="worker_1")) == TRAINED
    assert weight.steps(modes.TRAIN) == list(range(9))
    assert weight.prev_steps(10, 3) == [8, 9, 10]
    table = trial.stats(["w"], mode=modes.TRAIN, merged=True)
    assert table.column("step").to_pylist() == TRAINED
    assert set(table.column("reason").to_pylist()) == {None}
    assert set(table.column("workers").to_pylist()) == {2}
    assert table.column("mean").to_pylist() == [3.5 + step for step in range(9)]


def test_names_at_a_step_are_those_of_its_mode(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    for rank in (first, second):
        rank.train(2)
    first.evaluate()
    first.add("accuracy", 1.0)
    for rank in (first, second):
        rank.train()
        rank.add("lr", 0.1)
        rank.end()
    trial = create_trial(tmp_path)
    assert trial.tensor_names(step=2) == ["accuracy", "w", "x"]
    assert trial.tensor_names(step=3) == ["lr", "w", "x"]
    assert trial.tensor("lr").steps() == [3]
    assert trial.tensor("lr").workers(3) == ["worker_0", "worker_1"]


@pytest.mark.parametrize("number", [2, 3])
def test_steps_that_only_a_later_worker_has_are_found_by_their_mode(tmp_path: Path, number: int) -> None:
    evaluating(tmp_path, [0] * (number - 1) + [2], number)
    trial = create_trial(tmp_path)
    assert trial.steps(modes.TRAIN) == list(range(9))
    assert trial.steps(modes.EVAL) == list(range(6))
    assert trial.modes() == [modes.TRAIN, modes.EVAL]
    for step in range(9):  # rank 0 has only trained
        assert (trial.mode(step), trial.mode_step(step)) == (modes.TRAIN, step)
        assert np.array_equal(trial.tensor("w").value(step), W + step)
    last = f"worker_{number - 1}"
    x = trial.tensor("x")
    assert [x.value(step, modes.EVAL).item() for step in range(6)] == list(range(6))
    assert [x.workers(step, modes.EVAL) for step in range(6)] == [[last]] * 6
    assert trial.global_step(modes.EVAL, 0) == 3
    assert trial.rows(["x"], steps=3).num_rows == number
    assert trial.rows(["x"], steps=0, mode=modes.EVAL).column("worker").to_pylist() == [last]
    assert x.values()[3].item() == 3
    assert {row["deviation"] for row in trial.compare_workers(["x"], mode=modes.TRAIN).to_pylist()} == {0.0}
    assert trial.rows(["x"]).num_rows == 9 * number + 6


def test_evaluations_of_different_lengths_do_not_shift_training_steps(tmp_path: Path) -> None:
    evaluating(tmp_path, [2, 3])
    trial = create_trial(tmp_path)
    assert [trial.global_step(modes.TRAIN, step) for step in range(9)] == TRAINED
    assert trial.steps(modes.EVAL) == list(range(9))
    assert trial.tensor("x").workers(5, modes.EVAL) == ["worker_0", "worker_1"]
    assert trial.tensor("x").workers(8, modes.EVAL) == ["worker_1"]
    rows = trial.compare_workers(["x"], mode=modes.TRAIN).to_pylist()
    assert {(row["deviation"], row["alike"]) for row in rows} == {(0.0, 2)}


def test_number_of_a_step_that_the_first_worker_did_not_save_follows_from_its_others(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    for step in range(8):
        if step == 3:
            first.evaluate(2)
        first.train()
        if step % 3:
            first.forget()  # this worker saves every third step
        second.train()
    for rank in (first, second):
        rank.end()
    table = create_trial(tmp_path).rows(["x"], mode=modes.TRAIN, workers="worker_1", columns=["step"])
    assert table.column("step").to_pylist() == [0, 1, 2, 5, 6, 7, 8, 9]


# While the run goes on. -------------------------------------------------------------------------------


def test_step_is_complete_when_all_workers_have_it_whatever_they_call_it(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    trial = create_trial(tmp_path)
    for rank in (first, second):
        rank.train(3)
        rank.flush()
    assert trial.steps() == [0, 1, 2]
    first.evaluate(2)
    first.flush()
    assert trial.steps() == [0, 1, 2]  # the other worker may still evaluate
    assert trial.waiting_for(3) == ["worker_1"]
    assert trial.has_passed_step(3) is StepState.NOT_YET_AVAILABLE
    assert trial.has_passed_step(0, modes.EVAL) is StepState.NOT_YET_AVAILABLE
    first.train()
    first.flush()
    assert trial.waiting_for(5) == ["worker_1"]
    second.train(1)
    second.flush(over=False)
    assert trial.steps() == [0, 1, 2, 3, 4]  # this worker has begun a later step
    assert trial.waiting_for(5) == ["worker_1"]
    assert trial.waiting_for(3) == []
    second.flush()
    assert trial.steps() == [0, 1, 2, 3, 4, 5]
    assert trial.steps(modes.TRAIN) == [0, 1, 2, 3]
    assert trial.waiting_for(5) == []
    trial.wait_for_steps([3, 5])
    trial.wait_for_steps([0, 1], modes.EVAL)
    assert trial.has_passed_step(5) is StepState.AVAILABLE
    assert trial.waiting_for(6) == ["worker_0", "worker_1"]


def test_worker_that_is_ahead_has_no_complete_step_before_its_number_is_final(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    trial = create_trial(tmp_path)
    for rank in (first, second):
        rank.train(2)
        rank.flush()
    second.train(2)
    second.flush()
    first.evaluate(2)
    first.flush()
    assert trial.next_complete().column("step").to_pylist() == [0] * 4 + [1] * 4
    assert trial.next_complete().num_rows == 0
    # the current number of rank 1's step is that of another step of rank 0
    assert trial.mode(3) is modes.EVAL
    assert trial.tensor("x").workers(3) == ["worker_0"]
    assert trial.tensor("x").workers(3, modes.TRAIN) == ["worker_1"]
    first.train(2)
    first.flush()
    table = trial.next_complete()
    found = set(zip(*(table.column(name).to_pylist() for name in ("step", "mode", "worker")), strict=True))
    assert found == {
        (2, "EVAL", "worker_0"), (3, "EVAL", "worker_0"),
        *((step, "TRAIN", worker) for step in (4, 5) for worker in ("worker_0", "worker_1")),
    }  # fmt: skip


def test_first_worker_that_evaluates_less_is_waited_for(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    trial = create_trial(tmp_path)
    for rank, steps in ((first, 2), (second, 3)):
        rank.train(3)
        rank.evaluate(steps)
        rank.train(3)
        rank.flush()
    assert trial.steps(modes.EVAL) == [0, 1]
    assert trial.steps(modes.TRAIN) == list(range(6))
    assert trial.waiting_for(trial.global_step(modes.EVAL, 1)) == []
    first.evaluate(2)
    first.flush()
    assert trial.steps(modes.EVAL) == [0, 1, 2]
    for rank in (first, second):
        rank.end()
    assert trial.steps(modes.EVAL) == [0, 1, 2, 3]


def test_steps_that_only_a_later_worker_has_become_complete(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    trial = create_trial(tmp_path)
    for rank in (first, second):
        rank.train(3)
        rank.flush()
    second.evaluate(20)
    second.flush()
    assert trial.steps(modes.EVAL) == []
    for rank in (first, second):
        rank.train(1)
        rank.flush()
    assert trial.steps(modes.EVAL) == list(range(20))
    assert trial.steps(modes.TRAIN) == [0, 1, 2, 3]
    assert trial.steps() == list(range(23))  # numbers that rank 0 has not reached are those of rank 1
    second.train()
    second.flush()
    assert trial.waiting_for(4) == ["worker_0"]


def test_first_worker_that_saves_seldom_has_passed_the_steps_that_it_says(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    first.train()
    second.train(8)
    first.run.mark_step_end(6)
    first.run.flush()
    second.flush()
    assert create_trial(tmp_path).steps() == list(range(7))


def test_rows_of_a_step_may_come_after_those_of_a_later_step(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    trial = create_trial(tmp_path)
    for rank in (first, second):
        rank.run.mark_step_end(-1)
        rank.train(2)
    first.evaluate()
    for rank in (first, second):
        rank.add("late", 1.0, step=1, mode="TRAIN", mode_step=1)
        rank.run.mark_step_end(0)
        rank.run.flush()
    assert trial.steps() == [0]
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 2]
    assert trial.tensor("late").steps(show_incomplete_steps=True) == [1]
    assert trial.tensor("late").workers(1) == ["worker_0", "worker_1"]
    assert trial.next_complete().num_rows == 4
    for rank in (first, second):
        rank.add("late", 2.0, step=1, mode="TRAIN", mode_step=1, call=1)
        rank.flush()
    assert trial.steps() == [0, 1]
    assert trial.next_complete().column("name").to_pylist().count("late") == 4
    assert trial.tensor("late").value(1, call=1, worker="worker_1").item() == 2.0


def test_late_attempt_replaces_the_steps_from_its_first_common_one_on(tmp_path: Path) -> None:
    evaluating(tmp_path, [2, 0])
    trial = create_trial(tmp_path)
    assert trial.steps()[-1] == 14
    again = ranks(tmp_path, attempt=1)
    for rank, step in zip(again, (9, 5), strict=True):  # resumed before TRAIN 6, which is global step 10
        rank.step = step
        rank._mode_steps["TRAIN"] = 6
        rank.train(2)
    again[1].flush()
    assert trial.steps(show_incomplete_steps=True) == [0, 1, 2, 3, 4, 5, 6, 7]  # as that worker counts
    again[0].flush()
    assert trial.steps() == [*range(10), 10, 11]
    assert trial.tensor("w").steps(modes.TRAIN) == list(range(8))
    assert {row["attempt"] for row in trial.rows(steps=range(10)).to_pylist()} == {0}
    assert trial.rows(["x"], steps=10).column("attempt").to_pylist() == [1, 1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    evaluations=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=2, max_size=3),
    turns=st.lists(st.integers(0, 2), max_size=30),
)
def test_following_a_run_ends_where_reading_it_at_once_does(
    evaluations: list[list[int]], turns: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("run")
    job = ranks(root, len(evaluations))
    plans = [
        [step for evaluation in plan for step in ("train", *["evaluate"] * evaluation)] + ["train"]
        for plan in evaluations
    ]
    trial = create_trial(root)
    given_out: dict[tuple[Any, ...], int] = {}

    def follow() -> None:
        for row in trial.next_complete().to_pylist():
            key = tuple(row[name] for name in ("worker", "mode", "mode_step", "name"))
            assert key not in given_out
            given_out[key] = row["step"]

    for rank in [turn % len(job) for turn in turns] + [*range(len(job))] * 20:
        if plans[rank]:
            getattr(job[rank], plans[rank].pop(0))()
            job[rank].flush()
            follow()
    for each in job:
        each.end()
    follow()
    fresh = create_trial(root)
    assert states(trial) == states(fresh)
    assert trial.steps() == fresh.steps()
    whole = {(*row[:3], row[4]): row[3] for row in states(fresh)}
    assert given_out.keys() == whole.keys()  # every row once
    final = ("TRAIN", "EVAL") if evaluations[0][0] else ("TRAIN",)  # rank 0 has the mode when others evaluate
    assert [row for row in given_out.items() if row[0][1] in final and row[1] != whole[row[0]]] == []
    assert fresh.steps(modes.TRAIN) == list(range(5))
    for mode_step in range(5):
        assert np.array_equal(fresh.tensor("w").value(mode_step, modes.TRAIN), W + mode_step)
        step = fresh.global_step(modes.TRAIN, mode_step)
        if fresh.mode(step) is modes.TRAIN:
            assert np.array_equal(fresh.tensor("w").value(step), W + mode_step)
    most = max(map(sum, evaluations))
    assert fresh.steps(modes.EVAL) == list(range(most))


def test_a_range_of_steps_has_the_numbers_of_a_first_worker_that_arrives_later(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    second.train(9)
    second.flush()
    trial = create_trial(tmp_path, range_steps=(5, 11))
    assert trial.steps(show_incomplete_steps=True) == [5, 6, 7, 8]
    for _ in range(3):
        first.train(3)
        first.evaluate(2)
    first.end()
    second.end()
    trial.refresh()
    fresh = create_trial(tmp_path, range_steps=(5, 11))
    assert trial.steps() == fresh.steps() == [5, 6, 7, 8, 9, 10]
    assert states(trial) == states(fresh)
