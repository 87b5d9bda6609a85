"""ThermalThrottle: clocks that are reduced by temperature or a power brake, and normal reasons."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Status, ThermalThrottle
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of

NORMAL = 0x1 | 0x2 | 0x4 | 0x10 | 0x100  # idle, clocks of applications, power cap, sync boost, display


def reasons(*bits: int | None, samples: int = 241, **fields: Any) -> list[dict[str, Any]]:
    """Return samples of one GPU that repeat these reasons."""
    return [{"gpus": [gpu(throttle_reasons=bits[n % len(bits)], **fields)]} for n in range(samples)]


@pytest.mark.proves("TDC214", "fires")
@pytest.mark.parametrize(
    ("bits", "kind"),
    [
        (0x20, "temperature"), (0x40 | 0x8, "temperature"), (0x80 | 0x8, "power brake"), (0x8, "hardware"),
    ],
)  # fmt: skip
def test_a_gpu_with_reduced_clocks_is_found_with_the_reason(bits: int, kind: str, tmp_path: Path) -> None:
    rows = reasons(bits, 0, temperature_celsius=91.0, sm_clock_mhz=900)
    found, _ = judged_in_a_run(ThermalThrottle(), tmp_path, rows)
    assert {(each.tensor, each.numbers["kind"]) for each in found} == {("node-1/gpu0", kind)}
    assert found[0].numbers["share"] == pytest.approx(50, abs=1)
    assert found[0].numbers["temperature"] == 91.0
    assert "at up to 91 °C; its clock is then 900 MHz" in found[0].why


@pytest.mark.proves("TDC214", "quiet")
def test_normal_reasons_stay_quiet(tmp_path: Path) -> None:
    found, verdict = judged_in_a_run(ThermalThrottle(), tmp_path, reasons(NORMAL, 0, 0x4))
    assert not found
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 2)


@pytest.mark.proves("TDC214", "not evaluable")
def test_gpus_that_do_not_report_reasons_are_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(ThermalThrottle(), tmp_path, reasons(None))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "the run has no values of `gpus.throttle_reasons`" in verdict.text


@pytest.mark.proves("TDC214", "boundary")
def test_a_share_at_the_threshold_stays_quiet() -> None:
    rule = ThermalThrottle(threshold=5, window=100)
    assert not judge(rule, trace_of(reasons(0x40, *[0] * 19)))[0]
    assert judge(rule, trace_of(reasons(0x40, *[0] * 14)))[0]


def test_two_reasons_are_two_findings() -> None:
    _, verdict = judge(ThermalThrottle(), trace_of(reasons(0x40, 0x80)))
    assert [each.numbers["kind"] for each in verdict.findings] == ["temperature", "power brake"]
    assert "°C" not in verdict.findings[0].why


@given(st.lists(st.integers(0, 0x1FF), min_size=1, max_size=12))
def test_pieces_do_not_change_the_findings(bits: list[int]) -> None:
    rule = ThermalThrottle(patience=5, window=20, scan_interval_us=5_000_000)
    same_in_any_cuts(rule, trace_of(reasons(*bits, samples=100)), seeds=2)


@pytest.mark.parametrize("parameters", [{"threshold": 101}, {"window": 0}, {"patience": 0}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ThermalThrottle(**parameters)
