"""`tdcore ls` prints the hook's notes: how the training ended, what was not captured, what is frozen."""

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


def test_ls_tells_what_was_noted_and_cuts_long_lists(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", np.ones(1), step=0)
    run.flush()
    run.end()
    notes = {
        "collections": {},
        "exception": "ValueError: no [luck]",
        "not_captured": ["update_ratio is not captured", "of one step no weights are captured"],
        "frozen": [f"Net_fc{i}.weight" for i in range(6)],
        "never_called": {"spare": "its parent does not call it"},
        "aliases": {"Net_a.weight": ["Net_b.weight"]},
        "capture_requests": [
            {
                "number": 0,
                "collection": "requested_0",
                "tensors": ["a", "b"],
                "level": "values",
                "steps": {"TRAIN": [7, 17]},
                "by": "view",
                "reason": "look",
            },
            {"number": 1, "ignored": "steps must be 1 or more"},
            {"number": 2, "kind": "profile", "steps": 1, "by": "cli", "reason": ""},
        ],
    }
    run.put("collections.json", {"format": 1, "attempts": {"0": notes}})
    lines = tdcore("ls", tmp_path).out.splitlines()
    assert any("ended by ValueError: no [luck], its record is complete" in line for line in lines)
    start = lines.index("aliases: Net_a.weight (Net_b.weight)")
    assert lines[start : start + 8] == [
        "aliases: Net_a.weight (Net_b.weight)",
        "capture requests: request 0 of view: values of 2 tensors (a, b) at TRAIN steps 7 to 16 (look)",
        "capture requests: request 1 was ignored: steps must be 1 or more",
        "capture requests: request 2 of cli: a profile of 1 step",
        "frozen: Net_fc0.weight, Net_fc1.weight, Net_fc2.weight, Net_fc3.weight, ... (6 in all)",
        "never called: spare (its parent does not call it)",
        "not captured: update_ratio is not captured",
        "not captured: of one step no weights are captured",
    ]
    found = tdcore("ls", tmp_path, "--json").json
    assert found["notes"]["never_called"] == notes["never_called"]
    assert found["attempts"][0]["exception"] == notes["exception"]


def test_ls_of_a_run_without_rows_has_the_reason(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.end()
    notes = {"collections": {}, "not_recorded": ["no step was saved: save_config selects no step"]}
    run.put("collections.json", {"format": 1, "attempts": {"0": notes}})
    lines = tdcore("ls", tmp_path).out.splitlines()
    assert lines[1].startswith("no steps saved; modes -")
    assert "not recorded: no step was saved: save_config selects no step" in lines
