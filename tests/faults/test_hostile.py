"""A short campaign of mutated runs; `.ci/run hostile` makes a longer one."""

from __future__ import annotations

import pytest

from tests.faults.hostile import campaign


@pytest.mark.timeout(1200)
def test_commands_end_well_on_mutated_runs_and_touch_nothing_outside() -> None:
    outcome = campaign(runs=100, seed=1)
    assert outcome.runs == 100
    assert not outcome.wrong, outcome.text
