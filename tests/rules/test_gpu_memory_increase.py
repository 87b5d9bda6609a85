"""GPUMemoryIncrease: sudden increases of the used memory of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import GPUMemoryIncrease, Status
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of


def memory(percents: list[float]) -> list[dict[str, Any]]:
    """Return samples of one GPU with this used memory in percent."""
    return [{"gpus": [gpu(memory_used=int(1e6 * each), memory_total=10**8)]} for each in percents]


@pytest.mark.proves("TDC204", "fires")
def test_a_sudden_increase_is_found_at_the_next_scan(tmp_path: Path) -> None:
    rows = memory([40.0] * 1100 + [46.0] * 221)
    (finding,), _ = judged_in_a_run(GPUMemoryIncrease(), tmp_path, rows)
    assert (finding.step, finding.tensor) == (1200, "node-1/gpu0")
    assert finding.numbers["increase"] == pytest.approx(6)
    assert "increases by 6.0 percentage points (limit 5), from 40.0 % to 46.0 %" in finding.why


@pytest.mark.proves("TDC204", "quiet")
def test_an_increase_at_the_start_a_decrease_and_a_slow_growth_stay_quiet(tmp_path: Path) -> None:
    shapes = {
        "start": [5.0] * 500 + [70.0] * 821,
        "decrease": [70.0] * 1100 + [5.0] * 221,
        "slow": (10 + 0.05 * np.arange(1321)).tolist(),
    }
    for name, shape in shapes.items():
        found, verdict = judged_in_a_run(GPUMemoryIncrease(), tmp_path / name, memory(shape))
        assert not found
        assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 3)


@pytest.mark.proves("TDC204", "not evaluable")
def test_a_run_without_gpus_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(GPUMemoryIncrease(), tmp_path, [{"cpu_percent": 3.0}] * 9)
    assert verdict.text.startswith("not evaluable: the run has no GPU samples")


@pytest.mark.proves("TDC204", "boundary")
def test_an_increase_at_the_limit_stays_quiet() -> None:
    def fires(increase: float) -> bool:
        rule = GPUMemoryIncrease(patience=50, increase=4.0)
        return bool(judge(rule, trace_of(memory([32.0] * 200 + [32.0 + increase] * 200)))[0])

    assert not fires(4.0)
    assert fires(4.5)


@given(
    st.lists(st.sampled_from([0.0, 3.0, 10.0, 11.0, 50.0]), min_size=1, max_size=40),
    st.integers(1, 6),
    st.integers(1, 30),
)
def test_the_largest_difference_of_two_means_is_found_in_any_pieces(
    percents: list[float], window: int, patience: int
) -> None:
    values = [each for each in percents for _ in range(3)]
    rule = GPUMemoryIncrease(increase=2, window=window, patience=patience, scan_interval_us=5_000_000)
    found = {
        each.step: each.numbers["increase"]
        for each in same_in_any_cuts(rule, trace_of(memory(values)), seeds=2)
    }
    expected: dict[int, float] = {}
    for at in range(max(patience, 2 * window - 1), len(values)):
        rise = np.mean(values[at + 1 - window : at + 1]) - np.mean(
            values[at + 1 - 2 * window : at + 1 - window]
        )
        scan = -(-max(at, 1) // 10) * 10
        if rise > 2 and scan < len(values):
            expected[scan] = max(expected.get(scan, 0.0), float(rise))
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("parameters", [{"increase": 0}, {"increase": 101}, {"window": 0}, {"patience": 0}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        GPUMemoryIncrease(**parameters)
