"""InputBound: waits for data, their cause, and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import InputBound, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import even_steps, fired_share, is_silent_in_a_run, noisy_steps, with_samples


def late(step: int, phases: dict[str, float]) -> None:
    phases["data"] += 60.0


@pytest.mark.proves("TDC216", "fires")
@pytest.mark.parametrize(
    ("machine", "cause"),
    [
        ({"cpu_percent": 30.0, "iowait_percent": 1.0}, "workers"),
        ({"cpu_percent": 97.0, "iowait_percent": 0.0}, "cpu"),
        ({"cpu_percent": 20.0, "iowait_percent": 40.0}, "disk"),
    ],
)
def test_waits_are_found_with_their_cause(tmp_path: Path, machine: dict[str, Any], cause: str) -> None:
    trace = with_samples(even_steps(600, data=60.0), **machine)
    found, verdict = judged_trace_in_a_run(InputBound(), tmp_path, trace)
    assert verdict.status is Status.ISSUE
    newest = found[-1]
    assert newest.numbers["kind"] == cause
    assert newest.numbers["wait_ms_per_step"] == pytest.approx(60.0)
    assert newest.numbers["wait_percent"] == pytest.approx(100 * 60 / 109)
    assert ("more workers help" in newest.why) == (cause == "workers")


def test_a_few_long_waits_are_bursts_and_without_samples_the_cause_is_unknown() -> None:
    trace = Trace()
    for step in range(600):
        trace.add_step_time(step, data=2000.0 if step % 40 == 0 else 2.0, forward=20, backward=20)
    newest = judge(InputBound(), trace)[0][-1]
    assert newest.numbers["kind"] == "bursts"
    assert "persistent_workers=True" in newest.do
    assert judge(InputBound(), even_steps(600, data=60.0))[0][-1].numbers["kind"] == "unknown"


@pytest.mark.proves("TDC216", "quiet")
def test_short_waits_noise_and_a_busy_gpu_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(InputBound(), tmp_path / "even", even_steps(600, data=5.0))
    assert is_silent_in_a_run(InputBound(), tmp_path / "noisy", noisy_steps(1, 1200))
    busy = with_samples(even_steps(600, data=60.0), cpu_percent=30.0, gpus=[gpu(95.0)])
    assert is_silent_in_a_run(InputBound(), tmp_path / "gpu", busy)


@pytest.mark.full
def test_noise_is_not_reported_and_waits_in_noise_are() -> None:
    assert fired_share(InputBound(), lambda seed: noisy_steps(seed, 1200), 20) == 0
    assert fired_share(InputBound(), lambda seed: noisy_steps(seed, 1200, change=late), 20) == 1


@pytest.mark.proves("TDC216", "not evaluable")
def test_a_run_without_waits_or_with_few_steps_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(InputBound(), tmp_path / "none", Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text
    _, verdict = judged_trace_in_a_run(InputBound(), tmp_path / "few", even_steps(50))
    assert "has 50 times of steps. The rule needs more than 84 steps of one mode" in verdict.text


def test_a_run_whose_hook_records_no_waits_has_nothing_to_report() -> None:
    _, verdict = judge(InputBound(), even_steps(50, data=0.0))
    assert "the times of steps have no `data_ns`; the training has no such phase, or" in verdict.text


@pytest.mark.proves("TDC216", "boundary")
def test_the_share_and_the_length_of_the_waits_decide() -> None:
    trace = even_steps(600, data=21.0)  # 30 % of 70 ms
    assert judge(InputBound(), trace)[0]
    assert not judge(InputBound(threshold=30.01), trace)[0]
    assert judge(InputBound(min_wait_ms=20.99), trace)[0]
    assert not judge(InputBound(min_wait_ms=21.01), trace)[0]


@pytest.mark.full
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 20.0, 400.0]))
def test_pieces_do_not_change_the_findings(seed: int, ms: float) -> None:
    def change(step: int, phases: dict[str, float]) -> None:
        phases["data"] += ms if step % 3 else 0.0

    trace = with_samples(noisy_steps(seed, 200, change=change), cpu_percent=30.0, iowait_percent=2.0)
    same_in_any_cuts(InputBound(min_steps=4, min_seconds=0.5, patience=3), trace, seeds=2)


@pytest.mark.parametrize(
    "parameters", [{"threshold": 0}, {"threshold": 101}, {"min_wait_ms": -1}, {"min_steps": 0}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        InputBound(**parameters)
