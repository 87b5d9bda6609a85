"""Properties of every rule in the table."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from tdcore.rules import RULES
from tdcore.rules.base import Rule, Status, is_summary, judges_tensors, step_time_columns_of
from tdcore.rules.cases import CASES, SUMMARY_CASES, Case
from tdcore.rules.explain import explain, page
from tdcore.rules.loading import all_rules
from tests.rules.judging import judge
from tests.rules.proofs import TABLE, shown_of

ROOT = Path(__file__).resolve().parents[2]
EVERY_RULE = pytest.mark.parametrize("code", list(RULES))
OF_TENSORS = [code for code, rule in RULES.items() if judges_tensors(rule)]
OF_STEP_TIMES = [code for code, rule in RULES.items() if step_time_columns_of(rule) and code != "TDC212"]
OF_SAMPLES = [code for code in RULES if code not in (*OF_TENSORS, *OF_STEP_TIMES, "TDC212")]


def test_codes_are_unique_sorted_and_those_that_the_classes_carry() -> None:
    assert list(RULES) == sorted(RULES)
    assert [rule.code for rule in RULES.values()] == list(RULES)


@EVERY_RULE
def test_a_rule_is_a_frozen_dataclass_with_slots_and_keyword_parameters(code: str) -> None:
    rule: type[Any] = RULES[code]
    assert is_dataclass(rule)
    assert vars(rule)["__dataclass_params__"].frozen
    assert not hasattr(rule(), "__dict__")
    assert all(field.kw_only for field in fields(rule))


@EVERY_RULE
def test_a_rule_has_a_file_of_its_own(code: str) -> None:
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", RULES[code].__name__).lower()
    assert RULES[code].__module__ == f"tdcore.rules.library.{stem}"


@EVERY_RULE
def test_the_docstring_has_all_sections_and_explains_every_parameter(code: str) -> None:
    explanation = explain(RULES[code])
    assert all(explanation.sections.values())
    assert all(parameter.text for parameter in explanation.parameters)


@EVERY_RULE
def test_the_page_of_a_rule_is_made_from_its_docstring(code: str) -> None:
    # When this fails: python scripts/make_rule_docs.py
    text = (ROOT / "docs" / "rules" / f"{code}.md").read_text()
    assert text.partition("\n## Measured\n")[0] == page(code, RULES[code])


def test_the_script_that_makes_the_pages_finds_nothing_to_change() -> None:
    script = ROOT / "scripts" / "make_rule_docs.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_each_rule_has_cases_and_all_means_those_that_can_fire() -> None:
    assert sorted([*CASES, *SUMMARY_CASES]) == list(RULES)
    assert [type(rule) for rule in all_rules()] == [rule for rule in RULES.values() if not is_summary(rule)]


@pytest.mark.parametrize("case", [first for first, _ in CASES.values()], ids=list(CASES))
def test_a_rule_fires_on_the_case_made_for_it(case: Case) -> None:
    found, verdict = judge(case.rule, case.trace())
    assert tuple((finding.step, finding.tensor) for finding in found) == case.found
    assert found
    assert verdict.status is Status.ISSUE


@pytest.mark.parametrize(
    "case",
    [*(second for _, second in CASES.values()), *SUMMARY_CASES.values()],
    ids=[*CASES, *SUMMARY_CASES],
)
def test_a_rule_stays_quiet_on_the_case_made_for_it(case: Case) -> None:
    found, verdict = judge(case.rule, case.trace())
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.parametrize("code", OF_TENSORS)
def test_a_run_without_what_a_rule_needs_is_not_evaluable_and_the_verdict_says_what_would_help(
    code: str,
) -> None:
    from tdcore.rules.trace import Trace

    rule: Rule = RULES[code]()
    trace = Trace().add(0, "Net_fc.weight", "weight", [1.0], statistics=False)
    _, verdict = judge(rule, trace)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "CollectionConfig(name=" in verdict.text


@pytest.mark.parametrize("code", OF_SAMPLES)
def test_a_run_without_the_system_samples_that_a_rule_needs_is_not_evaluable(code: str) -> None:
    from tdcore.rules.trace import Trace

    rule: Rule = RULES[code]()
    trace = Trace().add(0, "Net_fc.weight", "weight", [1.0])
    _, verdict = judge(rule, trace)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "not evaluable: the run has no system samples" in verdict.text
    for _ in range(3):
        trace.add_sample()
    _, verdict = judge(rule, trace)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "the run has no " in verdict.text
    assert rule.needs().captures == ()


@pytest.mark.parametrize("code", OF_STEP_TIMES)
def test_a_run_without_the_times_of_steps_that_a_rule_needs_is_not_evaluable(code: str) -> None:
    from tdcore.rules.trace import Trace

    rule: Rule = RULES[code]()
    trace = Trace().add(0, "Net_fc.weight", "weight", [1.0])
    for _ in range(3):
        trace.add_sample()
    _, verdict = judge(rule, trace)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "not evaluable: the run has no times of steps" in verdict.text
    assert rule.needs().captures == ()


@EVERY_RULE
def test_the_configuration_that_a_rule_asks_for_is_valid(code: str) -> None:
    import tdcore

    rule: Rule = RULES[code]()
    need = rule.needs()
    names = ("CollectionConfig", "SaveConfig", "SaveConfigMode", "ReductionConfig", "modes")
    made = eval(f"[{need.fix}]", {name: getattr(tdcore, name) for name in names})
    assert tuple(made) == need.captures


@pytest.mark.parametrize("code", [code for code in CASES if code != "TDC212"])
def test_findings_say_why_and_what_to_do_and_are_plain_json(code: str) -> None:
    import json

    case = CASES[code][0]
    found, verdict = judge(case.rule, case.trace())
    for finding in found:
        assert finding.rule == RULES[code].__name__
        assert finding.code == code
        assert finding.why
        assert finding.do
        assert json.loads(json.dumps(finding.to_json(), allow_nan=False))["step"] == finding.step
    json.dumps(verdict.to_json(), allow_nan=False)


@EVERY_RULE
def test_the_table_of_proofs_shows_a_rule_firing_quiet_not_evaluable_and_at_its_boundary(code: str) -> None:
    # When this fails: pytest tests -m proves --proofs write
    (line,) = (line for line in TABLE.read_text().splitlines() if line.startswith(f"| [{code}]"))
    cells = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    assert [cell.isdecimal() and int(cell) > 0 for cell in cells] == shown_of(code)
    assert {cell for cell in cells if not cell.isdecimal()} <= {"-"}
