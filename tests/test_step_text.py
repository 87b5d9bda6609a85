"""Steps in messages: the number within the mode comes first, then the global step where it differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.actions.base import Notice
from tdcore.rules import run
from tdcore.text.step_text import step_text
from tests.test_cli import Command
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ((40, "TRAIN", 40), "step 40"),
        ((55, "TRAIN", 40), "TRAIN step 40 (global 55)"),
        ((43, "EVAL", 3), "EVAL step 3 (global 43)"),
        ((3, "EVAL", 3), "EVAL step 3"),
        ((3, "GLOBAL", 3), "step 3"),
        ((55, "", None), "global step 55"),
        ((40, "TRAIN", 40, 2), "step 40 (epoch 2)"),
        ((55, "TRAIN", 40, 2), "TRAIN step 40 (epoch 2, global 55)"),
        ((3, "EVAL", 3, 0), "EVAL step 3 (epoch 0)"),
        ((55, "", None, 2), "global step 55 (epoch 2)"),
    ],
)
def test_a_step_is_named_as_its_mode_counts_with_the_global_one_where_it_differs(
    step: Any, text: str
) -> None:
    assert step_text(*step) == text


def evaluating(place: Path) -> Path:
    """Write a run of 3 training, 5 evaluation and 2 training steps; the gradient vanishes in the last 2."""
    writer = RunWriter(place)
    counts = {"TRAIN": 0, "EVAL": 0}
    for step, mode in enumerate(["TRAIN"] * 3 + ["EVAL"] * 5 + ["TRAIN"] * 2):
        where: Any = {"step": step, "mode": mode, "mode_step": counts[mode]}
        counts[mode] += 1
        writer.add("fc.weight", np.ones(4, dtype=np.float32), **where)
        if mode == "TRAIN":
            size = 1e-9 if step > 3 else 1.0
            writer.add("gradient/fc.weight", size * np.ones(4), kind="gradient", payload=False, **where)
    writer.flush()
    writer.end()
    return place


def test_findings_and_verdicts_name_the_step_of_the_mode(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("rules", "run", evaluating(tmp_path), "-r", "vanishing_gradient")
    assert "VanishingGradient at TRAIN step 3 (global 8), worker_0" in result.out
    assert "issue: 1 finding (2 times), first at TRAIN step 3 (global 8)" in result.out


def test_json_has_both_numbers_of_a_step(tdcore: Command, tmp_path: Path) -> None:
    verdict = tdcore("rules", "run", evaluating(tmp_path), "-r", "TDC101", "--json").json["verdicts"][0]
    places = [(each["step"], each["mode"], each["mode_step"]) for each in verdict["findings"]]
    assert places == [(8, "TRAIN", 3)]
    found = verdict["findings"][0]
    assert (found["last_step"], found["last_mode_step"], found["count"]) == (9, 4, 2)
    assert (verdict["last_step"], verdict["last_mode"], verdict["last_mode_step"]) == (9, "TRAIN", 4)


def test_a_notice_names_the_step_of_the_mode(tmp_path: Path) -> None:
    report = run(evaluating(tmp_path), ["vanishing_gradient"])
    notice = Notice(run="demo", findings=tuple(report.findings))
    assert "VanishingGradient (TDC101) at TRAIN step 3 (global 8) of attempt 0" in notice.text


def test_ls_lists_the_steps_of_each_mode(tdcore: Command, tmp_path: Path) -> None:
    out = tdcore("ls", evaluating(tmp_path)).out
    assert "steps TRAIN 0..4 (5), EVAL 0..4 (5), global 0..9 saved" in out
    found = tdcore("ls", tmp_path, "--json").json
    assert found["mode_steps"]["TRAIN"] == {"first": 0, "last": 4, "steps": 5}
    assert (found["first_step"], found["last_step"], found["steps"]) == (0, 9, 10)
    (gradient, weight) = sorted(found["tensors"], key=lambda each: str(each["kind"]))
    assert list(gradient["mode_steps"]) == ["TRAIN"]
    assert list(weight["mode_steps"]) == ["TRAIN", "EVAL"]


def test_show_counts_as_the_mode_does_and_takes_a_step_of_a_mode(tdcore: Command, tmp_path: Path) -> None:
    arguments = ("show", evaluating(tmp_path), "fc.weight", "--mode", "eval", "--step", 1)
    assert "magnitudes at EVAL step 1 (global 4)" in tdcore(*arguments).out
    found = tdcore(*arguments, "--json").json
    assert [(row["step"], row["mode_step"]) for row in found["rows"]] == [(3 + n, n) for n in range(5)]
    assert {key: found["histogram"][key] for key in ("step", "mode", "mode_step")} == {
        "step": 4,
        "mode": "EVAL",
        "mode_step": 1,
    }


def test_show_refuses_a_mode_that_there_is_not(tdcore: Command, tmp_path: Path) -> None:
    result = tdcore("show", evaluating(tmp_path), "--mode", "test")
    assert (result.code, "it can be train, eval, predict, global" in result.err) == (2, True)
