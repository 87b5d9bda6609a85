"""RecompileStorm: compilations after the first steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import RecompileStorm, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import USUAL, even_steps, is_silent_in_a_run


def compiled(number: int, interval: int, ms: float = 500.0, *, until: int = 10**9) -> Trace:
    """Return steps; each `interval`-th step compiles."""
    trace = Trace()
    for step in range(number):
        compiles = step % interval == 0 and step < until
        trace.add_step_time(step, **USUAL, compile=ms if compiles else 0.0, compiles=int(compiles))
    return trace


@pytest.mark.proves("TDC217", "fires")
def test_compilations_that_go_on_are_found(tmp_path: Path) -> None:
    found, verdict = judged_trace_in_a_run(RecompileStorm(), tmp_path, compiled(800, 10))
    assert verdict.status is Status.ISSUE
    newest = found[-1]
    assert newest.numbers["compiles"] == pytest.approx(39, abs=1)  # of 384 steps
    assert newest.numbers["compile_percent"] == pytest.approx(50, abs=1)
    assert "TORCH_LOGS=recompiles" in newest.do


@pytest.mark.proves("TDC217", "quiet")
def test_compilations_at_the_start_and_none_are_not_reported(tmp_path: Path) -> None:
    warm_up = compiled(800, 2, ms=3000.0, until=20)
    assert is_silent_in_a_run(RecompileStorm(), tmp_path / "start", warm_up)
    assert is_silent_in_a_run(RecompileStorm(), tmp_path / "none", even_steps(800))


@pytest.mark.proves("TDC217", "not evaluable")
def test_a_run_without_times_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(RecompileStorm(), tmp_path, Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text


@pytest.mark.proves("TDC217", "boundary")
def test_the_number_and_the_share_of_the_compilations_decide() -> None:
    trace = compiled(725, 32)  # the scan after 704 steps judges 352 of them, with 11 compilations
    newest = judge(RecompileStorm(), trace)[0][-1]
    assert (newest.step, newest.numbers["compiles"]) == (713, 11)
    share = float(newest.numbers["compile_percent"])

    def fires(**parameters: Any) -> bool:
        return any(each.step == 713 for each in judge(RecompileStorm(**parameters), trace)[0])

    assert fires(min_compiles=11)
    assert not fires(min_compiles=12)
    assert fires(threshold=0.999 * share)
    assert not fires(threshold=1.001 * share)


@pytest.mark.full
@settings(max_examples=25)
@given(st.integers(1, 30), st.sampled_from([1.0, 50.0, 500.0]))
def test_pieces_do_not_change_the_findings(interval: int, ms: float) -> None:
    rule = RecompileStorm(min_steps=4, min_seconds=0.5, patience=3, min_compiles=2)
    same_in_any_cuts(rule, compiled(200, interval, ms), seeds=2)


@pytest.mark.parametrize("parameters", [{"threshold": 0}, {"min_compiles": 0}, {"patience": -1}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RecompileStorm(**parameters)
