"""StepOutlier: steps that take much longer, their phase, and the noise of a shared machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Status, StepOutlier
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import (
    USUAL,
    even_steps,
    fired_share,
    is_silent_in_a_run,
    noisy_steps,
    with_samples,
)


def every(interval: int, phase: str, ms: float, number: int = 1200) -> Trace:
    """Return steps of 50 ms; each `interval`-th step is longer in one phase."""
    trace = Trace()
    for step in range(number):
        more = ms if step % interval == interval - 1 else 0.0
        jitter: dict[str, Any] = {"backward": USUAL["backward"] + step % 5}
        trace.add_step_time(step, **(USUAL | jitter | {phase: USUAL.get(phase, 0.0) + more}))
    return trace


@pytest.mark.proves("TDC208", "fires")
@pytest.mark.parametrize("phase", ["data", "rest", "checkpoint", "gc", "forward"])
def test_periodic_slow_steps_are_found_with_their_phase(tmp_path: Path, phase: str) -> None:
    ms = 800.0 if phase == "forward" else 400.0
    found, verdict = judged_trace_in_a_run(StepOutlier(), tmp_path, every(25, phase, ms))
    assert verdict.status is Status.ISSUE
    assert {each.numbers["kind"] for each in found} == {phase}
    newest = found[-1]
    assert newest.numbers["outlier_ms"] == pytest.approx(52 + ms, abs=3)
    assert newest.numbers["usual_ms"] == pytest.approx(52, abs=1)
    assert (newest.mode, newest.worker, newest.step) == ("TRAIN", "worker_0", newest.mode_step)
    assert f"of it in the phase {phase!r}" in newest.why


@pytest.mark.proves("TDC208", "quiet")
def test_even_steps_and_steps_with_noise_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(StepOutlier(), tmp_path / "even", even_steps(1200))
    assert is_silent_in_a_run(StepOutlier(), tmp_path / "noisy", noisy_steps(1, 1200))


@pytest.mark.full
def test_the_noise_of_a_shared_machine_is_rarely_reported_and_slow_steps_in_it_are() -> None:
    assert fired_share(StepOutlier(), lambda seed: noisy_steps(seed, 2000), 20) <= 0.05

    def late(step: int, phases: dict[str, float]) -> None:
        phases["data"] += 800.0 if step % 20 == 0 else 0.0

    assert fired_share(StepOutlier(), lambda seed: noisy_steps(seed, 2000, change=late), 20) >= 0.95


@pytest.mark.proves("TDC208", "not evaluable")
def test_a_run_without_times_or_with_few_steps_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(StepOutlier(), tmp_path / "none", Trace())
    assert "the run has no times of steps; hooks record them unless TDCORE_STEP_TIMES is off" in verdict.text
    _, verdict = judged_trace_in_a_run(StepOutlier(), tmp_path / "few", even_steps(100))
    assert "the run has 100 times of steps. The rule needs more than 148 steps of one mode" in verdict.text


@pytest.mark.proves("TDC208", "boundary")
def test_the_number_and_the_time_of_the_outliers_decide() -> None:
    trace = every(25, "data", 400.0, number=726)  # the scan after 704 steps has 14 outliers

    def last(**parameters: float) -> bool:
        rule = StepOutlier(**parameters)  # type: ignore[arg-type]
        return any(each.step == 723 for each in judge(rule, trace)[0])

    assert last(n_outliers=13)
    assert not last(n_outliers=14)
    share = judge(StepOutlier(), trace)[0][-1].numbers["extra_percent"]
    assert isinstance(share, float)
    assert last(min_share=0.999 * share)
    assert not last(min_share=1.001 * share)
    assert last(min_extra_ms=395.0)
    assert not last(min_extra_ms=405.0)


def test_smdebug_counts_outliers_among_all_steps_above_the_mean() -> None:
    random = np.random.default_rng(0)
    trace = Trace()
    for step in range(8000):
        trace.add_step_time(step, forward=25 + float(random.normal()))
    assert not judge(StepOutlier(), trace)[0]
    found, _ = judge(StepOutlier(compat=True), trace)
    assert found
    assert found[-1].numbers["limit_ms"] == pytest.approx(28, abs=0.1)


def test_extra_time_in_the_model_must_be_three_times_as_long() -> None:
    assert judge(StepOutlier(), every(25, "rest", 400.0))[0]
    assert not judge(StepOutlier(), every(25, "backward", 400.0))[0]  # 24 % of the time
    assert judge(StepOutlier(), every(25, "backward", 800.0))[0]


def test_a_mode_can_be_chosen() -> None:
    trace = every(25, "data", 400.0)
    assert judge(StepOutlier(mode="train"), trace)[0]
    assert not judge(StepOutlier(mode="EVAL"), trace)[0]


def test_slow_steps_one_after_the_other_are_another_program_and_not_reported() -> None:
    trace = Trace()
    for step in range(2000):
        factor = 4.0 if 1500 <= step < 1700 else 1.0
        trace.add_step_time(step, **{name: factor * ms for name, ms in USUAL.items()})
    assert not judge(StepOutlier(), trace)[0]


def test_the_finding_has_the_use_of_the_machine_at_the_slow_steps() -> None:
    trace = with_samples(every(100, "data", 3000.0, number=3000), cpu_percent=20.0, iowait_percent=1.0)
    slow = [row["time_ns"] for row in trace.step_times[0, "worker_0"] if row["duration_ns"] > 10**9]
    for sample in trace.samples:
        if any(0 <= sample["time_ns"] - time <= 3 * 10**9 for time in slow):
            sample["iowait_percent"] = 90.0
    found = same_in_any_cuts(StepOutlier(), trace)
    assert "at these times the CPUs were 20 % busy and waited for a disk for" in found[-1].why


@pytest.mark.full
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 40), st.sampled_from([0.0, 50.0, 800.0]))
def test_pieces_do_not_change_the_findings(seed: int, interval: int, ms: float) -> None:
    def late(step: int, phases: dict[str, float]) -> None:
        phases["data"] += ms if step % interval == 0 else 0.0

    rule = StepOutlier(n_outliers=2, min_share=1.0, min_steps=4, min_seconds=0.5, patience=3)
    same_in_any_cuts(rule, noisy_steps(seed, 200, change=late), seeds=2)


@pytest.mark.parametrize(
    "parameters",
    [
        {"stddev": 0},
        {"n_outliers": 0},
        {"min_share": 101},
        {"min_extra_ms": -1},
        {"patience": -1},
        {"min_seconds": -1},
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        StepOutlier(**parameters)  # type: ignore[arg-type]
