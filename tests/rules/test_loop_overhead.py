"""LoopOverhead: time between the phases, and the garbage collector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import LoopOverhead, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import (
    USUAL,
    even_steps,
    fired_share,
    is_silent_in_a_run,
    noisy_steps,
    with_samples,
)


def logs(step: int, phases: dict[str, float]) -> None:
    phases["rest"] += 60.0


@pytest.mark.proves("TDC219", "fires")
@pytest.mark.parametrize(("phase", "ms"), [("rest", 60.0), ("gc", 10.0)])
def test_time_outside_of_the_model_is_found(tmp_path: Path, phase: str, ms: float) -> None:
    found, verdict = judged_trace_in_a_run(LoopOverhead(), tmp_path, even_steps(600, **USUAL | {phase: ms}))
    assert verdict.status is Status.ISSUE
    assert {each.numbers["kind"] for each in found} == {phase}
    assert found[-1].numbers["ms_per_step"] == pytest.approx(ms)
    assert ("gc.freeze()" in found[-1].do) == (phase == "gc")


def test_a_disk_that_the_cores_wait_for_is_named() -> None:
    trace = with_samples(even_steps(600, rest=60.0), cpu_percent=10.0, iowait_percent=60.0)
    assert "the cores waited for a disk" in judge(LoopOverhead(), trace)[0][-1].why


@pytest.mark.proves("TDC219", "quiet")
def test_little_rest_noise_and_a_busy_gpu_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(LoopOverhead(), tmp_path / "even", even_steps(600))
    assert is_silent_in_a_run(LoopOverhead(), tmp_path / "noisy", noisy_steps(1, 1200))
    busy = with_samples(even_steps(600, rest=60.0), cpu_percent=30.0, gpus=[gpu(95.0)])
    assert is_silent_in_a_run(LoopOverhead(), tmp_path / "gpu", busy)


@pytest.mark.full
def test_noise_is_not_reported_and_logging_in_noise_is() -> None:
    assert fired_share(LoopOverhead(), lambda seed: noisy_steps(seed, 1200), 20) == 0
    assert fired_share(LoopOverhead(), lambda seed: noisy_steps(seed, 1200, change=logs), 20) == 1


@pytest.mark.proves("TDC219", "not evaluable")
def test_steps_without_a_phase_of_the_model_are_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(LoopOverhead(), tmp_path / "none", Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text
    trace = even_steps(600, rest=60.0, forward=0.0, backward=0.0, optimizer=0.0)
    found, verdict = judged_trace_in_a_run(LoopOverhead(), tmp_path / "rest", trace)
    assert not found
    assert "The rule needs more than 84 steps of one mode with phases of the model" in verdict.text


@pytest.mark.proves("TDC219", "boundary")
def test_the_share_and_the_length_decide() -> None:
    trace = even_steps(600, rest=21.0)  # 30 % of 70 ms
    assert judge(LoopOverhead(), trace)[0]
    assert not judge(LoopOverhead(threshold=30.01), trace)[0]
    assert judge(LoopOverhead(min_ms=20.99), trace)[0]
    assert not judge(LoopOverhead(min_ms=21.01), trace)[0]
    trace = even_steps(600, gc=6.0)  # 11 % of 56 ms
    assert judge(LoopOverhead(gc_threshold=10.7), trace)[0]
    assert not judge(LoopOverhead(gc_threshold=10.8), trace)[0]


@pytest.mark.full
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 20.0, 400.0]))
def test_pieces_do_not_change_the_findings(seed: int, ms: float) -> None:
    def change(step: int, phases: dict[str, float]) -> None:
        phases["rest"] += ms if step % 3 else 0.0

    trace = with_samples(noisy_steps(seed, 200, change=change), cpu_percent=30.0, iowait_percent=20.0)
    same_in_any_cuts(LoopOverhead(min_steps=4, min_seconds=0.5, patience=3), trace, seeds=2)


@pytest.mark.parametrize("parameters", [{"threshold": 0}, {"gc_threshold": 101}, {"min_ms": -1}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoopOverhead(**parameters)
