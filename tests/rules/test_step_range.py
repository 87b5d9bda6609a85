"""start_step and end_step of any rule: the rule gets only the rows of these steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.rules import Engine, Finding, Need, Status, VanishingGradient, Window, run
from tdcore.rules.legacy import LegacyRule
from tdcore.rules.loading import load_rule, text_of
from tdcore.rules.step_range import RangedRule, with_step_range
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.trial.writer import RunWriter


def fading(steps: int = 6) -> Trace:
    trace = Trace()
    for step in range(steps):
        trace.add(step, "gradient/w", "gradient", [1e-9])
    return trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """Records the rows that it gets."""

    code: ClassVar[str] = "T002"
    each_look: ClassVar[bool] = True
    seen: list[tuple[list[int], bool]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def needs(self) -> Need:
        return Need(what="anything")

    def check(self, window: Window) -> Iterator[Finding]:
        steps = window.columns.ints("step").tolist()
        self.seen.append((steps, (0, "worker_0") in window.ended))
        if window.payload is not None:
            self.values.extend(window.payload(row).item() for row in range(len(window)))
        window.memory["calls"] = window.memory.get("calls", 0) + 1
        yield from ()


@pytest.mark.parametrize(
    ("bounds", "steps"),
    [
        ("start_step=2", [2, 3, 4, 5]),
        ("end_step=2", [0, 1]),
        ("start_step=1,end_step=3", [1, 2]),
        ("start_step=0,end_step=1", [0]),
        ("start_step=5", [5]),
        ("start_step=0", [0, 1, 2, 3, 4, 5]),
        ("end_step=none", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_rule_judges_the_steps_from_start_up_to_but_not_including_end(
    bounds: str, steps: list[int]
) -> None:
    found, verdict = judge(load_rule(f"vanishing_gradient:{bounds}"), fading())
    assert [finding.step for finding in found] == steps
    assert verdict.judged == len(steps)
    assert verdict.rule == found[0].rule == "VanishingGradient"
    assert verdict.code == "TDC101"


def test_the_verdict_shows_parameters_and_bounds() -> None:
    _, verdict = judge(load_rule("vanishing_gradient:threshold=1e-6,start_step=1,end_step=3"), fading())
    assert verdict.parameters == {"threshold": "1e-06", "start_step": "1", "end_step": "3"}


def test_a_run_without_a_step_within_the_bounds_is_not_evaluable_and_says_which_steps_were_wanted() -> None:
    _, verdict = judge(load_rule("vanishing_gradient:start_step=100,end_step=200"), fading())
    assert verdict.status is Status.NOT_EVALUABLE
    assert "from step 100 and before step 200" in verdict.reason


def test_payloads_are_those_of_the_rows_that_are_shown() -> None:
    trace = Trace()
    for step in range(5):
        trace.add(step, "w", "weight", [float(step)], payload=True)
    rule = Watches()
    judge(with_step_range(rule, 2, 4), trace)
    assert rule.values == [2.0, 3.0]


def test_a_worker_that_has_passed_the_last_step_has_ended_for_the_rule_and_is_not_shown_again() -> None:
    rule = Watches()
    engine = Engine(Live(fading(), [2, 4, 6]), [with_step_range(rule, 1, 4)])
    for _ in range(3):
        engine.step()
    assert rule.seen == [([1], False), ([2, 3], False), ([], True)]


def test_a_rule_is_not_called_before_its_first_step() -> None:
    rule = Watches()
    engine = Engine(Live(fading(), [1, 3, 6]), [with_step_range(rule, 3)])
    for _ in range(3):
        engine.step()
    assert rule.seen == [([3, 4, 5], False)]


class Live:
    """A trace that comes in parts: the rows of steps before these."""

    def __init__(self, trace: Trace, ends: list[int]) -> None:
        self._source, self._table, self._ends, self._begin = trace.source(), trace.table(), ends, 0
        self.where = "a trace"

    def next(self, columns: Any, *, everything: bool = False) -> Any:
        from tdcore.rules.source import RowBatch

        begin, self._begin = self._begin, self._ends.pop(0)
        table = self._table.slice(begin, self._begin - begin).select(columns)
        return RowBatch(table=table, payload=lambda row: np.zeros(1), ended=frozenset())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def test_bounds_of_a_bounded_rule_narrow_it_further() -> None:
    rule: object = with_step_range(with_step_range(VanishingGradient(), 2, 10), 5, 20)
    assert rule == RangedRule(rule=VanishingGradient(), start_step=5, end_step=10)
    assert with_step_range(VanishingGradient()) == VanishingGradient()


@pytest.mark.parametrize("bounds", ["start_step=-1", "start_step=5,end_step=5", "end_step=0"])
def test_bounds_that_leave_no_step_are_refused(bounds: str) -> None:
    with pytest.raises(ConfigError, match="VanishingGradient: start_step must be at least 0"):
        load_rule(f"vanishing_gradient:{bounds}")
    with pytest.raises(ConfigError, match=r"VanishingGradient\.start_step is 'x', expected a whole number"):
        load_rule("vanishing_gradient:start_step=x")


@dataclass(frozen=True, slots=True, kw_only=True)
class HasItsOwn:
    """A rule whose own parameter is called start_step."""

    code: ClassVar[str] = "T003"
    start_step: int = 0

    def needs(self) -> Need:
        return Need(what="anything")

    def check(self, window: Window) -> Iterator[Finding]:
        yield from ()


def test_a_rule_with_a_start_step_of_its_own_gets_it() -> None:
    from tdcore.rules.loading import rule_from_strings

    rule: object = rule_from_strings(HasItsOwn, {"start_step": "3", "end_step": "5"})
    assert rule == RangedRule(rule=HasItsOwn(start_step=3), start_step=0, end_step=5)


def test_rules_of_the_older_kind_are_bounded_too(tmp_path: Path) -> None:
    own = tmp_path / "older.py"
    own.write_text(
        "from tdcore.rules.legacy import Rule\n"
        "class Older(Rule):\n"
        "    def invoke_at_step(self, step):\n"
        "        return True\n"
    )
    writer = RunWriter(tmp_path / "run")
    for step in range(4):
        writer.add("w", np.ones(2), step=step)
    writer.flush()
    writer.end()
    rule = load_rule(f"{own}::Older:start_step=2")
    assert isinstance(rule, RangedRule)
    assert isinstance(rule.rule, LegacyRule)
    report = run(tmp_path / "run", [rule])
    assert [finding.step for finding in report.findings] == [2]


def test_run_bounds_all_its_rules(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    for step in range(4):
        writer.add("gradient/w", np.full(2, 1e-9), step=step, kind="gradient")
    writer.flush()
    writer.end()
    report = run(tmp_path, ["vanishing_gradient", VanishingGradient], start_step=1, end_step=3)
    assert [(finding.step, finding.last_step) for finding in report.findings] == [(1, 2), (1, 2)]
    assert [verdict.rule for verdict in report.verdicts] == ["VanishingGradient", "VanishingGradient-2"]


def test_the_text_of_a_bounded_rule_makes_it_again() -> None:
    rule = with_step_range(VanishingGradient(threshold=1e-6), 5, 7)
    assert text_of(rule) == "vanishing_gradient:threshold=1e-06,start_step=5,end_step=7"
    assert load_rule(text_of(rule)) == rule


def test_a_bounded_rule_goes_on_from_a_saved_state(tmp_path: Path) -> None:
    rules = ["vanishing_gradient:start_step=1,end_step=4", "exploding_tensor:end_step=2"]
    writer = RunWriter(tmp_path / "run")
    for step in range(6):
        writer.add("gradient/w", np.full(2, 1e-9), step=step, kind="gradient")
        writer.flush()
        run(tmp_path / "run", rules, state=tmp_path / "state")
    writer.end()
    report = run(tmp_path / "run", rules, state=tmp_path / "state")
    assert report.verdicts == run(tmp_path / "run", rules).verdicts
    assert [(f.step, f.last_step, f.count) for f in report.findings] == [(1, 3, 3)]


def test_a_state_with_other_bounds_is_refused(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    writer.add("gradient/w", np.ones(2), step=0, kind="gradient")
    writer.flush()
    writer.end()
    run(tmp_path / "run", ["vanishing_gradient:end_step=4"], state=tmp_path / "state")
    with pytest.raises(ConfigError, match="is of other rules or parameters"):
        run(tmp_path / "run", ["vanishing_gradient:end_step=5"], state=tmp_path / "state")
