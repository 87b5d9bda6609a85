"""--attempt of the commands that show a run, on a folder with two trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import Command
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


@pytest.fixture
def twice(tmp_path: Path) -> Path:
    """Write attempt 0 with four steps of ones, and attempt 1 with two steps of twos and another tensor."""
    for attempt, steps in ((0, 4), (1, 2)):
        writer = RunWriter(tmp_path, attempt=attempt)
        for step in range(steps):
            writer.add("w", np.full(2, attempt + 1.0), step=step)
        if attempt:
            writer.add("new", np.ones(2), step=0)
        writer.flush()
        writer.end(drops={"ring_full": {"tensors": attempt + 1, "bytes": 8}})
    return tmp_path


@pytest.mark.parametrize(("attempt", "steps", "drops"), [(0, 4, 1), (1, 2, 2)])
def test_ls_lists_one_attempt(tdcore: Command, twice: Path, attempt: int, steps: int, drops: int) -> None:
    found = tdcore("ls", twice, "--attempt", attempt, "--json").json
    assert [each["attempt"] for each in found["attempts"]] == [attempt]
    assert found["steps"] == steps
    assert found["drops"]["ring_full"]["tensors"] == drops
    assert ("new" in {each["tensor"] for each in found["tensors"]}) == bool(attempt)


def test_ls_of_a_folder_of_runs_has_no_attempt(tdcore: Command, twice: Path) -> None:
    RunWriter(twice / "below" / "run").end()
    result = tdcore("ls", twice / "below", "--attempt", 0)
    assert result.code == 2
    assert "is a folder of runs; give one of the runs" in result.err


@pytest.mark.parametrize("attempt", [0, 1])
def test_show_shows_one_attempt(tdcore: Command, twice: Path, attempt: int) -> None:
    rows = tdcore("show", twice, "w", "--attempt", attempt, "--json").json["rows"]
    assert {row["mean"] for row in rows} == {attempt + 1.0}


@pytest.mark.parametrize("command", [["ls"], ["show"], ["rules", "run"]])
def test_an_attempt_that_there_is_not_is_3_and_names_those_there_are(
    tdcore: Command, twice: Path, command: list[str]
) -> None:
    result = tdcore(*command, twice, "--attempt", 7)
    assert result.code == 3
    assert "it has 0, 1" in result.err


@pytest.mark.parametrize("command", [["ls"], ["show"]])
def test_a_run_that_goes_on_is_said_to_be_incomplete(
    tdcore: Command, tmp_path: Path, command: list[str]
) -> None:
    writer = RunWriter(tmp_path)
    writer.add("w", np.ones(2), step=0)
    writer.flush()
    assert "the run is still being written" in tdcore(*command, tmp_path).out
    assert "It may still appear" in tdcore("show", tmp_path, "no_such").err
    writer.end()
    assert "still being written" not in tdcore(*command, tmp_path).out
