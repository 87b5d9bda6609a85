"""diagnose() and `tdcore diagnose` on recorded trainings with a fault, and on one without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdcore.cli.app import main
from tdcore.errors import RunNotFound
from tdcore.rules.diagnosis import diagnose
from tests.faults.training.cases import case_of
from tests.faults.training.judge import play


def printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str]:
    """Exit code and output of the command."""
    monkeypatch.setattr("sys.argv", ["tdcore", "diagnose", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_a_fault_is_named_first_with_its_place_and_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = play(case_of("mlp: softmax before cross-entropy (seed 0)"), tmp_path)
    assert outcome.causes[0] == "softmax before the loss"
    run = str(tmp_path / "run")
    code, text = printed(capsys, monkeypatch, run)
    assert code == 1
    assert "1. softmax before the loss (certain), from TRAIN step 0 on" in text
    assert "CrossEntropyLoss_input_0" in text
    assert "Remove the softmax" in text
    code, text = printed(capsys, monkeypatch, run, "--json")
    assert code == 1
    found = json.loads(text)["causes"][0]
    assert (found["cause"], found["mode_step"]) == ("softmax before the loss", 0)
    assert found["tensors"] == ["CrossEntropyLoss_input_0"]


def test_a_healthy_training_has_no_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert play(case_of("mlp: healthy (seed 0)"), tmp_path).causes == ()
    code, text = printed(capsys, monkeypatch, str(tmp_path / "run"))
    assert code == 0
    assert "no known cause was found" in text


def test_a_place_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        diagnose(tmp_path)
