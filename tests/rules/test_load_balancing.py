"""LoadBalancing: GPUs of one machine with different and with equal utilizations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import LoadBalancing, Status
from tests.rules.judging import judge
from tests.rules.system_samples import gpu, judged_in_a_run, same_in_any_cuts, trace_of

SMALL = LoadBalancing(patience=100)


def loads(*gpus: Any, samples: int = 1201) -> list[dict[str, Any]]:
    """Return samples of a machine. gpus: one list of utilizations per GPU, which is repeated."""
    return [
        {"gpus": [gpu(each[number % len(each)], index=at) for at, each in enumerate(gpus)]}
        for number in range(samples)
    ]


@pytest.mark.proves("TDC205", "fires")
def test_a_gpu_that_works_less_than_others_is_found(tmp_path: Path) -> None:
    rows = loads([90, 92], [92, 90], [50, 52], [90, 92])
    found, _ = judged_in_a_run(LoadBalancing(), tmp_path, rows)
    assert [(each.step, each.tensor) for each in found] == [(1080, "node-1"), (1200, "node-1")]
    assert found[0].numbers["distance"] == 1.0
    assert "gpu2" in str(found[0].numbers["gpus"])
    assert "51 %" in found[0].why


@pytest.mark.proves("TDC205", "quiet")
def test_gpus_with_equal_work_stay_quiet(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    used = [np.clip(random.normal(85, 10, 1201), 0, 100).round().tolist() for _ in range(4)]
    found, verdict = judged_in_a_run(LoadBalancing(), tmp_path, loads(*used))
    assert not found
    assert (verdict.status, verdict.judged) == (Status.NO_ISSUE, 2)


@pytest.mark.proves("TDC205", "not evaluable")
def test_a_machine_with_one_gpu_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_in_a_run(LoadBalancing(), tmp_path, loads([50]))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "of a machine with two GPUs or more" in verdict.text


@pytest.mark.proves("TDC205", "boundary")
def test_a_distance_at_the_threshold_stays_quiet() -> None:
    rows = loads([99, 100, 99, 100], [99, 0, 99, 100], samples=241)
    (first, *_) = judge(LoadBalancing(patience=200), trace_of(rows))[0]
    distance = float(first.numbers["distance"])
    assert distance == pytest.approx(0.25, abs=0.01)
    assert not judge(LoadBalancing(patience=200, threshold=distance), trace_of(rows))[0]
    assert judge(LoadBalancing(patience=200, threshold=distance - 0.001), trace_of(rows))[0]


def test_the_whole_range_is_counted() -> None:
    assert judge(SMALL, trace_of(loads([100], [0], samples=241)))[0][0].numbers["distance"] == 1.0
    assert not judge(SMALL, trace_of(loads([100], [99], samples=241)))[0]  # the same bin


def test_machines_with_different_numbers_of_gpus_are_judged_alone() -> None:
    trace = trace_of(loads([90], [10], samples=241), worker="worker_0", host="a")
    for row in loads([90], [90], [90], samples=241):
        trace.add_sample(worker="worker_1", host="b", **row)
    assert {each.tensor for each in judge(SMALL, trace)[0]} == {"a"}


def test_a_list_of_gpus_that_changes_begins_a_new_judgement() -> None:
    rows = [
        *loads([90], [10], [90], samples=241),
        *loads([90], [90], samples=301),
        *loads([90], [10], [90], samples=241),
    ]
    found = same_in_any_cuts(SMALL, trace_of(rows))
    assert [each.step for each in found] == [120, 240, 662, 782]


@given(st.lists(st.sampled_from([0.0, 40.0, 99.0, 100.0, None]), min_size=2, max_size=9))
def test_pieces_do_not_change_the_findings(used: list[float | None]) -> None:
    rule = LoadBalancing(patience=5, scan_interval_us=5_000_000)
    rows = loads(used, used[1:], [40.0, 99.0], samples=120)
    same_in_any_cuts(rule, trace_of(rows), seeds=2)


@pytest.mark.parametrize(
    "parameters", [{"threshold": 2}, {"patience": 0}, {"patience": 1.5}, {"scan_interval_us": 0}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        LoadBalancing(**parameters)
