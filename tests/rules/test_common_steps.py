"""Rules on workers with different global steps, because only some of the workers evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.rules import invoke_rule, run
from tdcore.rules.columns import Columns
from tdcore.rules.legacy import LegacyRule, Rule
from tdcore.rules.measures.phases import PhaseCutter
from tdcore.rules.measures.series import mixed_series
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import COLUMNS
from tdcore.rules.window import Window
from tdcore.trial import create_trial
from tests.trial.clocks import evaluating, ranks

TRAINED = [0, 1, 2, 5, 6, 7, 10, 11, 12]


class Seen(Rule):
    """Records the steps, and the workers that have values in each step."""

    steps: list[tuple[int, list[str]]] = []  # noqa: RUF012 -- of all its objects: the engine makes one

    def __init__(self, base_trial: Any) -> None:
        super().__init__(base_trial)
        self.steps.clear()

    def invoke_at_step(self, step: int) -> bool:
        self.steps.append((step, self.base_trial.tensor("x").workers(step)))
        return False


BOTH = ["worker_0", "worker_1"]


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([2, 0], [(step, BOTH if step in TRAINED else BOTH[:1]) for step in range(15)]),
        ([0, 2], [(step, BOTH) for step in range(9)]),
    ],
)
def test_rules_of_the_older_kind_judge_each_step_once_with_all_its_workers(
    tmp_path: Path, evaluations: list[int], expected: list[tuple[int, list[str]]]
) -> None:
    evaluating(tmp_path, evaluations)
    invoke_rule(Seen(create_trial(tmp_path)))
    assert Seen.steps[: len(expected)] == expected
    run(tmp_path, [LegacyRule(Seen)])
    assert Seen.steps[: len(expected)] == expected
    steps = [step for step, _ in Seen.steps]
    assert steps == sorted(set(steps))


def test_windows_hold_the_steps_of_the_first_worker(tmp_path: Path) -> None:
    evaluating(tmp_path, [2, 0])
    table = RunSource(tmp_path).next(["step", "mode_step", "worker", "mode", "name"]).table
    rows = [row for row in table.to_pylist() if row["name"] == "x" and row["mode"] == "TRAIN"]
    for worker in BOTH:
        assert [row["step"] for row in rows if row["worker"] == worker] == TRAINED


def test_numbers_outlive_a_restart_although_judged_rows_are_not_read_again(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    first.train(3)
    first.evaluate(2)
    first.train(3)
    first.flush()
    before = RunSource(tmp_path)
    assert before.next(["step"]).table.num_rows == 16
    after = RunSource(tmp_path)
    after.resume(before.position())
    second.train(6)
    second.flush()
    table = after.next(["step", "mode_step", "worker"]).table
    assert len(after._index) == 12  # steps of the second worker
    assert sorted(set(table.column("step").to_pylist())) == [0, 1, 2, 5, 6, 7]
    assert (
        after.position()["numbering"]
        == RunSource(tmp_path).position()["numbering"] | after.position()["numbering"]
    )


def test_steps_are_complete_for_a_worker_by_its_own_numbers(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    for rank, evaluation in ((first, 2), (second, 0)):
        rank.run.mark_step_end(-1)
        rank.train(3)
        rank.evaluate(evaluation)
        rank.train(2)
        rank.run.mark_step_end(rank.step - 1)
        rank.run.flush()
    table = RunSource(tmp_path).next(["step", "worker"]).table
    newest = {
        worker: max(row["step"] for row in table.to_pylist() if row["worker"] == worker) for worker in BOTH
    }
    assert newest == {"worker_0": 5, "worker_1": 5}


def test_losses_of_a_worker_are_in_its_own_order(tmp_path: Path) -> None:
    """Evaluations of rank 1 have one step more than those of rank 0, so its later global steps are larger."""
    for rank, steps in zip(ranks(tmp_path), (2, 3), strict=True):
        for _ in range(3):
            rank.train(3)
            rank.evaluate(steps)
        rank.end()
    window = Window(columns=Columns(RunSource(tmp_path).next(COLUMNS).table), memory={})
    rows = np.flatnonzero(window.named(["^x$"]))
    for (_, worker, _), points, is_eval in mixed_series(window, rows):
        evaluated = 2 if worker == "worker_0" else 3
        phases = PhaseCutter().take(points, is_eval)
        assert [(phase.is_eval, phase.count) for phase in phases] == [
            (False, 3), (True, evaluated), (False, 3), (True, evaluated), (False, 3),
        ]  # fmt: skip
        assert [phase.step for phase in phases if not phase.is_eval] == [2, 7, 12]
