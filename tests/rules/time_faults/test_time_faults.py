"""Real trainings with a planted fault that costs time: the rule of the fault finds it, and only there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tdcore.rules import Status, Verdict
from tests.rules.time_faults.judge import judged, trained
from tests.rules.time_faults.trainings import FAULTS, HEALTHY

pytestmark = pytest.mark.full
EVERY_FAULT = pytest.mark.parametrize("fault", list(FAULTS))
Judge = Callable[[str], dict[str, Verdict]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Return a function from the name of a training to the verdicts on it. Each training runs once."""
    folder = tmp_path_factory.mktemp("times")
    return cache(lambda training: judged(trained(folder / training, training)))


@EVERY_FAULT
def test_a_planted_fault_is_found(judge: Judge, fault: str) -> None:
    verdict = judge(fault)[FAULTS[fault]]
    assert verdict.status is Status.ISSUE, verdict.text


@EVERY_FAULT
def test_the_same_training_without_the_fault_is_not_reported(judge: Judge, fault: str) -> None:
    verdict = judge(HEALTHY[fault])[FAULTS[fault]]
    assert verdict.status is Status.NO_ISSUE, verdict.text
