"""CheckpointStall: time in checkpoints, and the advised interval."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import CheckpointStall, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import USUAL, even_steps, is_silent_in_a_run


def saved(number: int, interval: int, ms: float = 2000.0) -> Trace:
    """Return steps of 50 ms; a checkpoint is written in each `interval`-th step."""
    trace = Trace()
    for step in range(number):
        saves = step % interval == 0
        trace.add_step_time(step, **USUAL, checkpoint=ms if saves else 0.0, checkpoints=int(saves))
    return trace


@pytest.mark.proves("TDC218", "fires")
def test_checkpoints_that_are_too_frequent_are_found(tmp_path: Path) -> None:
    found, verdict = judged_trace_in_a_run(CheckpointStall(), tmp_path, saved(725, 32))
    assert verdict.status is Status.ISSUE
    newest = found[-1]
    assert newest.numbers["checkpoints"] == 11  # in 352 steps
    assert newest.numbers["seconds_per_checkpoint"] == pytest.approx(2.0)
    assert newest.numbers["checkpoint_percent"] == pytest.approx(100 * 22 / (22 + 352 * 0.05))
    assert newest.numbers["advised_interval_seconds"] == pytest.approx((2 * 2 * 86400) ** 0.5)
    assert "an interval of 9.8 min costs the least time" in newest.why


@pytest.mark.proves("TDC218", "quiet")
def test_rare_or_short_checkpoints_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(CheckpointStall(), tmp_path / "short", saved(725, 32, ms=100.0))
    assert is_silent_in_a_run(CheckpointStall(), tmp_path / "one", saved(725, 400, ms=9000.0))
    assert is_silent_in_a_run(CheckpointStall(), tmp_path / "none", even_steps(725))


@pytest.mark.proves("TDC218", "not evaluable")
def test_a_run_without_times_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(CheckpointStall(), tmp_path, Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text


@pytest.mark.proves("TDC218", "boundary")
def test_the_number_and_the_share_of_the_checkpoints_decide() -> None:
    trace = saved(725, 32)

    def fires(**parameters: Any) -> bool:
        return any(each.step == 723 for each in judge(CheckpointStall(**parameters), trace)[0])

    share = 100 * 22 / (22 + 352 * 0.05)
    assert fires(min_checkpoints=11)
    assert not fires(min_checkpoints=12)
    assert fires(threshold=share - 0.01)
    assert not fires(threshold=share + 0.01)


def test_a_shorter_interval_than_the_present_one_is_not_advised() -> None:
    newest = judge(CheckpointStall(failure_hours=0.0005), saved(725, 32))[0][-1]
    assert newest.numbers["advised_interval_seconds"] == pytest.approx(7.2**0.5)
    assert newest.numbers["interval_seconds"] == pytest.approx(3.6)
    assert "a longer interval would cost more time than it saves" in newest.why
    assert newest.do.startswith("write each checkpoint in the background (")


@pytest.mark.full
@settings(max_examples=25)
@given(st.integers(1, 30), st.sampled_from([1.0, 50.0, 500.0]))
def test_pieces_do_not_change_the_findings(interval: int, ms: float) -> None:
    rule = CheckpointStall(min_steps=4, min_seconds=0.5, patience=3)
    same_in_any_cuts(rule, saved(200, interval, ms), seeds=2)


@pytest.mark.parametrize(
    "parameters", [{"threshold": 0}, {"min_checkpoints": 0}, {"failure_hours": 0}, {"patience": -1}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        CheckpointStall(**parameters)
