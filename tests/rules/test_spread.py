"""One run that is judged by many tasks: the report is that of one judgement."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tdcore.actions import Callback
from tdcore.cli.app import app
from tdcore.errors import ConfigError, RunCorrupt, RunNotFound
from tdcore.rules import RULES, Finding, Report, Status, VanishingGradient, Window, run, sweep
from tdcore.rules.base import judges_tensors
from tdcore.rules.cases import CASES, Case
from tdcore.rules.rule_attributes import JudgedBy, judged_by
from tdcore.rules.run_rules import RuleChoice
from tdcore.rules.run_source import RunSource
from tdcore.rules.spread.part_source import PartSource
from tdcore.rules.spread.plan import Part, make_plan
from tdcore.rules.spread.task import PartTask
from tdcore.rules.step_range import with_step_range
from tdcore.rules.sweep import SweepEntry
from tests.rules.spread_runs import finest_plan, judged_both_ways, write_copies, write_random
from tests.trial.writer import RunWriter

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
    limits = ((5 + number // 5, 1000), (20 + number // 2, 1), (250_000, 1000))
    for rows, max_findings in limits if case.found else limits[:1]:
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


@pytest.fixture(scope="module")
def three_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a run of three workers whose gradients vanish from step 3 on, and whose first loss is NaN."""
    place = tmp_path_factory.mktemp("three")
    for rank in range(3):
        writer = RunWriter(place, worker=f"worker_{rank}", world_size=3)
        for step in range(6):
            writer.add("loss", np.float32(np.nan if step == rank else 1.0), step=step, kind="loss")
            small = np.full(4, 1e-12 if step >= 3 else 1.0, np.float32)
            writer.add("gradient/w", small, step=step, kind="gradient")
        writer.flush()
        writer.end()
    return place


RULE_TEXTS = ["vanishing_gradient", "first_non_finite", "exploding_tensor", "outlier_rank"]


def _same(report: Report, place: Path, rules: Any = RULE_TEXTS) -> None:
    assert report == run(place, rules, write_findings=False)
    assert report.exit_code == 1


def test_processes_have_the_report_of_one_judgement(three_workers: Path) -> None:
    _same(run(three_workers, RULE_TEXTS, workers=2, write_findings=False), three_workers)


@pytest.mark.full
def test_dask_has_the_report_of_one_judgement(three_workers: Path) -> None:
    pytest.importorskip("distributed")
    _same(run(three_workers, RULE_TEXTS, engine="dask", workers=2, write_findings=False), three_workers)


@pytest.mark.full
def test_ray_has_the_report_of_one_judgement(three_workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    pytest.importorskip("ray")
    _same(run(three_workers, RULE_TEXTS, engine="ray", workers=2, write_findings=False), three_workers)


def test_a_rule_without_a_declaration_judges_the_whole_run_in_one_task(three_workers: Path) -> None:
    class Mine(VanishingGradient):
        """A subclass may judge differently."""

    assert judged_by(VanishingGradient()) == "worker"
    assert judged_by(Mine()) == "run"
    rules = [f"{Path(__file__).with_name('a_rule_of_mine.py')}::EveryNth:nth=2", "vanishing_gradient"]
    _same(run(three_workers, rules, workers=2, engine="serial", write_findings=False), three_workers, rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlyAtWorker1(VanishingGradient):
    """Kills the process that judges worker_1."""

    judged_by: ClassVar[JudgedBy] = "worker"

    def check(self, window: Window) -> Iterator[Finding]:
        """Findings of VanishingGradient."""
        if "worker_1" in window.columns.texts("worker") and (window.columns.where("worker", _is_1)).any():
            os.kill(os.getpid(), signal.SIGKILL)
        yield from VanishingGradient.check(self, window)


def _is_1(worker: str) -> bool:
    return worker == "worker_1"


@pytest.mark.full
def test_a_part_whose_process_dies_is_an_error_and_the_findings_of_the_others_stay(
    three_workers: Path,
) -> None:
    rules = [f"{__file__}::DeadlyAtWorker1", "outlier_rank", "exploding_tensor"]
    report = run(three_workers, rules, workers=3, write_findings=False)
    deadly, ranks, exploding = report.verdicts
    assert deadly.status is Status.ISSUE
    assert {finding.worker for finding in deadly.findings} == {"worker_0", "worker_2"}
    assert re.search(
        r"part \d \(worker_1\) could not be judged: the process that judged it died", deadly.text
    )
    assert ranks == run(three_workers, rules[1:], write_findings=False).verdicts[0]
    assert "worker_1" in exploding.reason  # the same task
    assert report.exit_code == 1


def test_a_part_that_cannot_be_read_is_an_error_of_its_rules(
    three_workers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(three_workers, tmp_path / "run")
    original = PartSource.next

    def broken(self: PartSource, *args: Any, **kwargs: Any) -> Any:
        if self._part.workers == ("worker_2",):
            raise RunCorrupt("a file of worker_2 is damaged")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(PartSource, "next", broken)
    report = run(tmp_path / "run", ["tensor_variance:max_threshold=9"], workers=3, engine="serial")
    assert report.verdicts[0].status is Status.ERROR
    assert "(worker_2) could not be judged: a file of worker_2 is damaged" in report.verdicts[0].text
    assert report.exit_code == 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FailsAtWorker1(VanishingGradient):
    """Raises an exception at worker_1."""

    judged_by: ClassVar[JudgedBy] = "worker"

    def check(self, window: Window) -> Iterator[Finding]:
        """Findings of VanishingGradient."""
        yield from VanishingGradient.check(self, window)
        if (window.columns.where("worker", _is_1)).any():
            raise ValueError("worker_1 is not for me")


def test_a_rule_that_fails_has_the_verdict_of_one_judgement(three_workers: Path) -> None:
    judged_both_ways(three_workers, [FailsAtWorker1()])


def test_a_rule_with_very_many_findings_judges_the_whole_run_again(
    three_workers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.rules.spread.task._MOST_WINDOWS_FULL", 0)
    judged_both_ways(three_workers, RULE_TEXTS)


def test_each_task_opens_only_the_files_of_its_workers(
    three_workers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[set[str]] = []

    def noting(self: PartSource, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        opened.append({arrival.worker for arrival in self._index.arrivals})
        return batch

    original = PartSource.next
    monkeypatch.setattr(PartSource, "next", noting)
    run(three_workers, ["vanishing_gradient"], workers=3, engine="serial", write_findings=False)
    assert opened == [{"worker_0"}, {"worker_1"}, {"worker_2"}]


def test_a_run_that_has_not_ended_is_not_divided(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.add("gradient/w", np.ones(4, np.float32), step=0, kind="gradient")
    writer.flush()
    with pytest.raises(ConfigError, match=r"has not ended.*--ended"):
        run(tmp_path, ["vanishing_gradient"], workers=2)
    with pytest.raises(ConfigError, match="a poll of a live run reads only its new rows"):
        run(tmp_path, ["vanishing_gradient"], workers=2, live=True)
    judged_both_ways(tmp_path, ["vanishing_gradient"], ended=True)
    with pytest.raises(ConfigError, match="cluster is only for the engines ray and dask"):
        run(tmp_path, ["vanishing_gradient"], ended=True, cluster="tcp://somewhere:1")
    with pytest.raises(RunNotFound):
        run(tmp_path / "none", ["vanishing_gradient"], workers=2)


def test_rows_of_a_later_start_of_the_training_are_not_judged(
    three_workers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run"
    shutil.copytree(three_workers, place)

    def resumed(*args: Any) -> Any:
        for worker in ("worker_0", "worker_7"):
            writer = RunWriter(place, worker=worker, attempt=1, world_size=2)
            writer.add("gradient/w", np.full(4, np.nan, np.float32), step=2, kind="gradient")
            writer.flush()
            writer.end()
        return make_plan(*args)

    monkeypatch.setattr("tdcore.rules.spread.judge.make_plan", resumed)
    expected = run(place, RULE_TEXTS, write_findings=False)
    report = run(place, RULE_TEXTS, workers=2, engine="serial", write_findings=False)
    assert report.verdicts == expected.verdicts
    assert report.rows == expected.rows


def test_a_task_that_has_other_rules_than_the_report_is_an_error(three_workers: Path) -> None:
    survey = RunSource(three_workers).survey()
    choice = RuleChoice(given=["exploding_tensor"])
    task = PartTask(place=str(three_workers), rules=choice, attempt=None, max_findings=9, survey=survey)
    part = Part(labels=("ExplodingTensor", "VanishingGradient"), workers=("worker_0",))
    assert task(part).error == "the task has no rule VanishingGradient: its process loaded other rules"


@pytest.mark.full
def test_one_large_run_of_a_sweep_is_divided(three_workers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tdcore.rules.spread.judge._LARGE_ROWS", 1)
    seen: list[SweepEntry] = []
    report = sweep(three_workers, RULE_TEXTS, workers=2, write_findings=False, on_run=seen.append)
    assert list(report.entries) == seen
    assert report.reports == [run(three_workers, RULE_TEXTS, write_findings=False)]


def test_actions_get_the_findings_of_all_parts(three_workers: Path) -> None:
    one: list[Finding] = []
    many: list[Finding] = []
    run(three_workers, RULE_TEXTS, actions=[Callback(one.extend)], write_findings=False)
    actions = [Callback(many.extend)]
    run(three_workers, RULE_TEXTS, actions=actions, write_findings=False, workers=2, engine="serial")
    assert many == one
    assert len(one) > 3


def test_the_command_line_divides_a_run(three_workers: Path) -> None:
    command = ["rules", "run", str(three_workers), "-r", "vanishing_gradient", "--no-write", "--json"]
    one = CliRunner().invoke(app, command)
    many = CliRunner().invoke(app, [*command, "--jobs", "2", "--engine", "serial"])
    assert many.stdout == one.stdout
    assert (many.exit_code, one.exit_code) == (1, 1)
