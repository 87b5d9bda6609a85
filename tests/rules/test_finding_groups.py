"""Findings of one rule with the same advice form one group, in reports, JSON and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore.cli.rules_output import print_findings
from tdcore.rules import Finding
from tdcore.rules.finding_groups import grouped

_SECTIONS = {"rule": "ABC", "worker": "ab", "mode": ("TRAIN", "EVAL"), "do": ("raise it", "lower it")}


def _finding(step: int = 0, tensor: str = "w", **values: Any) -> Finding:
    defaults: dict[str, Any] = {
        "rule": "A", "code": "X1", "step": step, "mode": "TRAIN", "mode_step": step, "worker": "a",
        "attempt": 0, "tensor": tensor, "numbers": {}, "why": f"{tensor} is small", "do": "raise it",
    }  # fmt: skip
    return Finding(**defaults | values)


@st.composite
def _findings(draw: Callable[..., Any]) -> list[Finding]:
    def one(number: int) -> Finding:
        values = {name: draw(st.sampled_from(each)) for name, each in _SECTIONS.items()}
        return _finding(draw(st.integers(0, 5)), f"w{number}", attempt=draw(st.integers(0, 1)), **values)

    return [one(number) for number in range(draw(st.integers(0, 12)))]


@given(_findings())
def test_each_finding_is_in_exactly_one_group_with_those_that_share_rule_advice_and_place(
    findings: list[Finding],
) -> None:
    def key(finding: Finding) -> tuple[object, ...]:
        return (finding.rule, finding.worker, finding.mode, finding.do, finding.attempt)

    groups = grouped(findings)
    members = [finding for group in groups for finding in group.findings]
    assert sorted(each.tensor for each in members) == sorted(each.tensor for each in findings)
    assert all(len({key(each) for each in group.findings}) == 1 for group in groups)
    assert len({key(group.first) for group in groups}) == len(groups)


@given(_findings())
def test_groups_and_their_findings_are_in_order_of_attempts_and_steps(findings: list[Finding]) -> None:
    groups = grouped(findings)
    for found in [[group.first for group in groups], *(list(group.findings) for group in groups)]:
        order = [(each.attempt, each.step) for each in found]
        assert order == sorted(order)


def test_a_group_counts_its_tensors_and_steps_and_knows_the_newest_step() -> None:
    first = _finding(3, "a", count=5, last_step=9, last_mode_step=9)
    second = _finding(4, "b", count=2, last_step=12, last_mode_step=12)
    third = _finding(5, "a", numbers={"kind": "other"})
    (group,) = grouped([second, third, first])
    assert (group.first, group.last) == (first, second)
    assert (group.tensors, group.count, len(group.findings)) == (("a", "b"), 8, 3)
    assert group.to_json() == {
        "rule": "A", "code": "X1", "attempt": 0, "worker": "a", "mode": "TRAIN", "step": 3, "mode_step": 3,
        "last_step": 12, "last_mode_step": 12, "tensors": ["a", "b"], "findings": 3, "count": 8,
        "why": "a is small", "do": "raise it",
    }  # fmt: skip


def test_the_command_prints_the_first_findings_of_a_large_group_and_counts_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_findings(
        [_finding(step // 3, f"w{step}", count=2, last_step=40, last_mode_step=40) for step in range(70)]
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "A at step 0, a, in 70 tensors:"
    assert printed[1] == "  w0: w0 is small (2 times, last at step 40)"
    assert printed[4] == "  w3: w3 is small (at step 1; 2 times, last at step 40)"
    assert printed[5:] == ["  ... and 66 more (140 times in all, last at step 40)"]


def test_the_command_prints_at_most_as_many_groups_of_a_rule_as_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_findings([_finding(0, f"w{number}", do=f"change {number}") for number in range(6)], groups=4)
    printed = capsys.readouterr().out
    assert printed.count("is small") == 4
    assert "A: 2 more groups; --json lists them" in printed
