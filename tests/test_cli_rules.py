"""`tdcore rules`: the rules of a run, --config, plan, and readable output with many rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.cli.rules_output import LiveFindings
from tdcore.config.hook_json import parse_hook_config
from tdcore.rules import RULES, DeadRelu, Engine, VanishingGradient
from tdcore.rules.loading import all_rules
from tdcore.rules.planning import plan
from tdcore.rules.trace import Trace
from tests.rules.judging import LookByLook
from tests.test_cli import Command, write
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


def made_with(place: Path, rules: Any) -> Path:
    """Write a run whose hook was given these rules."""
    write(place)
    document = json.loads((place / "run.json").read_text())
    document["attempts"][-1]["configuration"] = {"rules": rules}
    (place / "run.json").write_text(json.dumps(document))
    return place


def rules_of(report: Any) -> list[str]:
    return [verdict["rule"] for verdict in report["verdicts"]]


# Which rules. ----------------------------------------------------------------------------------------------


def test_without_a_rule_a_run_is_judged_by_those_that_its_hook_was_given(
    tdcore: Command, tmp_path: Path
) -> None:
    result = tdcore("rules", "run", made_with(tmp_path, ["vanishing_gradient:threshold=2"]), "--json")
    assert result.code == 1
    assert rules_of(result.json) == ["VanishingGradient"]
    assert result.json["verdicts"][0]["parameters"] == {"threshold": "2.0"}


def test_a_rule_that_is_given_replaces_those_of_the_run(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", made_with(tmp_path, ["dead_relu"]), "-r", "TDC102", "--json")
    assert rules_of(result.json) == ["ExplodingTensor"]


def test_code_that_a_run_names_is_never_loaded_but_reported(tdcore: Command, tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text("raise SystemExit('loaded')")
    specs = [
        f"{evil}::Rule",
        str(evil),
        "evil:Rule",
        "os:system",
        3,
        "TDC101:nonsense=1",
        "vanishing_gradient",
    ]
    result = tdcore("rules", "run", made_with(tmp_path / "run", specs), "--json")
    assert result.code == 3
    assert rules_of(result.json) == ["VanishingGradient"]
    assert len(result.json["left_out"]) == 6
    assert "which is not a rule of the table; name it with --rule" in result.json["left_out"][0]
    assert "has no parameter 'nonsense'" in result.json["left_out"][5]


@pytest.mark.parametrize("rules", [[], None])
def test_a_run_that_names_no_rule_is_judged_by_all(tdcore: Command, tmp_path: Path, rules: Any) -> None:
    result = tdcore("rules", "run", made_with(tmp_path, rules), "--json")
    assert result.code == 1  # the weight of this run never changes
    assert rules_of(result.json) == [type(rule).__name__ for rule in all_rules()]
    assert not any(verdict["asked"] for verdict in result.json["verdicts"])


def test_a_run_that_names_nothing_but_what_is_no_rule_is_judged_by_all_and_says_so(
    tdcore: Command, tmp_path: Path
) -> None:
    result = tdcore("rules", "run", made_with(tmp_path, "x"), "--json")
    assert (result.code, len(result.json["verdicts"]), len(result.json["left_out"])) == (
        1,
        len(all_rules()),
        1,
    )


def test_all_means_every_rule_and_keeps_the_parameters_of_those_that_are_named(
    tdcore: Command, tmp_path: Path
) -> None:
    rules = ("-r", "ALL", "-r", "vanishing_gradient:threshold=2")
    result = tdcore("rules", "run", write(tmp_path), *rules, "--json")
    assert (result.code, len(result.json["verdicts"])) == (1, len(all_rules()))
    asked = [each for each in result.json["verdicts"] if each["asked"]]
    assert [(each["rule"], each["parameters"]) for each in asked] == [
        ("VanishingGradient", {"threshold": "2.0"})
    ]


def test_rules_that_nobody_named_and_cannot_judge_are_two_lines(tdcore: Command, tmp_path: Path) -> None:
    out = tdcore("rules", "run", write(tmp_path)).out
    assert "not evaluable here (--verbose shows what each needs): DeadRelu, " in out
    assert "does not apply to this run (--verbose shows why): TreeDepth, FeatureImportanceOverweight" in out
    assert "TDC104" not in out
    assert "TDC115" not in out
    assert "The rules that are not evaluable need" not in out


def test_verbose_lists_each_rule_with_the_reason(tdcore: Command, tmp_path: Path) -> None:
    out = tdcore("rules", "run", write(tmp_path), "--verbose").out
    assert "does not apply: it judges trainings of xgboost or lightgbm, and this one is of tests" in out
    assert "TDC104" in out
    assert "CollectionConfig(name=" in out


def test_a_rule_that_was_named_and_does_not_apply_is_listed_and_3(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", write(tmp_path), "-r", "tree_depth")
    assert result.code == 3
    assert "TDC115   TreeDepth   does not apply: it judges trainings of xgboost or lightgbm" in result.out


def test_a_run_that_no_rule_can_judge_is_3(tdcore: Command, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    writer.add("m", 1.0, step=0, kind="metric", stats=False, payload=False)
    writer.flush()
    writer.end()
    result = tdcore("rules", "run", tmp_path)
    assert result.code == 3, result.out


def test_following_prints_a_finding_once_with_how_often_it_was_found(tdcore: Command, tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    sizes = [1e-9, 1e-9, 1e-9, 1e-9]
    for step, size in enumerate(sizes):
        writer.add("gradient/a.weight", size * np.ones(4), step=step, kind="gradient", payload=False)
        if step > 1:
            writer.add("gradient/b.weight", size * np.ones(4), step=step, kind="gradient", payload=False)
        writer.flush()
    writer.end()
    out = tdcore("rules", "run", tmp_path, "-r", "TDC101", "--live", "--until-end").out
    assert out.count("gradient/a.weight: mean |gradient|") == 1
    assert out.count("gradient/b.weight: mean |gradient|") == 1
    assert "(4 times, last at step 3)" in out
    assert "(at step 2; 2 times, last at step 3)" in out


def test_a_finding_that_continued_after_it_was_printed_is_counted_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    live = LiveFindings()
    looks = Engine(
        LookByLook(
            Trace()
            .add(0, "gradient/a", "gradient", [1e-9])
            .add(1, "gradient/a", "gradient", [1e-9])
            .add(1, "gradient/b", "gradient", [1e-9])
            .add(2, "gradient/a", "gradient", [1e-9])
            .add(3, "gradient/b", "gradient", [1e-9])
        ),
        [VanishingGradient()],
    )
    for _ in range(5):
        looks.step()
        live(looks.news)
    assert capsys.readouterr().out.count("mean |gradient|") == 2
    live.print_again()
    printed = capsys.readouterr().out
    assert "VanishingGradient again 3 times in 2 tensors, last at step 3, worker_0" in printed


def test_without_a_rule_a_run_that_has_not_begun_is_waited_for(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", tmp_path / "none", "--live", "--start-timeout", 0)
    assert result.code == 3
    assert "no run has begun" in result.err
    result = tdcore("rules", "run", tmp_path / "none")
    assert result.code == 3
    assert "there is no run at" in result.err


def test_a_file_gives_all_its_rules(tdcore: Command, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from tdcore.rules.legacy import Rule\n"
        "class First(Rule):\n"
        "    def invoke_at_step(self, step):\n"
        "        return False\n"
        "class Second(First):\n"
        "    pass\n"
    )
    result = tdcore("rules", "run", write(tmp_path / "run"), "-r", own, "--json")
    assert rules_of(result.json) == ["First", "Second"]


def test_steps_can_be_bounded(tdcore: Command, tmp_path: Path) -> None:
    bounds = ("--start-step", 5, "--end-step", 20)
    result = tdcore("rules", "run", write(tmp_path, 1e-9), "-r", "TDC101", *bounds, "--json")
    assert [finding["step"] for finding in result.json["verdicts"][0]["findings"]] == [10]


def test_a_state_lets_the_next_command_go_on(tdcore: Command, tmp_path: Path) -> None:
    arguments = ("rules", "run", write(tmp_path / "run"), "-r", "TDC101", "--json")
    first = tdcore(*arguments, "--state", tmp_path / "state").json
    again = tdcore(*arguments, "--state", tmp_path / "state").json
    assert first["verdicts"] == again["verdicts"]
    bounded = tdcore(*arguments, "--state", tmp_path / "state", "--start-step", 5)
    assert bounded.code == 2
    assert "is of other rules or parameters" in bounded.err


# --config. -------------------------------------------------------------------------------------------------


def test_rules_actions_and_options_come_from_a_file(tdcore: Command, tmp_path: Path) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text(
        "rules: [{vanishing_gradient: {threshold: 2}}]\nactions: [stop]\nlive: true\ntimeout: 60\n"
    )
    run = write(tmp_path / "run", end=False)
    result = tdcore("rules", "run", run, "--config", config)
    assert result.code == 1
    assert "VanishingGradient at step 0" in result.out
    assert json.loads((run / "control" / "stop-0000.json").read_text())["step"] == 0


def test_what_is_given_goes_before_the_file_and_rules_are_joined(tdcore: Command, tmp_path: Path) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text("rules: [exploding_tensor]\nend_step: 1\n")
    arguments = ("--config", config, "-r", "TDC101:threshold=2", "--end-step", 15, "--json")
    result = tdcore("rules", "run", write(tmp_path / "run"), *arguments)
    assert rules_of(result.json) == ["VanishingGradient", "ExplodingTensor"]
    (finding,) = result.json["verdicts"][0]["findings"]
    assert (finding["step"], finding["last_step"]) == (0, 10)


def test_a_file_without_rules_leaves_them_to_the_run(tdcore: Command, tmp_path: Path) -> None:
    config = tmp_path / "rules.json"
    config.write_text('{"ended": true}')
    result = tdcore("rules", "run", made_with(tmp_path / "run", ["TDC101"]), "--config", config, "--json")
    assert rules_of(result.json) == ["VanishingGradient"]


def test_a_wrong_file_is_2(tdcore: Command, tmp_path: Path) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text("rulez: []")
    result = tdcore("rules", "run", write(tmp_path / "run"), "--config", config)
    assert result.code == 2
    assert "rules.yaml: unknown key 'rulez'; did you mean 'rules'?" in result.err


# plan. -----------------------------------------------------------------------------------------------------


def test_plan_prints_python_that_says_which_tensors_are_written_whole(tdcore: Command) -> None:
    text = tdcore("rules", "plan", "vanishing_gradient:threshold=1e-6", "dead_relu").out
    assert "# Whole tensors are written for relu_output, statistics for the others." in text
    assert 'Hook("runs/demo", rules=["vanishing_gradient:threshold=1e-06", "dead_relu"])' in text
    assert 'name="gradients",' in text
    compile(text, "plan", "exec")
    assert "# Statistics only" in tdcore("rules", "plan", "TDC101").out


@pytest.mark.parametrize("out", ["runs/x", "s3://bucket/x"])
def test_plan_prints_json_that_a_hook_reads(tdcore: Command, tmp_path: Path, out: str) -> None:
    config = tmp_path / "rules.yaml"
    config.write_text("rules: [dead_relu]")
    printed = tdcore("rules", "plan", "TDC101", "--config", config, "--out", out, "--json").json
    read = parse_hook_config(printed)
    assert (read.out_dir, read.collections) == (out, plan([VanishingGradient(), DeadRelu()]))


def test_plan_without_rules_is_2(tdcore: Command) -> None:
    result = tdcore("rules", "plan")
    assert result.code == 2
    assert "no rule was given" in result.err


# Output. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_all_rules_fits_the_terminal_and_names_each_rule_in_one_piece(
    tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rules = [argument for code in RULES for argument in ("-r", code)]
    result = tdcore("rules", "run", write(tmp_path, 1e-9), *rules)
    table, _, fixes = result.out.partition("\nThe rules that are not evaluable need")
    assert max(len(line) for line in table.splitlines() if not line.startswith(str(tmp_path))) <= width
    for code, rule in RULES.items():
        assert any(line.startswith(f"{code} ") and rule.__name__ in line for line in table.splitlines())
    assert "CollectionConfig(" in fixes
    assert all(line.count("CollectionConfig(") <= 1 for line in fixes.splitlines())


def test_the_gravest_verdicts_come_first(tdcore: Command, tmp_path: Path) -> None:
    rules = ("-r", "exploding_tensor", "-r", "dead_relu", "-r", "vanishing_gradient")
    out = tdcore("rules", "run", write(tmp_path, 1e-9), *rules).out
    table = out[out.index("verdict") :]
    places = [table.index(name) for name in ("TDC101", "TDC104", "TDC102")]
    assert places == sorted(places)


def test_a_rule_that_a_running_run_does_not_capture_for_is_told_of_at_once(
    tdcore: Command, tmp_path: Path
) -> None:
    writer = RunWriter(tmp_path)
    for step in range(3):
        writer.add("w.weight", np.ones(2), step=step)
    writer.flush()
    entry = {"include_regex": ["^(?!gradient).*weight"], "tensor_names": [], "included": True}
    writer.put("collections.json", {"format": 1, "attempts": {"0": {"collections": {"weights": entry}}}})
    result = tdcore("rules", "run", tmp_path, "-r", "TDC101", "--live", "--timeout", 0)
    assert result.code == 3
    assert "VanishingGradient is not evaluable so far: the run does not save gradients" in result.out


@pytest.mark.parametrize("width", [80, 120])
def test_the_list_of_rules_fits_the_terminal(
    tdcore: Command, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = tdcore("rules", "list").out
    assert max(map(len, out.splitlines())) <= width
    assert all(rule.__name__ in out for rule in RULES.values())


def test_explaining_a_rule_that_is_not_there_says_which_may_be_meant(tdcore: Command) -> None:
    result = tdcore("rules", "explain", "vanishing_gradent")
    assert result.code == 2
    assert "did you mean VanishingGradient?" in result.err
