"""`tdcore ls` and `tdcore show` with names that contain the markup or emoji codes of the terminal library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import Command
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def test_brackets_are_shown_as_they_are(tdcore: Command, tmp_path: Path) -> None:
    place = tmp_path / "lr[a=1]"
    run = RunWriter(place)
    for name in ("out[relu]", "out[/x]"):
        for call in (0, 1):
            run.add(name, np.ones(2, np.float32), step=0, call=call)
    run.flush()
    run.end(clean=False, reason="[disk] full")
    listed = tdcore("ls", place).out
    assert "lr[a=1]" in listed
    assert "[disk] full" in listed
    one = tdcore("show", place, "out[/x]").out
    for text in (listed, one, tdcore("show", place).out):
        assert "out[/x]" in text
    assert "out[relu]" in listed
    assert "magnitudes at step 0, call 1: " in one
    assert "lr[a=1]" in tdcore("ls", tmp_path).out.replace("\n", "")


def test_names_of_emoji_are_shown_as_they_are(tdcore: Command, tmp_path: Path) -> None:
    place = tmp_path / "lr:fire:run"
    run = RunWriter(place)
    run.add("out:heart:", np.ones(2, np.float32), step=0)
    run.flush()
    run.end(clean=False, reason="a :bug: in step 3")
    for text in (tdcore("ls", place).out, tdcore("show", place).out, tdcore("ls", tmp_path).out):
        assert "lr:fire:run" in text
    assert "a :bug: in step 3" in tdcore("ls", place).out
    assert "out:heart:" in tdcore("show", place).out
