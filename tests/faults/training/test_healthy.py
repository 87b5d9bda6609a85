"""Healthy trainings: some of each kind in CI; `python -m tests.faults.training --part healthy` plays all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.training.cases import case_of, cases
from tests.faults.training.healthy import HEALTHY
from tests.faults.training.judge import play
from tests.faults.training.report import lines

SOME = (
    "with uncertainty",
    "categories",
    "decoupled decay",
    "support vectors",
    "low-rank adapters",
    "adversarial, slope penalty",
    "policy gradient",
    "L-BFGS",
)


def test_there_are_many_and_none_of_them_is_in_another_part() -> None:
    assert len(HEALTHY) >= 50
    assert [case.fault for case in cases("healthy", [0])] == [None] * len(HEALTHY)
    assert not {*HEALTHY} & {case.training for part in ("develop", "held_out") for case in cases(part, [0])}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SOME)
def test_a_healthy_training_learns_and_has_no_cause(name: str, tmp_path: Path) -> None:
    found = play(case_of(f"{name}: healthy (seed 0)"), tmp_path, "default")
    assert found.learned, (found.first_loss, found.last_loss)
    assert found.causes == ()
    assert "healthy trainings with a cause: 0 of 1" in "\n".join(lines([found]))
