"""The profiler report: its files, its parameters, and its summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tdcore.cli.app import app
from tdcore.errors import ConfigError
from tdcore.rules import InputBound, ProfilerReport, Status, StepOutlier, run
from tdcore.rules.base import Verdict, judges_tensors
from tdcore.rules.library import RULES
from tdcore.rules.loading import all_rules, load_rule, load_rules, text_of
from tdcore.rules.report import profiler_report
from tdcore.rules.run_rules import rules_of_run
from tdcore.rules.trace import Trace
from tdcore.sinks import open_sink
from tests.rules.system_samples import gpu, judged_trace_in_a_run
from tests.rules.timed_steps import even_steps, with_samples

OF_PROFILER = [
    rule.__name__ for rule in RULES.values() if not judges_tensors(rule) and rule is not ProfilerReport
]


def waiting(place: Path, *, data: float = 60.0) -> Path:
    """Write a run whose steps wait for data."""
    trace = even_steps(600, data=data)
    trace.add_step_time(600, mode="EVAL", mode_step=0, forward=100.0)
    machine: dict[str, Any] = {"cpu_percent": 25.0, "iowait_percent": 1.0, "core_percent": [20.0, 30.0]}
    machine |= {"memory_total": 8 << 30, "memory_available": 2 << 30, "trainer_processes": 3}
    rates: dict[str, Any] = {"seconds": 0.5, "disk_read_bytes": 1 << 20}
    with_samples(trace, **machine, **rates, gpus=[gpu(40.0, memory_used=20, memory_total=80)])
    judged_trace_in_a_run(InputBound(), place, trace)
    return place


def test_a_report_has_the_verdict_of_each_rule_and_two_summaries(tmp_path: Path) -> None:
    report = profiler_report(waiting(tmp_path / "run"))
    page = report.write(tmp_path / "out")
    assert re.fullmatch(
        r"out/ProfilerReport-\d+/profiler-output/profiler-report.html", str(page.relative_to(tmp_path))
    )
    documents = {
        path.stem: json.loads(path.read_text()) for path in (page.parent / "profiler-reports").iterdir()
    }
    assert set(documents) == set(OF_PROFILER)
    assert documents["OverallSystemUsage"]["summary"]["node-1"]["cpu (%)"]["p50"] == 25.0
    assert documents["InputBound"]["status"] == "issue"
    document = json.loads((page.parent / "profiler-report.json").read_text())
    assert document["status"] == "IssuesFound"
    assert [each["occurrences"] for each in document["rules"]] == sorted(
        (each["occurrences"] for each in document["rules"]), reverse=True
    )
    assert not (tmp_path / "run" / "findings").exists()


def test_the_page_escapes_names_and_has_no_scripts_or_links(tmp_path: Path) -> None:
    place = waiting(tmp_path / "<b>run")
    text = profiler_report(place).to_html()
    assert "&lt;b&gt;run" in text
    assert "<b>run" not in text
    assert "<script" not in text
    assert "http" not in text
    assert "the training waits for data" in text
    assert "phases of TRAIN" in text


def test_a_run_without_issues_has_a_report_too(tmp_path: Path) -> None:
    report = profiler_report(waiting(tmp_path, data=1.0))
    assert not report.has_issues
    assert report.to_json()["status"] == "NoIssuesFound"
    judged_trace_in_a_run(InputBound(), tmp_path / "empty", Trace())
    text = profiler_report(tmp_path / "empty").to_html()
    assert "not evaluable: the run has no times of steps" in text
    assert "not evaluable: the run has no system samples" in text


def test_parameters_have_the_name_of_their_rule_in_any_case() -> None:
    rules = {
        type(each).__name__: each
        for each in ProfilerReport(parameters=("StepOutlier_stddev=4",)).combined_rules()
    }
    assert list(rules) == OF_PROFILER
    assert rules["StepOutlier"] == StepOutlier(stddev=4.0)
    (loaded,) = load_rules(
        "profiler_report:stepoutlier_stddev=4,INPUTBOUND_min_wait_ms=9,opt_out_telemetry=true"
    )
    assert isinstance(loaded, ProfilerReport)
    assert StepOutlier(stddev=4.0) in loaded.combined_rules()
    assert InputBound(min_wait_ms=9.0) in loaded.combined_rules()
    assert load_rule(text_of(loaded)) == loaded


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"Bogus_x": 1}, "has no parameter 'Bogus_x'; write <rule>_<parameter>"),
        ({"StepOutlier": 1}, "has no parameter 'StepOutlier'"),
        ({"StepOutlier_bogus": 1}, "StepOutlier has no parameter 'bogus'"),
        ({"StepOutlier_stddev": 0}, "StepOutlier.stddev must be above 0"),
        ({"opt_out_telemetry": "perhaps"}, "opt_out_telemetry is 'perhaps'"),
        ({"VanishingGradient_threshold": 1}, "has no parameter 'VanishingGradient_threshold'"),
    ],
)
def test_parameters_that_a_rule_does_not_have_are_refused(
    parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        profiler_report("no run", **parameters)  # type: ignore[arg-type]


def test_opting_out_of_telemetry_changes_nothing(tmp_path: Path) -> None:
    place = waiting(tmp_path)
    one, two = (profiler_report(place, opt_out_telemetry=each) for each in (False, True))
    assert one.verdicts == two.verdicts


def test_the_commands_judge_the_same_rules(tmp_path: Path) -> None:
    place, out = waiting(tmp_path / "run"), tmp_path / "out"
    done = CliRunner().invoke(
        app, ["rules", "report", str(place), "-o", str(out), "-p", "InputBound_threshold=99"]
    )
    assert done.exit_code in (0, 1), done.output
    assert "TDC216 InputBound: no issue" in done.output
    assert len(list(out.iterdir())) == 1
    done = CliRunner().invoke(app, ["rules", "report", str(place), "--json"])
    assert done.exit_code == 1
    assert json.loads(done.output)["status"] == "IssuesFound"
    report = run(place, ["profiler_report"], write_findings=False)
    assert [verdict.rule for verdict in report.verdicts] == ["ProfilerReport", *OF_PROFILER]


def test_a_configuration_file_can_name_the_report(tmp_path: Path) -> None:
    from tdcore.rules.config_file import load_rules_config

    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - profiler_report: {StepOutlier_stddev: 4}\n")
    (rule,) = load_rules_config(path).rules
    assert rule == ProfilerReport(parameters=("StepOutlier_stddev=4",))


def own(place: Path, **options: Any) -> Verdict:
    """Return the verdict of ProfilerReport on a run."""
    return run(place, [ProfilerReport()], write_findings=False, **options).verdicts[0]


@pytest.mark.proves("TDC212", "fires")
@pytest.mark.proves("TDC212", "summary")
def test_the_rule_is_an_issue_if_one_of_its_rules_finds_one_and_counts_their_findings(tmp_path: Path) -> None:
    report = run(waiting(tmp_path), [ProfilerReport()], write_findings=False)
    verdict = report.verdicts[0]
    of_rules = {each.rule: each for each in report.verdicts[1:]}
    found = [name for name, each in of_rules.items() if each.findings]
    assert "InputBound" in found
    assert verdict.status is Status.ISSUE
    assert verdict.text.endswith(f" of {', '.join(found)}")
    assert (
        verdict.finding_count == sum(each.finding_count for each in of_rules.values()) == len(report.findings)
    )
    assert verdict.findings == ()
    assert verdict.combined == tuple(OF_PROFILER)
    judged_rows = of_rules["InputBound"].judged
    assert judged_rows > 0
    row = {"result": "issue", "findings": 1, "judged": judged_rows}
    assert verdict.summary["rules"]["InputBound"] == row
    judged = {name for name, each in of_rules.items() if each.judged and not each.summary}
    assert set(verdict.summary["rules"]) == judged
    assert report.exit_code == 1
    assert f"{verdict.finding_count} finding" in repr(report)


@pytest.mark.proves("TDC212", "quiet")
def test_rules_without_data_do_not_change_the_verdict_or_the_exit_code(tmp_path: Path) -> None:
    report = run(waiting(tmp_path, data=1.0), ["TDC212"], write_findings=False)
    verdict = report.verdicts[0]
    assert verdict.status is Status.NO_ISSUE
    assert verdict.text == f"no issue ({len(verdict.summary['rules'])} rules judged the run)"
    assert report.exit_code == 0
    statuses = {each.status for each in report.verdicts}
    assert Status.NOT_EVALUABLE in statuses
    assert [each.rule for each in report.verdicts if each.asked] == ["ProfilerReport"]


@pytest.mark.proves("TDC212", "not evaluable")
@pytest.mark.parametrize("steps", [0, 12])
def test_a_run_that_only_summaries_can_judge_is_not_evaluable(tmp_path: Path, steps: int) -> None:
    judged_trace_in_a_run(InputBound(), tmp_path, even_steps(steps) if steps else Trace())
    report = run(tmp_path, ["profiler_report"], write_findings=False)
    assert report.verdicts[0].status is Status.NOT_EVALUABLE
    assert report.verdicts[0].summary == {}
    assert report.exit_code == 3


def test_a_rule_that_is_named_too_runs_once_with_the_same_parameters_and_twice_with_others(
    tmp_path: Path,
) -> None:
    place = waiting(tmp_path)
    names = [each.rule for each in run(place, ["input_bound", "TDC212"], write_findings=False).verdicts]
    assert names.count("InputBound") == 1
    report = run(place, ["input_bound:threshold=99", "TDC212"], write_findings=False)
    names = [each.rule for each in report.verdicts]
    assert [name for name in names if name.startswith("InputBound")] == ["InputBound", "InputBound-2"]
    assert report.verdicts[1].text.endswith("of InputBound-2")
    report = run(place, ["all", "TDC212"], write_findings=False)
    assert len(report.verdicts) == len(all_rules()) + 1 + len(
        {"OverallSystemUsage", "OverallFrameworkMetrics"}
    )


def test_a_step_range_is_that_of_each_combined_rule(tmp_path: Path) -> None:
    place = waiting(tmp_path)
    verdict = run(place, ["profiler_report"], end_step=30, write_findings=False).verdicts[0]
    assert "InputBound" not in verdict.summary.get("rules", {})
    report = run(place, ["TDC212:start_step=100,StepOutlier_stddev=4"], write_findings=False)
    assert report.verdicts[0].parameters["start_step"] == "100"
    outlier = next(each for each in report.verdicts if each.rule == "StepOutlier")
    assert dict(outlier.parameters) == {"stddev": "4.0", "start_step": "100"}


def test_a_live_run_with_a_state_continues_with_all_combined_rules(tmp_path: Path) -> None:
    place, state = waiting(tmp_path / "run"), tmp_path / "state"
    once = run(place, ["TDC212"], write_findings=False, state=state)
    again = run(place, ["TDC212"], write_findings=False, state=state)
    assert [each.to_json() for each in again.verdicts] == [each.to_json() for each in once.verdicts]


def test_a_hook_can_name_the_rule_for_its_run(tmp_path: Path) -> None:
    import torch

    from tdcore.hooks.pytorch import Hook

    with Hook(tmp_path, rules=["TDC212:StepOutlier_stddev=4", "overall_system_usage"]) as hook:
        hook.register_module(torch.nn.Linear(1, 1))
    named, problems = rules_of_run(open_sink(str(tmp_path)))
    assert problems == []
    assert [type(each).__name__ for each in named] == ["ProfilerReport", "OverallSystemUsage"]
    assert named[0] == ProfilerReport(parameters=("StepOutlier_stddev=4",))


def test_the_commands_print_the_tables_of_summaries_once(tmp_path: Path) -> None:
    place = str(waiting(tmp_path / "run"))
    printed = CliRunner().invoke(app, ["rules", "run", place, "-r", "TDC212", "--no-write"]).output
    assert printed.count("OverallSystemUsage: node-1") == 1
    assert printed.count("OverallFrameworkMetrics: phases of TRAIN") == 1
    assert re.search(r"cpu \(%\) +25\.0 +25\.0 +25\.0 +25\.0 +25\.0", printed)
    assert "ProfilerReport: rules" not in printed
    printed = CliRunner().invoke(app, ["rules", "run", place, "--no-write"]).output
    assert "OverallSystemUsage" not in printed
    document = json.loads(CliRunner().invoke(app, ["rules", "run", place, "-r", "TDC210", "--json"]).output)
    assert document["verdicts"][0]["summary"]["node-1"]["memory (%)"]["p50"] == 75.0


def test_a_sweep_has_a_column_for_the_rule_and_not_for_each_rule_that_it_combines(tmp_path: Path) -> None:
    waiting(tmp_path / "run")
    printed = CliRunner().invoke(app, ["rules", "sweep", str(tmp_path), "-r", "TDC212", "--no-write"]).output
    assert "ProfilerReport" in printed
    assert "InputBound" not in printed


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="gets 'stepoutlier_stddev' twice"):
        ProfilerReport(parameters=("StepOutlier_stddev=4", "stepoutlier_stddev=5"))
