"""IOBottleneck: samples in which a GPU waits, with its default reading and that of smdebug."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import IOBottleneck, Status
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of

BUSY, WAITS = 50 + 5.0, 5.0


def usage(
    level: float | None, cores: list[float] | None, *utilizations: float, samples: int = 1561
) -> list[dict[str, Any]]:
    """Return samples of a machine. level, cores: iowait_percent and core_iowait_percent."""
    gpus = [gpu(each, index=at) for at, each in enumerate(utilizations)]
    return [{"iowait_percent": level, "core_iowait_percent": cores, "gpus": gpus}] * samples


@pytest.mark.proves("TDC203", "fires")
def test_a_bottleneck_that_lasts_is_found(tmp_path: Path) -> None:
    found, _ = judged_in_a_run(IOBottleneck(), tmp_path, usage(BUSY, [BUSY] * 4, WAITS, 90.0))
    assert [(each.step, each.tensor) for each in found] == [(1560, "node-1")]
    assert found[0].numbers["share"] == 100.0
    assert "is the bottleneck: in 100 % of 500 samples" in found[0].why


@pytest.mark.proves("TDC203", "quiet")
@pytest.mark.parametrize(
    ("level", "cores", "used"),
    [(BUSY, [BUSY] * 4, 90.0), (10.0, [10.0] * 4, WAITS), (20.0, [BUSY, *[0.0] * 4], WAITS)],
)
def test_a_busy_gpu_an_idle_machine_and_a_single_busy_core_stay_quiet(
    level: float, cores: list[float], used: float, tmp_path: Path
) -> None:
    found, verdict = judged_in_a_run(IOBottleneck(), tmp_path, usage(level, cores, used))
    assert not found
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 1)


def test_with_compat_one_busy_core_is_enough() -> None:
    rows = usage(20.0, [BUSY, *[0.0] * 31], WAITS, samples=1201)
    assert [each.step for each in judge(IOBottleneck(compat=True), trace_of(rows))[0]] == [1080, 1200]


def test_a_quarter_of_the_cores_is_enough() -> None:
    assert judge(IOBottleneck(), trace_of(usage(26.0, [BUSY, 0.0, 0.0, 0.0], WAITS)))[0]
    assert judge(
        IOBottleneck(), trace_of(usage(None, [BUSY, 0.0, 0.0, 0.0], WAITS) + usage(1.0, None, WAITS))
    )[0]


@pytest.mark.proves("TDC203", "not evaluable")
def test_a_machine_without_a_gpu_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(
        IOBottleneck(), tmp_path, [{"iowait_percent": 99.0, "core_iowait_percent": [99.0]}] * 20
    )
    assert verdict.status is Status.NOT_EVALUABLE
    assert verdict.text.startswith("not evaluable: the run has no GPU samples")


@pytest.mark.proves("TDC203", "boundary")
def test_levels_and_shares_at_their_limits_stay_quiet() -> None:
    def fires(rows: list[dict[str, Any]], **parameters: Any) -> bool:
        return bool(judge(IOBottleneck(patience=100, window=100, **parameters), trace_of(rows))[0])

    assert not fires(usage(50, [50] * 4, WAITS, samples=241))
    assert fires(usage(50.5, [0.0] * 4, WAITS, samples=241))
    assert not fires(usage(BUSY, [], 10.0, samples=241))
    assert fires(usage(BUSY, [], 9.5, samples=241))
    waits, idle = usage(BUSY, [], WAITS, samples=1), usage(0.0, [], WAITS, samples=1)
    half = (waits + idle) * 121
    assert not fires(half)
    assert fires(half, threshold=49.5)
    assert not fires(usage(BUSY, [], WAITS, samples=180))  # patience and the window need 200 samples


def test_samples_before_patience_count_with_compat_only() -> None:
    rows = usage(BUSY, [BUSY] * 4, WAITS, samples=1000) + usage(0.0, [0.0] * 4, WAITS, samples=600)
    assert not judge(IOBottleneck(), trace_of(rows))[0]
    assert [each.step for each in judge(IOBottleneck(compat=True), trace_of(rows))[0]] == [
        1080,
        1200,
        1320,
        1440,
        1560,
    ]


@given(
    st.lists(st.tuples(st.sampled_from([0.0, BUSY]), st.sampled_from([0.0, 50.0])), min_size=1, max_size=50)
)
def test_compat_is_the_share_since_the_start_at_each_scan(points: list[tuple[float, float]]) -> None:
    rows = [row for level, used in points for row in usage(0.0, [level, 0.0], used, samples=3)]
    rule = IOBottleneck(compat=True, patience=20, scan_interval_us=5_000_000)
    flags = np.array([level > 0 and used < 10 for level, used in points for _ in range(3)])
    expected = [at for at in range(10, len(flags), 10) if at >= 20 and flags[: at + 1].mean() > 0.5]
    assert [each.step for each in same_in_any_cuts(rule, trace_of(rows), seeds=2)] == expected


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, BUSY, None]), st.sampled_from([0.0, 50.0])), min_size=1, max_size=20
    )
)
def test_pieces_do_not_change_the_findings(points: list[tuple[float | None, float]]) -> None:
    rows = [row for level, used in points for row in usage(level, None, used, samples=4)]
    same_in_any_cuts(IOBottleneck(patience=5, window=15, scan_interval_us=5_000_000), trace_of(rows), seeds=2)


@pytest.mark.parametrize(
    "parameters", [{"threshold": 101}, {"io_threshold": -1}, {"gpu_threshold": 101}, {"window": 0}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        IOBottleneck(**parameters)
