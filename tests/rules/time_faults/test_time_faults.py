"""Real trainings with a planted fault that costs time: the rule of the fault finds it, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdcore.rules import Status
from tests.rules.time_faults.judge import judged, trained
from tests.rules.time_faults.trainings import FAULTS

pytestmark = pytest.mark.full
EVERY_FAULT = pytest.mark.parametrize("fault", list(FAULTS))


@EVERY_FAULT
def test_a_planted_fault_is_found(tmp_path: Path, fault: str) -> None:
    verdict = judged(trained(tmp_path / "run", fault))[FAULTS[fault]]
    assert verdict.status is Status.ISSUE, verdict.text


@EVERY_FAULT
def test_the_same_training_without_the_fault_is_not_reported(tmp_path: Path, fault: str) -> None:
    verdict = judged(trained(tmp_path / "run", f"none:{fault}"))[FAULTS[fault]]
    assert verdict.status is Status.NO_ISSUE, verdict.text
