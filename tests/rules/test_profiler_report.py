"""The profiler report: its files, its parameters, and its summaries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tdcore as td
from tdcore.cli.app import app
from tdcore.errors import ConfigError
from tdcore.rules import InputBound, StepOutlier, run
from tdcore.rules.base import judges_tensors
from tdcore.rules.library import RULES
from tdcore.rules.loading import load_rules, profiling_rules
from tdcore.rules.report import profiler_report
from tdcore.rules.report.framework_metrics import overall_framework_metrics
from tdcore.rules.report.system_usage import overall_system_usage
from tdcore.rules.trace import Trace
from tests.rules.system_samples import gpu, judged_trace_in_a_run
from tests.rules.timed_steps import even_steps, with_samples

OF_PROFILER = [rule.__name__ for rule in RULES.values() if not judges_tensors(rule)]


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
    assert set(documents) == {*OF_PROFILER, "OverallSystemUsage", "OverallFrameworkMetrics"}
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
    assert "Phases of TRAIN" in text


def test_a_run_without_issues_has_a_report_too(tmp_path: Path) -> None:
    report = profiler_report(waiting(tmp_path, data=1.0))
    assert not report.has_issues
    assert report.to_json()["status"] == "NoIssuesFound"
    judged_trace_in_a_run(InputBound(), tmp_path / "empty", Trace())
    text = profiler_report(tmp_path / "empty").to_html()
    assert "The run has no times of steps." in text
    assert "The run has no system samples." in text


def test_parameters_have_the_name_of_their_rule_in_any_case() -> None:
    rules = {type(each).__name__: each for each in profiling_rules({"StepOutlier_stddev": "4"})}
    assert list(rules) == OF_PROFILER
    assert rules["StepOutlier"] == StepOutlier(stddev=4.0)
    loaded = load_rules(
        "profiler_report:stepoutlier_stddev=4,INPUTBOUND_min_wait_ms=9,opt_out_telemetry=true"
    )
    assert StepOutlier(stddev=4.0) in loaded
    assert InputBound(min_wait_ms=9.0) in loaded


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
    assert [verdict.rule for verdict in report.verdicts] == OF_PROFILER


def test_a_configuration_file_can_name_the_report(tmp_path: Path) -> None:
    from tdcore.rules.config_file import load_rules_config

    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n  - profiler_report: {StepOutlier_stddev: 4}\n")
    assert StepOutlier(stddev=4.0) in load_rules_config(path).rules


def test_the_use_of_the_machines_is_summarized_by_host(tmp_path: Path) -> None:
    usage = overall_system_usage(td.create_trial(waiting(tmp_path)).system())
    assert list(usage) == ["node-1"]
    assert usage["node-1"]["cpu (%)"] == dict.fromkeys(("max", "p99", "p95", "p50", "min"), 25.0)
    assert usage["node-1"]["busiest core (%)"]["max"] == 30.0
    assert usage["node-1"]["memory (%)"]["p50"] == 75.0
    assert usage["node-1"]["disk read (MiB/s)"]["min"] == 2.0
    assert usage["node-1"]["gpu0 memory (%)"]["max"] == 25.0
    assert "network sent (MiB/s)" not in usage["node-1"]


def test_the_time_of_the_steps_is_summarized_by_mode_and_phase(tmp_path: Path) -> None:
    found = overall_framework_metrics(td.create_trial(waiting(tmp_path)).steps_time())
    train = found["modes"]["TRAIN"]
    assert (train["steps"], train["step_ms"]["p50"]) == (600, pytest.approx(109.0))
    assert train["phases"]["data"]["percent"] == pytest.approx(100 * 60 / 109)
    assert sum(each["percent"] for each in train["phases"].values()) == pytest.approx(100)
    assert found["modes"]["EVAL"]["seconds"] == pytest.approx(0.1)
    assert sum(each["percent"] for each in found["modes"].values()) == pytest.approx(100)
