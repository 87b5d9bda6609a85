"""One run that is judged by many tasks: the report is that of one judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tdcore.rules import RULES
from tdcore.rules.base import judges_tensors
from tdcore.rules.cases import CASES, Case
from tdcore.rules.rule_attributes import judged_by
from tdcore.rules.step_range import with_step_range
from tests.rules.spread_runs import finest_plan, judged_both_ways, write_copies, write_random

_CASES = [
    pytest.param(case, id=f"{code}-{'fires' if at == 0 else 'quiet'}")
    for code, cases in CASES.items()
    for at, case in enumerate(cases)
    if judges_tensors(RULES[code]())
]


@pytest.mark.parametrize("code", list(RULES))
def test_each_rule_of_the_table_declares_by_what_it_judges(code: str) -> None:
    assert "judged_by" in vars(RULES[code])
    assert judged_by(RULES[code]()) in ("tensor", "worker", "run")


@pytest.mark.full
@pytest.mark.parametrize("case", _CASES)
def test_the_declaration_of_a_rule_is_true_for_its_cases(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = case.trace()
    write_copies(tmp_path, trace)
    monkeypatch.setattr("tdcore.rules.spread.judge.make_plan", finest_plan)
    found, number = 0, len(trace.rows)
    for rows, max_findings in ((250_000, 1000), (5 + number // 5, 1000), (20 + number // 2, 1)):
        monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", rows)
        whole, _ = judged_both_ways(tmp_path, [case.rule], attempt="all", max_findings=max_findings)
        found += len(whole.findings)
    middle = sorted(row["step"] for row in trace.rows)[number // 2]
    judged_both_ways(tmp_path, [with_step_range(case.rule, 1, middle + 2)], attempt="all")
    assert bool(found) or not case.found


@pytest.mark.full
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(seed=0, rows=250_000, max_findings=1000, attempt="all", finest=False)
@given(
    seed=st.integers(0, 10**6),
    rows=st.sampled_from([1, 20, 100, 250_000]),
    max_findings=st.sampled_from([0, 1, 2, 7, 1000]),
    attempt=st.sampled_from([None, 0, "all"]),
    finest=st.booleans(),
)
def test_the_report_of_a_random_run_is_that_of_one_judgement(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    rows: int,
    max_findings: int,
    attempt: Any,
    finest: bool,
) -> None:
    place = tmp_path_factory.mktemp("run")
    write_random(place, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tdcore.rules.run_source._BATCH_ROWS", rows)
        if finest:
            patch.setattr("tdcore.rules.spread.judge.make_plan", finest_plan)
        rules = [
            "all",
            "tensor_variance:max_threshold=1",
            "exploding_tensor:only_nan=true",
            "profiler_report",
        ]
        judged_both_ways(place, rules, attempt=attempt, max_findings=max_findings)
