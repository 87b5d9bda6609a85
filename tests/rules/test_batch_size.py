"""BatchSize: machines with room for a larger batch, and machines without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import BatchSize, Status
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of

SMALL = BatchSize(patience=100, window=100)


def usage(
    cpu: float | None, utilization: float, memory: float, *, samples: int = 1201, total: int = 1000
) -> list[dict[str, Any]]:
    """Return samples of a machine with one GPU; all values in percent."""
    fields = {"memory_used": int(10 * memory), "memory_total": total}
    return [{"cpu_percent": cpu, "gpus": [gpu(utilization, **fields)]}] * samples


@pytest.mark.proves("TDC201", "fires")
def test_a_machine_that_is_not_busy_anywhere_is_found(tmp_path: Path) -> None:
    found, _ = judged_in_a_run(BatchSize(), tmp_path, usage(20, 40, 10))
    assert [(each.step, each.tensor) for each in found] == [(1080, "node-1/gpu0"), (1200, "node-1/gpu0")]
    numbers = {name: found[0].numbers[name] for name in ("cpu_p95", "gpu_p95", "gpu_memory_p95")}
    assert numbers == {"cpu_p95": 20.0, "gpu_p95": 40.0, "gpu_memory_p95": 10.0}


@pytest.mark.proves("TDC201", "quiet")
@pytest.mark.parametrize("busy", [(80, 40, 10), (20, 80, 10), (20, 40, 80)])
def test_one_busy_part_is_enough_to_stay_quiet(busy: tuple[float, float, float], tmp_path: Path) -> None:
    found, verdict = judged_in_a_run(BatchSize(), tmp_path, usage(*busy))
    assert not found
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 2)


def test_each_gpu_is_judged() -> None:
    rows = [
        {"cpu_percent": 9.0, "gpus": [gpu(each, index=number, memory_used=1, memory_total=9)
         for number, each in enumerate((10.0, 90.0, 20.0))]}
    ] * 241  # fmt: skip
    assert {each.tensor for each in judge(SMALL, trace_of(rows))[0]} == {"node-1/gpu0", "node-1/gpu2"}


@pytest.mark.proves("TDC201", "not evaluable")
def test_a_run_without_the_utilization_of_the_cpu_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(BatchSize(), tmp_path, usage(None, 40, 10))
    assert "the run has no values of `cpu_percent`" in verdict.text
    _, verdict = judge(BatchSize(), trace_of(usage(10, 40, 10, total=0)))
    assert verdict.status is Status.NOT_EVALUABLE


@pytest.mark.proves("TDC201", "boundary")
@pytest.mark.parametrize("at", range(3))
def test_a_percentile_at_its_threshold_stays_quiet(at: int) -> None:
    below, limit = [69.5] * 3, [69.5] * 3
    limit[at] = 70.0
    assert judge(SMALL, trace_of(usage(*below, samples=241)))[0]
    assert not judge(SMALL, trace_of(usage(*limit, samples=241)))[0]


@given(st.lists(st.tuples(*[st.sampled_from([0.0, 69.0, 75.0])] * 3), min_size=1, max_size=10))
def test_pieces_do_not_change_the_findings(values: list[tuple[float, float, float]]) -> None:
    rule = BatchSize(patience=5, window=20, scan_interval_us=5_000_000)
    rows = [row for each in values for row in usage(*each, samples=1)] * 10
    same_in_any_cuts(rule, trace_of(rows), seeds=2)


@pytest.mark.parametrize("parameters", [{"cpu_threshold_p95": 101}, {"gpu_threshold_p95": -1}, {"window": 0}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BatchSize(**parameters)
