"""Actions and a run of the rules: messages after a restart, an interruption, and without write access."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.actions import RequestStop
from tdcore.errors import RunCorrupt
from tdcore.rules import ExplodingTensor, Finding, run
from tdcore.rules.engine import Engine
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import Source
from tdcore.rules.state import StateFile
from tdcore.sinks import Sink
from tests.actions.test_notices import Kept
from tests.trial.writer import RunWriter


class Held:
    """An action whose call returns only after an event."""

    name = "kept"
    background = True

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        self.begun.set()
        assert self.let_go.wait(60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A live run in which two tensors have exploded."""
    writer = RunWriter(tmp_path / "run")
    for name in ("a", "b"):
        writer.add(name, np.array([1.0, float("nan")]), step=0, kind="weight")
    writer.add("a", np.array([1.0]), step=1, kind="weight")
    writer.flush()
    return tmp_path / "run"


def told(place: Path, state: Path, *actions: Any) -> list[str]:
    """Judge the run once more and return the problems."""
    return list(run(place, [ExplodingTensor()], actions=actions, state=state).problems)


def tensors(action: Kept) -> list[list[str]]:
    return [[finding.tensor for finding in notice.findings] for notice in action.notices]


def test_a_message_that_failed_to_the_end_is_told_by_the_next_start(place: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert told(place, state, Kept(failures=9)) == [
        "action kept failed: no network", "action kept: 2 findings were not reported",
    ]  # fmt: skip
    second, third = Kept(), Kept()
    assert told(place, state, second) == []
    assert told(place, state, third) == []
    assert (tensors(second), tensors(third)) == ([["a", "b"]], [])


def test_a_message_under_way_when_the_runner_was_killed_is_told_by_the_next_start(
    place: Path, tmp_path: Path
) -> None:
    source, held = RunSource(place), Held()
    engine = Engine(source, [ExplodingTensor()], actions=[held])
    state_file = StateFile(tmp_path / "state", engine, source)
    state_file.before_poll()
    engine.step()
    assert held.begun.wait(60)
    state_file.after_poll(engine.changed)  # the process is killed here
    second = Kept()
    told(place, tmp_path / "state", second)
    assert tensors(second) == [["a", "b"]]
    held.let_go.set()
    engine.close()


def test_what_was_told_between_two_looks_is_saved_though_nothing_new_was_judged(
    place: Path, tmp_path: Path
) -> None:
    source, kept = RunSource(place), Kept()
    engine = Engine(source, [ExplodingTensor()], actions=[kept])
    state_file = StateFile(tmp_path / "state", engine, source, clock=iter(range(0, 10**6, 100)).__next__)
    for _ in range(2):
        state_file.before_poll()
        engine.step()
        for each in threading.enumerate():
            if each.name.startswith("tdcore action"):
                each.join()
        state_file.after_poll(engine.changed)  # the process is killed here
    second = Kept()
    told(place, tmp_path / "state", second)
    assert (tensors(kept), tensors(second)) == ([["a", "b"]], [])


def test_what_was_found_before_the_run_could_not_be_read_any_more_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, looks = Kept(), [0]
    step = Engine.step

    def breaks(engine: Engine, **options: Any) -> list[Finding]:
        looks[0] += 1
        if looks[0] == 2:
            raise RunCorrupt("an index file is damaged")
        return step(engine, **options)

    monkeypatch.setattr(Engine, "step", breaks)
    slow = threading.Event()
    monkeypatch.setattr(kept, "send", lambda notice: (slow.wait(0.3), Kept.send(kept, notice))[1])
    with pytest.raises(RunCorrupt):
        run(place, [ExplodingTensor()], until_end=True, actions=[kept], poll_interval=timedelta(0))
    assert tensors(kept) == [["a", "b"]]


def test_a_training_is_asked_to_stop_though_findings_are_not_written(place: Path) -> None:
    report = run(place, [ExplodingTensor()], actions=[RequestStop()], write_findings=False)
    assert report.problems == ()
    assert (place / "control/stop-0000.json").exists()
    assert not (place / "findings").exists()
