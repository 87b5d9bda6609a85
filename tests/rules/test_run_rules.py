"""Judging a run by the rules of its hook."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import RunNotFound
from tdcore.rules import ExplodingTensor, VanishingGradient, run
from tdcore.rules.run_rules import rules_of_run
from tdcore.rules.run_source import RunSource
from tdcore.rules.runner import _wait_for_run
from tdcore.rules.step_range import with_step_range
from tests.trial.writer import RunWriter


def made_with(place: Path, configuration: Any, *, attempt: int = 0) -> RunWriter:
    """Write a run, or one more attempt of it, with this configuration in run.json."""
    writer = RunWriter(place, attempt=attempt)
    document = json.loads((place / "run.json").read_text())
    document["attempts"][-1]["configuration"] = configuration
    writer.put("run.json", document)
    return writer


def test_rules_of_the_newest_attempt_are_taken_with_their_parameters(tmp_path: Path) -> None:
    made_with(tmp_path, {"rules": ["dead_relu"]})
    made_with(tmp_path, {"rules": ["TDC101:threshold=1e-6,end_step=9", "exploding_tensor"]}, attempt=1)
    rules, problems = rules_of_run(RunSource(tmp_path).sink)
    assert rules == [with_step_range(VanishingGradient(threshold=1e-6), end_step=9), ExplodingTensor()]
    assert problems == []


@pytest.mark.parametrize("configuration", [{}, [], "x", {"rules": []}, {"rules": {}}])
def test_a_run_without_rules_has_none(tmp_path: Path, configuration: Any) -> None:
    made_with(tmp_path, configuration)
    assert rules_of_run(RunSource(tmp_path).sink)[0] == []


@pytest.mark.parametrize(
    "text", ["evil.py::Rule", "evil.py", "os:system", "evil", "", 3, None, ["x"], "x" * 9999]
)
def test_anything_but_a_rule_of_the_table_is_a_problem_and_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", "evil"):
        (tmp_path / name).write_text("raise SystemExit('loaded')")
    made_with(tmp_path / "run", {"rules": [text, "TDC102"]})
    rules, problems = rules_of_run(RunSource(tmp_path / "run").sink)
    assert rules == [ExplodingTensor()]
    (problem,) = problems
    assert "which is not a rule of the table; name it with --rule" in problem
    assert len(problem) < 300


def test_a_rule_that_is_left_out_is_part_of_the_report_and_of_the_exit_code(tmp_path: Path) -> None:
    writer = made_with(tmp_path, {"rules": ["TDC101", "mine:Rule"]})
    writer.add("gradient/w", np.ones(2), step=0, kind="gradient")
    writer.flush()
    writer.end()
    report = run(tmp_path)
    assert [verdict.rule for verdict in report.verdicts] == ["VanishingGradient"]
    assert report.left_out == (
        "the run names 'mine:Rule', which is not a rule of the table; name it with --rule",
    )
    assert report.exit_code == 3


def test_a_run_that_begins_later_is_waited_for(tmp_path: Path) -> None:
    source = RunSource(tmp_path / "run")
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            made_with(tmp_path / "run", {"rules": ["TDC101"]})

    _wait_for_run(source, True, timedelta(seconds=0.5), None, clock=lambda: 0.0, wait=wait)
    assert waited == [0.5] * 3
    assert rules_of_run(source.sink)[0] == [VanishingGradient()]


def test_waiting_ends_with_the_time_given_for_it(tmp_path: Path) -> None:
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(RunNotFound, match=r"no run has begun at .* within 2 s"):
        _wait_for_run(
            RunSource(tmp_path / "run"),
            True,
            timedelta(seconds=1),
            timedelta(seconds=2),
            clock=lambda: now[0],
            wait=wait,
        )
    assert now == [2.0]
