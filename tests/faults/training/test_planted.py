"""The campaign of planted faults itself: its parts, the effect of a fault, and how an outcome is judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.faults.training.cases import Part, case_of, cases, made
from tests.faults.training.faults import CAUSES, FAULTS
from tests.faults.training.job import Job, train
from tests.faults.training.judge import play
from tests.faults.training.report import interval, lines


def test_the_two_parts_share_no_training_and_each_has_every_kind_of_architecture_it_names() -> None:
    parts: list[Part] = ["develop", "held_out"]
    trainings = [{case.training for case in cases(part, [0])} for part in parts]
    assert not trainings[0] & trainings[1]
    assert [len(names) for names in trainings] == [10, 10]
    assert all(sum(case.fault is not None for case in cases(part, [0])) >= 80 for part in parts)


def test_every_fault_has_a_cause_of_the_list_and_a_training_to_be_planted_in() -> None:
    trainings = {case.training for part in ("develop", "held_out") for case in cases(part, [0])}
    for fault in FAULTS:
        assert fault.cause in CAUSES
        assert set(fault.on) <= trainings
    assert {fault.cause for fault in FAULTS} == set(CAUSES)


def test_a_case_is_made_again_from_its_name() -> None:
    case = case_of("mlp: rate x1000 (seed 3)")
    assert (case.training, case.seed) == ("mlp", 3)
    with pytest.raises(ValueError, match="no case is called"):
        case_of("mlp: no such fault (seed 0)")


@pytest.mark.parametrize("name", ["mlp: shuffled targets (seed 0)", "graph: weights of zero (seed 1)"])
def test_a_case_trains_the_same_way_each_time_and_otherwise_than_without_its_fault(name: str) -> None:
    torch.set_num_threads(1)

    def losses(name: str) -> list[float]:
        job, _ = made(case_of(name))
        assert isinstance(job, Job)
        job.steps = 20
        return train(job)

    healthy = f"{name.partition(':')[0]}: healthy {name[name.index('(') :]}"
    assert losses(name) == losses(name) != losses(healthy)


@pytest.mark.timeout(300)
def test_a_fault_that_a_rule_names_counts_as_named_and_one_that_none_names_does_not(tmp_path: Path) -> None:
    found = play(case_of("mlp: never cleared (seed 0)"), tmp_path / "missed")
    assert not found.named
    found = play(case_of("regression: weights of zero (seed 0)"), tmp_path / "named")
    assert found.named
    assert "TDC117" in found.rules
    report = "\n".join(lines([found]))
    assert "named right and in time: 1 of 1" in report


def test_the_interval_of_a_share_is_wilson_s() -> None:
    low, high = interval(22, 40)
    assert (round(low, 3), round(high, 3)) == (0.398, 0.693)
    assert interval(0, 10)[0] == 0.0
    assert interval(10, 10)[1] == 1.0
