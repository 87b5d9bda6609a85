"""The rule engine: each row once, isolated errors, written findings, calls of actions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from tdcore.errors import SinkError
from tdcore.rules import Engine, ExplodingTensor, Finding, Need, Status, VanishingGradient, Window
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import Source
from tdcore.rules.trace import Trace
from tdcore.sinks import MemorySink, Sink
from tests.trial.writer import RunWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Yields one finding per row, so that a test can check which rows it got."""

    code: ClassVar[str] = "T001"

    def needs(self) -> Need:
        return Need(what="anything")

    def check(self, window: Window) -> Iterator[Finding]:
        window.judged(len(window))
        for row in range(len(window)):
            yield window.finding(self, row, numbers={}, why="seen", do="nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Fires at step 0 and raises at step 1."""

    code: ClassVar[str] = "T002"
    at: int = 1

    def needs(self) -> Need:
        return Need(what="anything")

    def check(self, window: Window) -> Iterator[Finding]:
        for row, step in enumerate(window.columns.ints("step").tolist()):
            if step == self.at:
                raise ZeroDivisionError("no luck")
            yield window.finding(self, row, numbers={}, why="seen", do="nothing")


class Noting:
    """An action that keeps its findings."""

    name = "noting"

    def __init__(self, error: Exception | None = None) -> None:
        self.given: list[Finding] = []
        self.error = error

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        self.given += findings
        if self.error:
            raise self.error


def steps(found: list[Finding]) -> list[int]:
    return [finding.step for finding in found]


def two_steps() -> Trace:
    return Trace().add(0, "a", "weight", [1.0]).add(1, "a", "weight", [1.0])


def test_each_row_is_shown_once_and_only_when_its_step_is_complete(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    engine = Engine(RunSource(tmp_path, clock=lambda: 0.0), [Recorder()])
    assert engine.step() == []
    run.add("a", 1.0, step=0)
    run.flush()
    assert engine.step() == []  # more rows of step 0 may come
    run.add("b", 1.0, step=0)
    run.add("a", 1.0, step=1)
    run.flush()
    assert [(f.step, f.tensor) for f in engine.step()] == [(0, "a"), (0, "b")]
    assert engine.step() == []
    run.merge()
    assert engine.step() == []
    run.end()
    assert steps(engine.step()) == [1]
    assert engine.step() == []
    assert engine.rows == 3


def test_a_step_to_which_nothing_is_added_for_a_while_is_complete(tmp_path: Path) -> None:
    now = [0.0]
    run = RunWriter(tmp_path)
    engine = Engine(RunSource(tmp_path, clock=lambda: now[0]), [Recorder()])
    run.add("a", 1.0, step=0)
    run.flush()
    assert engine.step() == []
    now[0] = 1.9
    assert engine.step() == []
    now[0] = 2.1
    assert steps(engine.step()) == [0]
    run.add("b", 1.0, step=0)  # late, but passed to the rule once
    run.add("a", 1.0, step=1)
    run.flush()
    assert [(f.step, f.tensor) for f in engine.step()] == [(0, "b")]


def test_one_worker_does_not_hold_up_another(tmp_path: Path) -> None:
    fast, slow = RunWriter(tmp_path, worker="worker_0"), RunWriter(tmp_path, worker="worker_1")
    engine = Engine(RunSource(tmp_path, clock=lambda: 0.0), [Recorder()])
    for step in range(3):
        fast.add("a", 1.0, step=step)
    slow.add("a", 1.0, step=0)
    fast.flush()
    slow.flush()
    assert [(f.worker, f.step) for f in engine.step()] == [("worker_0", 0), ("worker_0", 1)]
    slow.end()
    assert [(f.worker, f.step) for f in engine.step()] == [("worker_1", 0)]


def test_everything_includes_the_newest_step(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("a", 1.0, step=0)
    run.flush()
    assert steps(Engine(RunSource(tmp_path), [Recorder()]).step(everything=True)) == [0]


def test_the_newest_attempt_is_judged_unless_others_are_asked_for(tmp_path: Path) -> None:
    for attempt in range(3):
        run = RunWriter(tmp_path, attempt=attempt)
        run.add("a", 1.0, step=attempt)
        run.flush()
        run.end()
    assert steps(Engine(RunSource(tmp_path), [Recorder()]).step()) == [2]
    assert steps(Engine(RunSource(tmp_path, attempt=1), [Recorder()]).step()) == [1]
    assert steps(Engine(RunSource(tmp_path, attempt="all"), [Recorder()]).step()) == [0, 1, 2]


def test_an_attempt_that_starts_later_is_followed_and_ends_the_one_before(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, attempt=0)
    engine = Engine(RunSource(tmp_path, clock=lambda: 0.0), [Recorder()])
    first.add("a", 1.0, step=5)
    first.flush()
    assert engine.step() == []
    second = RunWriter(tmp_path, attempt=1)
    second.add("a", 1.0, step=0)
    second.flush()
    assert [(f.attempt, f.step) for f in engine.step()] == [(0, 5)]
    assert not engine.source.finished()
    second.end()
    assert [(f.attempt, f.step) for f in engine.step()] == [(1, 0)]
    assert engine.source.finished()


def test_a_tensor_in_parts_is_one_row(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    run.add("gradient/w", np.array([1e-9, 1e-9, 1e-9, 1.0]), step=0, kind="gradient", parts=2)
    run.flush()
    run.end()
    engine = Engine(RunSource(tmp_path), [VanishingGradient()])
    assert engine.step() == []  # the first part alone would fire
    assert engine.verdicts(finished=True)[0].judged == 1


def test_a_rule_that_fails_gets_an_error_and_the_others_go_on() -> None:
    engine = Engine(two_steps().source(), [Failing(at=0), Recorder()])
    assert steps(engine.step()) == [0, 1]
    failed, fine = engine.verdicts(finished=True)
    assert failed.status is Status.ERROR
    assert failed.reason.startswith("ZeroDivisionError: no luck (test_engine.py, line ")
    assert fine.status is Status.ISSUE


def test_findings_made_before_a_rule_failed_are_kept() -> None:
    engine = Engine(two_steps().source(), [Failing(at=1)])
    assert steps(engine.step()) == [0]
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.status is Status.ISSUE
    assert "no luck" in verdict.reason
    assert "then the rule failed" in verdict.text


def test_the_same_rule_twice_gets_a_number() -> None:
    engine = Engine(two_steps().source(), [Recorder(), Recorder()])
    assert {finding.rule for finding in engine.step()} == {"Recorder", "Recorder-2"}


def test_all_findings_are_counted_and_the_first_ones_kept() -> None:
    trace = Trace()
    for step in range(10):
        trace.add(step, "a", "weight", [1.0])
    engine = Engine(trace.source(), [Recorder()], max_findings=3)
    assert steps(engine.step()) == [0, 1, 2]
    (verdict,) = engine.verdicts(finished=True)
    assert (verdict.finding_count, verdict.occurrences) == (1, 10)


def test_findings_of_more_tensors_than_are_kept_are_counted() -> None:
    trace = Trace()
    for step in range(2):
        for name in "abcde":
            trace.add(step, name, "weight", [1.0])
    engine = Engine(trace.source(), [Recorder()], max_findings=3)
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [finding.tensor for finding in verdict.findings] == ["a", "b", "c"]
    assert (verdict.finding_count, verdict.occurrences) == (5, 10)


def test_findings_are_written_as_lines_of_json() -> None:
    sink = MemorySink()
    engine = Engine(two_steps().source(), [Recorder(), ExplodingTensor()], sink=sink)
    engine.step()
    engine.close()
    assert sink.list("findings/") == ["findings/Recorder.jsonl"]
    (line,) = sink.get("findings/Recorder.jsonl").decode().splitlines()
    found = json.loads(line)
    assert (found["step"], found["last_step"], found["count"]) == (0, 1, 2)


def test_findings_of_an_earlier_judgement_are_cleared_when_there_are_none_now() -> None:
    sink = MemorySink()
    sink.put("findings/ExplodingTensor.jsonl", [b"{}\n"])
    engine = Engine(two_steps().source(), [ExplodingTensor()], sink=sink)
    engine.step()
    engine.close()
    assert sink.list("findings/") == []


class RefusingSink(MemorySink):
    """A sink that refuses every put."""

    def put(self, key: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        raise SinkError("disk is full", kind="full")


def test_findings_that_cannot_be_written_are_a_problem_and_judging_goes_on() -> None:
    engine = Engine(two_steps().source(), [Recorder()], sink=RefusingSink())
    assert steps(engine.step()) == [0, 1]
    assert engine.problems == ["findings of Recorder could not be written: disk is full"]


def test_actions_get_each_finding_once_and_one_that_fails_is_a_problem() -> None:
    broken, good = Noting(RuntimeError("no network")), Noting()
    engine = Engine(two_steps().source(), [Recorder()], actions=[broken, good])
    engine.step()
    engine.step()
    assert [(f.step, f.last_step, f.count) for f in good.given] == [(0, 1, 2)]
    assert engine.problems == ["action noting failed: no network"]


def test_a_run_without_rows_says_that_it_holds_nothing(tmp_path: Path) -> None:
    RunWriter(tmp_path).end()
    engine = Engine(RunSource(tmp_path), [VanishingGradient()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert verdict.text == (
        "not evaluable: the run contains no tensors. The rule needs gradients with statistics. "
        'Add CollectionConfig(name="gradients", save_config=SaveConfig(save_interval=100), '
        "reduction_config=ReductionConfig())"
    )


def test_until_the_run_has_ended_nothing_is_called_fine() -> None:
    engine = Engine(two_steps().source(), [ExplodingTensor()])
    engine.step()
    (verdict,) = engine.verdicts(finished=False)
    assert verdict.status is Status.IN_PROGRESS
    assert verdict.text == "in progress: no issue up to step 1"


def test_live_and_offline_judgement_agree(tmp_path: Path) -> None:
    from tdcore.rules import LossNotDecreasing

    rules = (
        LossNotDecreasing(num_steps=4, patience=2),
        LossNotDecreasing(mode="EVAL", num_steps=1, patience=1),
    )
    run = RunWriter(tmp_path)
    live = Engine(RunSource(tmp_path, clock=lambda: 0.0), rules)
    found: list[Finding] = []
    for step in range(60):
        mode = "EVAL" if step % 12 >= 9 else "TRAIN"
        mode_step = step // 12 * (3 if mode == "EVAL" else 9) + (
            step % 12 - 9 if mode == "EVAL" else step % 12
        )
        run.add("loss", 1.0 + 0.1 * (step * 7 % 5), step=step, mode=mode, mode_step=mode_step, kind="loss")
        if step % 5 == 0:
            run.flush()
            found += live.step()
    run.flush()
    run.end()
    found += live.step()
    offline = Engine(RunSource(tmp_path), rules)
    assert offline.step() == sorted(found, key=lambda finding: (finding.attempt, finding.step))
    assert live.verdicts(finished=True) == offline.verdicts(finished=True)
    assert {finding.rule for finding in found} == {"LossNotDecreasing", "LossNotDecreasing-2"}


def test_a_damaged_index_is_said_to_be_damaged(tmp_path: Path) -> None:
    from tdcore.errors import RunCorrupt

    run = RunWriter(tmp_path)
    run.add("a", 1.0, step=0)
    key = run.flush()
    (tmp_path / str(key)).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(RunCorrupt):
        Engine(RunSource(tmp_path), [Recorder()]).step()


def test_more_findings_than_are_kept_are_counted_without_being_made() -> None:
    trace = Trace()
    for step in range(10):
        trace.add(step, "gradient/w", "gradient", [1e-9])
    engine = Engine(trace.source(), [VanishingGradient()], max_findings=4)
    assert steps(engine.step()) == [0, 1, 2, 3]
    (verdict,) = engine.verdicts(finished=True)
    assert (verdict.finding_count, verdict.occurrences) == (1, 10)
    assert verdict.findings[0].last_step == 9
