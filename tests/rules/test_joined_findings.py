"""Findings of a rule in one tensor at several steps are joined into one, in reports, files and actions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tdcore.rules import Engine, Finding, VanishingGradient, Window, run
from tdcore.rules.loading import load_rule, text_of
from tdcore.rules.run_source import RunSource
from tdcore.rules.step_range import with_step_range
from tdcore.rules.table_source import TableSource
from tdcore.rules.trace import Trace
from tdcore.sinks import MemorySink
from tests.rules.judging import LookByLook
from tests.rules.test_engine import Noting, Recorder
from tests.trial.writer import RunWriter

_COUNTS = 40


def _vanishing(steps: int = _COUNTS, layers: int = 3) -> Trace:
    trace = Trace()
    for step in range(steps):
        for layer in range(layers):
            trace.add(step, f"gradient/fc{layer}.weight", "gradient", [1e-9 / (1 + step)])
    return trace


def _write(folder: Path, steps: int, first: int = 0, *, writer: RunWriter | None = None) -> RunWriter:
    writer = writer or RunWriter(folder)
    for step in range(first, first + steps):
        writer.add("gradient/w", 1e-9 / (1 + step), step=step, kind="gradient")
    writer.flush()
    return writer


def test_a_tensor_that_fires_at_many_steps_is_one_finding_with_first_and_last_step_and_count() -> None:
    engine = Engine(_vanishing().source(), [VanishingGradient()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [(f.tensor, f.step, f.last_step, f.count) for f in verdict.findings] == [
        (f"gradient/fc{layer}.weight", 0, _COUNTS - 1, _COUNTS) for layer in range(3)
    ]
    assert verdict.text == "issue: 3 findings (120 times), first at step 0"


def test_the_numbers_of_the_first_and_of_the_newest_step_are_kept() -> None:
    engine = Engine(_vanishing(layers=1).source(), [VanishingGradient()])
    engine.step()
    (finding,) = engine.verdicts(finished=True)[0].findings
    assert finding.numbers["abs_mean"] == pytest.approx(1e-9)
    assert finding.last_numbers["abs_mean"] == pytest.approx(1e-9 / _COUNTS)


def test_modes_and_workers_and_attempts_are_findings_of_their_own() -> None:
    trace = Trace()
    for step, mode, worker, attempt in [
        (0, "TRAIN", "worker_0", 0),
        (1, "EVAL", "worker_0", 0),
        (2, "TRAIN", "worker_1", 0),
        (3, "TRAIN", "worker_0", 1),
    ]:
        trace.add(step, "w", "weight", [1.0], mode=mode, worker=worker, attempt=attempt)
    engine = Engine(trace.source(), [Recorder()])
    engine.step()
    assert engine.verdicts(finished=True)[0].finding_count == 4


def test_more_rows_than_are_listed_still_give_every_tensor_its_count_and_last_step() -> None:
    engine = Engine(_vanishing(steps=100, layers=4).source(), [VanishingGradient()], max_findings=10)
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [(f.count, f.last_step) for f in verdict.findings] == [(100, 99)] * 4
    assert (verdict.finding_count, verdict.occurrences) == (4, 400)


def test_a_rule_with_each_reports_every_step() -> None:
    rule = load_rule("vanishing_gradient:each=true")
    assert text_of(rule) == "vanishing_gradient:start_step=0,each=true"
    action = Noting()
    engine = Engine(_vanishing(steps=5, layers=1).source(), [rule], actions=[action])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [finding.step for finding in verdict.findings] == [0, 1, 2, 3, 4]
    assert verdict.finding_count == 5
    assert [finding.step for finding in action.given] == [0, 1, 2, 3, 4]


def test_a_finding_that_continues_is_updated_from_look_to_look(tmp_path: Path) -> None:
    writer = _write(tmp_path, 3)
    action = Noting()
    engine = Engine(RunSource(tmp_path, clock=lambda: 0.0), [VanishingGradient()], actions=[action])
    engine.step()
    assert [(f.step, f.last_step, f.count) for f in engine.news] == [(0, 1, 2)]
    _write(tmp_path, 3, 3, writer=writer)
    engine.step()
    assert [(f.step, f.last_step, f.count) for f in engine.news] == [(0, 4, 5)]
    engine.step()
    assert engine.news == []
    assert [(f.step, f.count) for f in action.given] == [(0, 2), (0, 5)]


def test_a_state_continues_a_finding(tmp_path: Path) -> None:
    place, state = tmp_path / "run", tmp_path / "state"
    writer = _write(place, 3)
    run(place, [VanishingGradient()], state=state)
    _write(place, 3, 3, writer=writer)
    writer.end()
    report = run(place, [VanishingGradient()], state=state)
    assert [(f.step, f.last_step, f.count) for f in report.findings] == [(0, 5, 6)]


def test_a_state_is_not_saved_for_each_look_that_continues_a_finding() -> None:
    saved: list[int] = []
    engine = Engine(LookByLook(_vanishing(steps=9, layers=1)), [VanishingGradient()], actions=[Noting()])
    engine.before_acting = lambda: saved.append(1)
    for _ in range(9):
        engine.step()
    assert saved == [1]


def test_the_file_of_findings_is_not_written_for_each_step_that_continues_one() -> None:
    class Counting(MemorySink):
        puts = 0

        def put(self, key: str, parts: object) -> None:
            self.puts += 1
            super().put(key, parts)  # type: ignore[arg-type]

    sink = Counting()
    source = LookByLook(_vanishing(steps=64, layers=1))
    engine = Engine(source, [VanishingGradient()], sink=sink)
    for _ in range(64):
        engine.step()
    assert sink.puts == 7  # at 1, 2, 4, ... 64 steps
    engine.close()
    (line,) = sink.get("findings/VanishingGradient.jsonl").decode().splitlines()
    assert json.loads(line)["count"] == 64


def test_the_end_writes_what_continued_since() -> None:
    sink = MemorySink()
    engine = Engine(LookByLook(_vanishing(steps=7, layers=1)), [VanishingGradient()], sink=sink)
    for _ in range(7):
        engine.step()
    assert json.loads(sink.get("findings/VanishingGradient.jsonl"))["count"] == 4
    engine.close()
    assert json.loads(sink.get("findings/VanishingGradient.jsonl"))["count"] == 7


def test_a_finding_of_one_step_has_the_same_first_and_last_step_in_json() -> None:
    engine = Engine(_vanishing(steps=1, layers=1).source(), [VanishingGradient()])
    engine.step()
    found = engine.verdicts(finished=True)[0].findings[0].to_json()
    assert (found["count"], found["last_step"], found["last_mode_step"]) == (1, 0, 0)
    assert found["last_numbers"] == {}


def test_a_finding_says_how_often_it_was_found() -> None:
    engine = Engine(_vanishing(layers=1).source(), [VanishingGradient()])
    engine.step()
    (finding,) = engine.verdicts(finished=True)[0].findings
    assert finding.again == "40 times, last at step 39"
    assert "(40 times, last at step 39)" in repr(finding)


def test_two_findings_of_one_step_count_as_one_step() -> None:
    trace = Trace()
    for step in range(3):
        for call in range(2):  # a module that is called twice in a step
            trace.add(step, "w", "weight", [1.0], call=call)
    engine = Engine(trace.source(), [Recorder()])
    engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert [(f.count, f.last_step) for f in verdict.findings] == [(3, 2)]
    assert (verdict.finding_count, verdict.occurrences) == (1, 3)


def test_findings_of_each_step_beyond_the_limit_take_no_memory() -> None:
    trace = Trace()
    for step in range(20):
        trace.add(step, "w", "weight", [1.0])
    engine = Engine(LookByLook(trace), [with_step_range(Recorder(), each=True)], max_findings=4)
    for _ in range(20):
        engine.step()
    assert engine.verdicts(finished=True)[0].finding_count == 20
    assert not engine.state()["judges"][0]["beyond"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfAKind(Recorder):
    """Yields one finding of a kind per row, the newest rows first."""

    def check(self, window: Window) -> Iterator[Finding]:
        window.judged(len(window))
        for row in reversed(range(len(window))):
            yield window.finding(self, row, numbers={"kind": "a"}, why="seen", do="nothing")


@pytest.mark.parametrize("first", ["kept", "counted"])
def test_a_tensor_beyond_the_limit_is_one_finding_though_it_has_a_kind(first: str) -> None:
    both = [(1, "w0"), (1, "w1"), (2, "w0"), (2, "w1")]  # in one poll: only one finding is created
    looks = [[(0, "w1")], both, [(3, "w0")]] if first == "counted" else [[(0, "w1")], [(1, "w0")], both]
    engine = Engine(Trace().source(), [OfAKind()], max_findings=1)
    for look in looks:
        trace = Trace()
        for step, name in look:
            trace.add(step, name, "weight", [1.0])
        engine.source = trace.source()
        engine.step()
    (verdict,) = engine.verdicts(finished=True)
    assert (verdict.finding_count, verdict.occurrences) == (2, 6)


def test_the_epoch_of_the_newest_step_is_kept_though_that_step_is_counted_only() -> None:
    class InEpochs(TableSource):
        def epoch(self, attempt: int, worker: str, step: int) -> int | None:
            return step // 10

    engine = Engine(InEpochs(_vanishing(steps=100, layers=4).table()), [VanishingGradient()], max_findings=10)
    engine.step()
    assert [(f.last_step, f.last_epoch) for f in engine.verdicts(finished=True)[0].findings] == [(99, 9)] * 4


def test_actions_get_a_finding_of_a_further_attempt_though_no_more_findings_are_kept() -> None:
    action = Noting()
    engine = Engine(Trace().source(), [Recorder()], actions=[action], max_findings=2)
    for attempt in range(3):
        trace = Trace()
        for name in ("a", "b", "c"):
            trace.add(0, name, "weight", [1.0], attempt=attempt)
        engine.source = trace.source()
        engine.step()
    assert [(f.attempt, f.tensor) for f in action.given] == [(0, "a"), (0, "b"), (1, "a"), (2, "a")]
    assert engine.verdicts(finished=True)[0].finding_count == 9


def test_the_newest_step_that_is_counted_only_is_found_in_any_order() -> None:
    trace = Trace()
    for step in range(5):
        trace.add(step, "w", "weight", [1.0])
    engine = Engine(trace.source(), [OfAKind()], max_findings=1)
    engine.step()
    assert [(f.count, f.last_step) for f in engine.verdicts(finished=True)[0].findings] == [(5, 4)]
