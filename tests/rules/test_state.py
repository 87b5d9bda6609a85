"""A killed runner that starts again with its state continues where it stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError, SinkError
from tdcore.format.layout import EPOCH_SCALAR
from tdcore.rules import (
    RULES,
    DeadRelu,
    Engine,
    ExplodingTensor,
    Finding,
    Report,
    RuleProtocol,
    VanishingGradient,
    run,
    safe_pickle,
)
from tdcore.rules import state as state_module
from tdcore.rules.cases import CASES
from tdcore.rules.run_source import RunSource
from tdcore.rules.state import StateFile
from tests.rules.a_rule_of_mine import EveryNth
from tests.rules.judging import same_in_any_cuts
from tests.trial.writer import RunWriter


def flushed(writer: RunWriter, *steps: int, tensors: int = 3) -> None:
    for step in steps:
        for at in range(tensors):
            writer.add(f"w{at}", np.full(2, np.nan if step == 3 else step, np.float32), step=step)
        writer.flush()


def judged(place: Path, state: Path | None = None, *rules: RuleProtocol, **options: Any) -> Report:
    return run(place, rules or [EveryNth(nth=2), ExplodingTensor()], state=state, **options)


def same(report: Report, other: Report) -> bool:
    return report.to_json() == other.to_json()


class Told:
    """An action that records its findings; fails in the given ways."""

    name = "told"

    def __init__(self, error: BaseException | None = None) -> None:
        self.findings: list[Finding] = []
        self.error = error

    def act(self, findings: Sequence[Finding], source: Any, sink: Any) -> None:
        self.findings += findings
        if self.error is not None:
            raise self.error


def test_looks_over_several_starts_say_what_one_look_says(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    for steps in ((0, 1), (2,), (), (3, 4, 5), (6,)):
        flushed(writer, *steps)
        judged(place, state)
        if 2 in steps:
            writer.merge(segments=True)
    writer.end()
    report = judged(place, state)
    assert same(report, judged(place))
    assert report.verdicts[0].judged == report.rows == 7 * 3
    assert report.verdicts[1].finding_count == 3


def test_a_step_that_was_seen_in_half_is_judged_whole_after_the_restart(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    flushed(writer, 0)
    writer.add("early", np.ones(2), step=1)
    writer.flush()
    assert judged(place, state).rows == 3
    writer.add("late", np.ones(2), step=1)
    writer.flush()
    writer.merge()
    assert judged(place, state).rows == 3
    flushed(writer, 2)
    assert judged(place, state).rows == 5


def test_rows_that_were_judged_are_not_read_again(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run")
    flushed(writer, *range(5))
    first = RunSource(tmp_path / "run")
    first.next(["name", "step"])
    flushed(writer, 5)
    second = RunSource(tmp_path / "run")
    second.resume(first.position())
    table = second.next(["name", "step"]).table
    assert table.column("step").to_pylist() == [4, 4, 4]
    assert len(second._index) == 6


def test_values_that_were_merged_meanwhile_are_found_after_the_restart(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)

    def relu(step: int) -> None:
        writer.add("relu_output", np.zeros((4, 3), np.float32), step=step, kind="output")
        writer.flush()

    for step in (0, 1, 2):
        relu(step)
    judged(place, state, DeadRelu())
    source = RunSource(place)
    tickets = {("worker_0", 0): [(0, 1)]}
    source.resume({"run_id": "0123", "tickets": tickets, "first_attempt": 0, "whole": {}})
    relu(3)
    batch = source.next(["name", "step"])
    writer.merge(segments=True)
    np.testing.assert_array_equal(batch.payload(0), np.zeros((4, 3)))
    writer.end()
    report = judged(place, state, DeadRelu())
    assert [(f.step, f.last_step, f.count) for f in report.findings] == [(0, 3, 4)]


def test_several_workers_and_attempts_each_have_their_place(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writers = [RunWriter(place, worker=f"worker_{rank}", world_size=2) for rank in (0, 1)]
    flushed(writers[0], 0, 1)
    judged(place, state, attempt="all")
    flushed(writers[1], 0, 1, 2)
    judged(place, state, attempt="all")
    writers += [RunWriter(place, attempt=1)]
    flushed(writers[2], 0)
    for writer in writers:
        writer.end()
    report = judged(place, state, attempt="all")
    assert report.verdicts[0].judged == 6 * 3
    assert report.verdicts[0].occurrences == judged(place, None, attempt="all").verdicts[0].occurrences


def test_a_state_of_other_rules_parameters_or_attempts_is_refused(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 0, 1)
    judged(place, state, ExplodingTensor())
    before = state.read_bytes()
    for rule in (EveryNth(), ExplodingTensor(only_nan=True)):
        with pytest.raises(ConfigError, match=r"is of other rules or parameters: it has ExplodingTensor"):
            judged(place, state, rule)
    with pytest.raises(ConfigError, match="attempt 0"):
        judged(place, state, ExplodingTensor(), attempt=0)
    assert state.read_bytes() == before


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for name in ("one", "other"):
        writer = RunWriter(tmp_path / name)
        flushed(writer, 0, 1)
    document = json.loads((tmp_path / "other" / "run.json").read_text())
    writer.put("run.json", document | {"run_id": "4567"})
    judged(tmp_path / "one", state)
    with pytest.raises(ConfigError, match=r"from run 0123, but .*other is run 4567"):
        judged(tmp_path / "other", state)


def test_a_run_that_takes_the_place_of_another_while_it_is_followed_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "run"
    flushed(RunWriter(place), 0, 1)
    source = RunSource(place)
    engine = Engine(source, [EveryNth(nth=1)])
    state_file = StateFile(tmp_path / "state", engine, source)
    for _ in range(2):
        state_file.before_poll()
        engine.step()
        state_file.after_poll(engine.changed)
    shutil.rmtree(place)
    resumed = RunSource(place)
    resumed.resume(source.position())
    assert not resumed.begun()
    writer = RunWriter(place, attempt=1)
    writer.put("run.json", json.loads((place / "run.json").read_text()) | {"run_id": "4567"})
    flushed(writer, 0, 1)
    for each in (source, resumed):
        with pytest.raises(ConfigError, match=r"from run 0123, but .* is run 4567"):
            each.next(["step"])


def test_one_runner_at_a_time_has_a_state(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 3, 4)
    refused = []

    class Another(Told):
        """A second runner while the first one acts."""

        def act(self, findings: Sequence[Finding], source: Any, sink: Any) -> None:
            with pytest.raises(ConfigError, match="is in use by another runner") as error:
                judged(place, state, ExplodingTensor())
            refused.append(error)

    report = judged(place, state, ExplodingTensor(), actions=[Another()])
    assert report.problems == ()
    assert len(refused) == 1
    assert same(judged(place, state, ExplodingTensor()), report)


def test_a_state_that_could_not_be_saved_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 0, 1)
    write, full = state_module._write, [True]

    def refuse_once(path: Path, parts: list[bytes]) -> None:
        if full.pop() if full else False:
            raise OSError("No space left on device")
        write(path, parts)

    monkeypatch.setattr(state_module, "_write", refuse_once)
    report = judged(place, state)
    assert "No space left" in report.problems[0]
    assert state.exists()
    assert judged(place, state).verdicts == report.verdicts


@pytest.mark.parametrize("damage", ["cut", "bit", "version", "format"])
def test_a_damaged_state_is_said_and_the_run_judged_anew(tmp_path: Path, damage: str) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    flushed(writer, 0, 3, 4)
    writer.end()
    with pytest.MonkeyPatch.context() as patch:
        if damage == "version":
            patch.setattr("tdcore.rules.state.__version__", "0.0.0")
        whole = judged(place, state)
    data = bytearray(state.read_bytes())
    if damage == "cut":
        del data[-10:]
    elif damage == "bit":
        data[-10] ^= 1
    elif damage == "format":
        data[19:20] = b"0"
    state.write_bytes(data)
    report = judged(place, state)
    assert report.verdicts == whole.verdicts
    (problem,) = report.problems
    assert "judged anew" in problem
    assert judged(place, state).problems == ()


def test_a_file_that_is_no_state_is_left_alone(tmp_path: Path) -> None:
    flushed(RunWriter(tmp_path / "run"), 0, 1)
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigError, match="is not a state"):
        judged(tmp_path / "run", tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("part", ["identity", "position", "engine"])
@pytest.mark.parametrize("value", [{}, 3, {"rules": [1], "attempt": 0}])
def test_a_state_that_was_made_up_is_refused(tmp_path: Path, part: str, value: object) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 0, 1)
    judged(place, state)
    head = len(state_module._MAGIC) + 32
    modules = {EveryNth.__module__}
    body = safe_pickle.dump(safe_pickle.load(state.read_bytes()[head:], modules) | {part: value})
    state.write_bytes(state_module._MAGIC + hashlib.sha256(body).digest() + body)
    with pytest.raises(ConfigError, match="cannot be taken over"):
        judged(place, state)


def test_the_folder_of_the_state_must_be_there(tmp_path: Path) -> None:
    flushed(RunWriter(tmp_path / "run"), 0, 1)
    with pytest.raises(ConfigError, match="there is no folder"):
        judged(tmp_path / "run", tmp_path / "nowhere" / "state")


def test_what_a_rule_remembers_and_cannot_be_kept_is_a_problem_and_judging_goes_on(tmp_path: Path) -> None:
    class Hoarder(EveryNth):
        def check(self, window: Any) -> Any:
            window.memory["file"] = sys.stdout
            yield from super().check(window)

    flushed(RunWriter(tmp_path / "run"), 0, 1)
    report = judged(tmp_path / "run", tmp_path / "state", Hoarder(nth=1))
    assert report.verdicts[0].finding_count == 3
    assert "cannot be saved; a rule's memory can contain" in report.problems[0]
    assert not (tmp_path / "state").exists()


def test_actions_are_not_repeated_over_starts(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    told = Told()
    for steps in ((0, 1), (2, 3), (4,), ()):
        flushed(writer, *steps)
        judged(place, state, ExplodingTensor(), actions=[told])
    writer.end()
    judged(place, state, ExplodingTensor(), actions=[told])
    assert [finding.tensor for finding in told.findings] == ["w0", "w1", "w2"]


def test_an_action_under_way_when_the_runner_was_killed_is_taken_once_more(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 3, 4)
    killed, told = Told(SystemExit()), Told()
    with pytest.raises(SystemExit):
        judged(place, state, ExplodingTensor(), actions=[killed])
    report = judged(place, state, ExplodingTensor(), actions=[told])
    assert told.findings == killed.findings
    assert report.verdicts[0].finding_count == 3
    judged(place, state, ExplodingTensor(), actions=[told])
    assert told.findings == killed.findings


def test_an_issue_of_an_earlier_start_ends_the_watch_that_ends_at_the_first_issue(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    flushed(RunWriter(place), 3, 4)
    judged(place, state, ExplodingTensor())
    report = judged(place, state, ExplodingTensor(), live=True)
    assert report.exit_code == 1
    assert not report.finished


def test_a_look_that_was_broken_off_is_made_again(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    flushed(writer, 0, 1)
    source = RunSource(place)
    engine = Engine(source, [EveryNth(nth=1)])
    state_file = StateFile(state, engine, source)
    state_file.before_poll()
    engine.step()
    state_file.after_poll(engine.changed)
    state_file.before_poll()
    flushed(writer, 2)
    source.next(["step"])  # the rules have processed the rows so far
    state_file.close()
    assert judged(place, state, EveryNth(nth=1)).verdicts[0].occurrences == 6


def test_it_is_saved_about_once_a_second_and_only_when_something_changed(tmp_path: Path) -> None:
    now = [0.0]
    writer = RunWriter(tmp_path / "run")
    source = RunSource(tmp_path / "run")
    engine = Engine(source, [EveryNth(nth=100)])
    state_file = StateFile(tmp_path / "state", engine, source, clock=lambda: now[0])
    saves = []
    for look in range(20):
        if look < 10:
            flushed(writer, look)
        before = (tmp_path / "state").stat().st_ino if (tmp_path / "state").exists() else None
        state_file.before_poll()
        engine.step()
        state_file.after_poll(engine.changed)
        after = (tmp_path / "state").stat().st_ino if (tmp_path / "state").exists() else None
        if after != before:
            saves.append(look)
        now[0] += 0.3
    assert saves == [1, 5, 9]  # the first poll has no complete step
    assert not list(tmp_path.glob(".*tmp"))


def test_a_place_that_refuses_in_the_middle_of_a_look_loses_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed(RunWriter(tmp_path / "run"), 0, 1)
    source = RunSource(tmp_path / "run")

    def refuse(*_: object) -> None:
        raise SinkError("away", kind="transient")

    with monkeypatch.context() as patch:
        patch.setattr("tdcore.rules.run_source.members_of", refuse)
        with pytest.raises(SinkError):
            source.next(["step"])
    assert source.next(["step"]).table.num_rows == 3


_TIMED = {code for code, rule in RULES.items() if getattr(rule, "each_look", False)}  # after the time limit


@pytest.mark.parametrize("code", sorted(CASES.keys() - _TIMED))
def test_every_rule_says_the_same_when_it_is_restarted_between_any_two_windows(code: str) -> None:
    for case in CASES[code]:
        same_in_any_cuts(case.rule, case.trace(), seeds=2)


def _vanishing(writer: RunWriter, first: int, end: int) -> None:
    for step in range(first, end):
        writer.add("gradient/w", 1e-9, step=step, kind="gradient")
    writer.flush()


def test_a_state_keeps_the_epochs_of_rows_that_are_not_read_again(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = RunWriter(place)
    writer.add(EPOCH_SCALAR, 3.0, step=0, kind="scalar")
    _vanishing(writer, 0, 3)
    run(place, [VanishingGradient()], state=state)
    _vanishing(writer, 3, 6)
    writer.end()
    report = run(place, [VanishingGradient()], state=state)
    assert [(f.epoch, f.last_epoch) for f in report.findings] == [(3, 3)]
