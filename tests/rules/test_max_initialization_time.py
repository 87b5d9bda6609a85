"""MaxInitializationTime: the time until the first step, also while there is none."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import MaxInitializationTime, Status, run
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import (
    START_NS,
    judged_trace_in_a_run,
    same_in_any_cuts,
    write_samples,
)
from tests.rules.timed_steps import is_silent_in_a_run
from tests.trial.writer import RunWriter


def started(minutes: float | None, *, sampled_minutes: int = 40, worker: str = "worker_0") -> Trace:
    """Return samples every ten seconds, and a first step after these minutes; None: no step."""
    trace = Trace()
    for number in range(6 * sampled_minutes):
        trace.add_sample(worker=worker, interval_ms=10_000, trainer_seconds=10.0 * number)
    for step in range(3 if minutes is not None else 0):
        begin = START_NS + round(60e9 * (minutes or 0)) + step * 10**9
        trace.add_step_time(step, worker=worker, time_ns=begin, forward=1000)
    return trace


@pytest.mark.proves("TDC207", "fires")
def test_a_late_first_step_is_found_at_this_step_and_while_it_is_awaited(tmp_path: Path) -> None:
    found, verdict = judged_trace_in_a_run(MaxInitializationTime(), tmp_path, started(25.5))
    assert verdict.status is Status.ISSUE
    by_kind = {each.numbers["kind"]: each for each in found}
    assert by_kind["first step"].numbers["seconds"] == pytest.approx(1530)
    assert (by_kind["first step"].mode, by_kind["first step"].step) == ("TRAIN", 0)
    assert by_kind["waiting"].at == "sample 127"  # the first one that is later than 21 minutes
    assert "the first step began 26 min after the start of the process (limit 20 min)" in (
        by_kind["first step"].why
    )


@pytest.mark.proves("TDC207", "fires")
def test_a_training_that_does_not_begin_is_found_from_its_samples(tmp_path: Path) -> None:
    rows = [{"trainer_seconds": 10.0 * number} for number in range(240)]
    RunWriter(tmp_path)
    write_samples(tmp_path, rows, interval_ms=10_000)
    report = run(tmp_path, [MaxInitializationTime()], live=True, until_end=True, timeout=timedelta())
    (finding,) = report.findings
    assert "worker_0 has no step (limit 20 min)" in finding.why


@pytest.mark.proves("TDC207", "quiet")
def test_an_early_first_step_is_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(MaxInitializationTime(), tmp_path / "early", started(3.0))
    assert is_silent_in_a_run(MaxInitializationTime(), tmp_path / "later", started(19.0))


@pytest.mark.proves("TDC207", "not evaluable")
def test_a_run_without_times_or_without_samples_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(MaxInitializationTime(), tmp_path / "none", Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text
    trace = started(3.0)
    trace.samples = []
    _, verdict = judged_trace_in_a_run(MaxInitializationTime(), tmp_path / "times", trace)
    assert "not evaluable: the run has no system samples" in verdict.text


@pytest.mark.proves("TDC207", "boundary")
def test_the_threshold_is_in_minutes() -> None:
    assert not judge(MaxInitializationTime(threshold=10.0), started(10.0))[0]
    assert judge(MaxInitializationTime(threshold=9.99), started(10.0))[0]


@pytest.mark.full
@settings(max_examples=30)
@given(st.floats(0.1, 35), st.floats(1, 30))
def test_pieces_do_not_change_the_findings(minutes: float, threshold: float) -> None:
    same_in_any_cuts(MaxInitializationTime(threshold=threshold), started(minutes), seeds=3)


@pytest.mark.parametrize("parameters", [{"threshold": 0}, {"threshold": float("inf")}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        MaxInitializationTime(**parameters)
