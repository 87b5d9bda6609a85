"""LowGPUUtilization: idle GPUs, GPUs with pauses, and busy GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import LowGPUUtilization, Status
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of

MINUTE = 120  # samples


def busy(*percents: float, samples: int = 10 * MINUTE + 1) -> list[dict[str, Any]]:
    """Return samples of one GPU that repeat these utilizations."""
    return [{"gpus": [gpu(percents[number % len(percents)])]} for number in range(samples)]


@pytest.mark.proves("TDC206", "fires")
def test_a_gpu_that_is_hardly_used_is_found(tmp_path: Path) -> None:
    found, verdict = judged_in_a_run(LowGPUUtilization(), tmp_path, busy(10, 20, 30))
    assert [(each.step, each.tensor, each.numbers["kind"]) for each in found] == [
        (1080, "node-1/gpu0", "underused"),
        (1200, "node-1/gpu0", "underused"),
    ]
    assert verdict.findings[0].count == 2
    assert verdict.findings[0].at == "sample 1080"
    assert "at most 30 % (limit 70 %), the median is 20 %" in found[0].why


@pytest.mark.proves("TDC206", "fires")
def test_a_gpu_with_pauses_is_found(tmp_path: Path) -> None:
    found, _ = judged_in_a_run(LowGPUUtilization(), tmp_path, busy(*[100] * 9, 0))
    assert {each.numbers["kind"] for each in found} == {"fluctuating"}
    assert "busy at times" in found[0].why


@pytest.mark.proves("TDC206", "quiet")
def test_a_busy_gpu_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judged_in_a_run(LowGPUUtilization(), tmp_path, busy(90, 95, 85))
    assert not found
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 2)


@pytest.mark.proves("TDC206", "not evaluable")
def test_a_run_without_gpus_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(LowGPUUtilization(), tmp_path, [{"cpu_percent": 3.0}] * 9)
    assert verdict.status is Status.NOT_EVALUABLE
    assert verdict.text.startswith("not evaluable: the run has no GPU samples; they need an NVIDIA GPU")


def test_a_gpu_that_does_not_report_its_utilization_is_not_evaluable() -> None:
    _, verdict = judge(LowGPUUtilization(), trace_of(busy(None)))  # type: ignore[arg-type]
    assert "the run has no values of `gpus.utilization_percent`" in verdict.text


def test_a_run_with_few_samples_is_not_evaluable() -> None:
    _, verdict = judge(LowGPUUtilization(), trace_of(busy(5, samples=900)))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "the run has 900 system samples. The rule needs more than 1,000 system samples" in verdict.text


@pytest.mark.proves("TDC206", "boundary")
def test_the_limits_are_exact() -> None:
    def kinds(*percents: float) -> set[Any]:
        rule = LowGPUUtilization(window=100, patience=100)
        return {each.numbers["kind"] for each in judge(rule, trace_of(busy(*percents)))[0]}

    assert kinds(70) == set()
    assert kinds(69.5) == {"underused"}
    assert kinds(70, *[10] * 19) == {"underused"}
    assert kinds(100, 10) == set()
    assert kinds(100, 9.5) == {"fluctuating"}


@pytest.mark.proves("TDC206", "boundary")
def test_the_first_judgement_is_the_first_scan_after_patience() -> None:
    def first_step(patience: int) -> int:
        return judge(LowGPUUtilization(patience=patience), trace_of(busy(0, samples=241)))[0][0].step

    assert (first_step(120), first_step(121)) == (120, 240)  # the scan at sample 120 has 121 samples


@given(
    st.lists(st.sampled_from([0.0, 5.0, 50.0, 80.0, 100.0, None]), min_size=1, max_size=30),
    st.integers(1, 40),
)
def test_pieces_do_not_change_the_findings(percents: list[float | None], window: int) -> None:
    rule = LowGPUUtilization(window=window, patience=10, scan_interval_us=3_000_000)
    rows = [{"gpus": [gpu(each), gpu(100.0, index=1)]} for each in percents] * 4
    for finding in same_in_any_cuts(rule, trace_of(rows), seeds=2):
        assert finding.tensor == "node-1/gpu0"


@pytest.mark.parametrize(
    "parameters", [{"threshold_p95": 101}, {"threshold_p5": -1}, {"window": 0}, {"patience": 0}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LowGPUUtilization(**parameters)
