"""The campaign of false alarms, with one seed."""

from __future__ import annotations

import pytest

from tests.healthy.__main__ import main


@pytest.mark.slow
@pytest.mark.timeout(1200)  # two dozen trainings, which take minutes on a busy machine
def test_no_rule_fires_on_a_healthy_training_without_a_reason_that_we_know(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main([])
    assert status == 0, capsys.readouterr().out
