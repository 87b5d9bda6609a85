"""The action dispatcher: rules are not blocked, no finding is lost silently, failures are reported."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tdcore.actions import ActionDispatcher, RequestStop, action_worker, notice_key
from tdcore.actions import dispatcher as dispatcher_module
from tdcore.errors import ConfigError, SinkError
from tdcore.rules import Finding
from tdcore.rules.engine import Engine
from tdcore.rules.source import Source
from tdcore.sinks import MemorySink, Sink
from tests.actions.findings import Running, finding
from tests.actions.test_notices import Kept


class Slow:
    """An action that waits for an event, and then fails if it has an error text."""

    name = "slow"
    background = True

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.begun, self.let_go = threading.Event(), threading.Event()
        self.calls: list[list[int]] = []
        self.sinks: list[Sink | None] = []

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        self.begun.set()
        assert self.let_go.wait(60)
        self.calls.append([each.step for each in findings])
        self.sinks.append(sink)
        if self.error:
            raise RuntimeError(self.error)

    def take_notes(self) -> list[str]:
        return ["said beside"]


def test_a_slow_action_does_not_hold_up_the_caller_and_gets_the_rest_together() -> None:
    slow = Slow()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding(step=0)], Running(), MemorySink())
    assert slow.begun.wait(60)
    for step in (1, 2, 3):
        dispatcher.give([finding(step=step)], Running(), MemorySink())
    slow.let_go.set()
    dispatcher.close()
    assert slow.calls == [[0], [1, 2, 3]]
    assert slow.sinks == [None, None]


def test_quick_actions_run_in_the_callers_thread_and_get_the_sink() -> None:
    threads: list[threading.Thread] = []

    class Quick:
        name = "quick"

        def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
            threads.append(threading.current_thread())
            assert sink is not None

    dispatcher = ActionDispatcher([Quick()])
    dispatcher.give([finding()], Running(), MemorySink())
    assert threads == [threading.current_thread()]
    assert dispatcher.take_problems() == []


def test_failures_and_notes_are_problems_once_each() -> None:
    slow = Slow(error="no network")
    slow.let_go.set()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding()], Running(), None)
    dispatcher.close()
    assert dispatcher.take_problems() == ["action slow failed: no network", "action slow: said beside"]
    assert dispatcher.take_problems() == []


def test_what_is_not_told_in_time_is_counted_and_said() -> None:
    slow = Slow()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding(step=0), finding(step=1)], Running(), None)
    assert slow.begun.wait(60)
    dispatcher.give([finding(step=2)], Running(), None)
    dispatcher.close(timedelta(seconds=0.01))
    assert dispatcher.take_problems() == ["action slow: 3 findings were not reported within 0.01 s"]
    slow.let_go.set()
    dispatcher.close()


def test_what_nobody_waits_for_any_more_is_cancelled() -> None:
    class Cancelled(Slow):
        def cancel(self) -> None:
            self.let_go.set()

    slow = Cancelled()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding()], Running(), None)
    assert slow.begun.wait(60)
    dispatcher.give([finding(step=8)], Running(), None)
    dispatcher.close(timedelta())
    assert slow.calls == [[7]]
    assert "action slow: 2 findings were not reported within 0 s" in dispatcher.take_problems()


def test_a_stop_that_cannot_be_written_now_is_tried_again_at_the_next_looks() -> None:
    class Away(MemorySink):
        looks = 3

        def put_new(self, key: str, parts: Any) -> bool:
            self.looks -= 1
            if self.looks >= 0:
                raise SinkError("away")
            return super().put_new(key, parts)

    sink, now = Away(), [0.0]
    dispatcher = ActionDispatcher([RequestStop()], clock=lambda: now[0])
    dispatcher.give([finding()], Running(), sink)
    assert dispatcher.take_problems() == ["action stop failed: away"]
    (key,) = dispatcher.untold()["0:stop"]
    assert key == finding().key
    for _ in range(9):
        now[0] += 1.0
        dispatcher.try_again(Running(), sink)
    assert sink.list("control/") == ["control/stop-0000.json"]
    assert sink.looks == -1
    assert dispatcher.untold() == {}


def test_what_will_not_pass_is_not_tried_again_and_what_may_is_tried_for_ever_but_ever_more_seldom() -> None:
    class Broken:
        name = "broken"

        def __init__(self, error: Exception) -> None:
            self.error, self.calls = error, 0

        def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
            self.calls += 1
            raise self.error

    denied, away = Broken(SinkError("no", kind="denied")), Broken(SinkError("away"))
    full, now = Broken(SinkError("no room", kind="full")), [0.0]
    dispatcher = ActionDispatcher([denied, away, full], clock=lambda: now[0])
    dispatcher.give([finding()], Running(), MemorySink())
    for _ in range(3600):
        now[0] += 1.0
        dispatcher.try_again(Running(), MemorySink())
    assert denied.calls == 1
    assert away.calls == full.calls
    assert 3600 / 30 <= away.calls <= 3600 / 30 + 10
    dispatcher.try_again(Running(), MemorySink(), last=True)
    dispatcher.close()
    assert "action broken: 1 finding was not reported" in dispatcher.take_problems()


class Failing:
    """An action that fails and keeps its findings until `works` is set."""

    name = "failing"
    background = True

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.kept: list[Finding] = []
        self.works = False

    def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
        self.calls.append([each.step for each in findings])
        self.kept += findings
        if not self.works:
            raise RuntimeError("no network")
        self.kept = []

    def untold(self) -> list[Finding]:
        return list(self.kept)


def looked(dispatcher: ActionDispatcher, *, last: bool = False) -> None:
    """Retry the actions and wait until they have finished."""
    dispatcher.try_again(Running(), None, last=last)
    for each in threading.enumerate():
        if each.name.startswith("tdcore action"):
            each.join()


def test_a_service_that_is_down_is_called_ever_more_seldom_and_gets_all_when_it_is_back() -> None:
    failing, now = Failing(), [0.0]
    dispatcher = ActionDispatcher([failing], clock=lambda: now[0])
    for step in range(600):  # one finding per second
        dispatcher.give([finding(step=step)], Running(), None)
        looked(dispatcher)
        now[0] += 1.0
    assert len(failing.calls) == 6  # at 0, 10, 30, 70, 150, 310 seconds
    failing.works = True
    now[0] = 631.0
    looked(dispatcher)
    assert [step for call in failing.calls for step in call] == list(range(600))
    assert dispatcher.untold() == {}


def test_what_failed_is_told_though_nothing_new_is_found() -> None:
    failing, now = Failing(), [0.0]
    dispatcher = ActionDispatcher([failing], clock=lambda: now[0])
    dispatcher.give([finding()], Running(), None)
    looked(dispatcher)
    failing.works = True
    looked(dispatcher)
    assert failing.calls == [[7]]
    now[0] = 10.0
    looked(dispatcher)
    assert failing.calls == [[7], []]
    dispatcher.close()
    assert dispatcher.take_problems() == ["action failing failed: no network"]


@pytest.mark.parametrize(("waited", "calls"), [(1.0, 1), (10.0, 2)])
def test_at_the_end_what_failed_is_tried_once_more_unless_that_was_just_done(
    waited: float, calls: int
) -> None:
    failing, now = Failing(), [0.0]
    dispatcher = ActionDispatcher([failing], clock=lambda: now[0])
    dispatcher.give([finding()], Running(), None)
    looked(dispatcher)
    now[0] = waited
    looked(dispatcher, last=True)
    dispatcher.close()
    assert len(failing.calls) == calls
    assert dispatcher.take_problems()[-1] == "action failing: 1 finding was not reported"


def test_what_came_in_a_pause_is_tried_at_the_end() -> None:
    failing, now = Failing(), [0.0]
    dispatcher = ActionDispatcher([failing], clock=lambda: now[0])
    dispatcher.give([finding(step=1)], Running(), None)
    looked(dispatcher)
    dispatcher.give([finding(step=2)], Running(), None)
    failing.works = True
    looked(dispatcher, last=True)
    dispatcher.close()
    assert failing.calls == [[1], [2]]
    assert dispatcher.untold() == {}


def test_a_later_start_tells_what_was_not_told_and_nothing_else() -> None:
    def kept_by(failing: bool) -> tuple[ActionDispatcher, Kept, Kept]:
        good, bad = Kept(), Kept(failures=99 if failing else 0)
        return ActionDispatcher([good, bad]), good, bad

    first, *_ = kept_by(failing=True)
    findings = [finding(), finding(tensor="b")]
    first.give(findings, Running(), None)
    looked(first)
    untold = first.untold()
    assert untold == {"1:kept": [each.key for each in findings]}

    second, good, bad = kept_by(failing=False)
    second.restore([notice_key(each) for each in findings], {"1:kept": findings})
    assert second.untold() == untold
    looked(second)
    second.give([finding(step=8)], Running(), None)
    looked(second)
    assert good.notices == []
    assert [[each.tensor for each in notice.findings] for notice in bad.notices] == [["gradient/w", "b"]]
    assert second.untold() == {}


def test_an_action_that_ends_its_thread_is_called_again() -> None:
    class Exits(Slow):
        def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
            self.calls.append([each.step for each in findings])
            raise SystemExit(3)

    exits = Exits()
    dispatcher = ActionDispatcher([exits])
    for step in (1, 2):
        dispatcher.give([finding(step=step)], Running(), None)
        dispatcher.close()
    assert exits.calls == [[1], [2]]
    assert dispatcher.take_problems() == ["action slow failed: SystemExit(3)"] * 2


def test_a_thread_that_cannot_be_had_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    dispatcher = ActionDispatcher([Slow()])
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        dispatcher.give([finding()], Running(), None)
    dispatcher.close()
    assert dispatcher.take_problems() == [
        "action slow has no thread: can't start new thread", "action slow: 1 finding was not reported",
    ]  # fmt: skip


def test_texts_are_actions_too_and_what_is_none_is_refused() -> None:
    (action,) = ActionDispatcher(["stop"]).actions
    assert isinstance(action, RequestStop)
    for wrong in (RequestStop, 5, None, object()):
        with pytest.raises(ConfigError, match="an action must be an instance"):
            ActionDispatcher([wrong])
    for single in ("stop", RequestStop()):
        with pytest.raises(ConfigError, match="a list of actions"):
            ActionDispatcher(single)  # type: ignore[arg-type]


def test_a_thread_lives_only_while_there_is_something_to_tell() -> None:
    slow = Slow()
    slow.let_go.set()
    dispatcher = ActionDispatcher([slow])
    for step in range(3):
        dispatcher.give([finding(step=step)], Running(), None)
        dispatcher.close()
        assert not [each for each in threading.enumerate() if each.name == "tdcore action slow"]
    assert slow.calls == [[0], [1], [2]]


def test_findings_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_worker, "MAX_PENDING", 2)
    slow = Slow()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding()], Running(), None)
    assert slow.begun.wait(60)
    dispatcher.give([finding(step=step) for step in range(5)], Running(), None)
    slow.let_go.set()
    dispatcher.close()
    assert "action slow is too slow: 3 findings were not reported" in dispatcher.take_problems()


def test_a_finding_that_continues_takes_one_place_while_an_action_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(action_worker, "MAX_PENDING", 2)
    slow = Slow()
    dispatcher = ActionDispatcher([slow])
    dispatcher.give([finding()], Running(), None)
    assert slow.begun.wait(60)
    for step in range(8, 20):  # one poll of the run after the other
        dispatcher.give([finding().continued(1, step, step)], Running(), None)
    dispatcher.give([finding(step=20, tensor="new")], Running(), None)
    slow.let_go.set()
    dispatcher.close()
    assert slow.calls == [[7], [7, 20]]
    assert not [each for each in dispatcher.take_problems() if "not reported" in each]


def test_a_finding_that_continues_takes_one_place_while_the_run_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher_module, "MAX_PENDING", 2)
    given: list[list[str]] = []

    class Unreachable:
        name = "unreachable"

        def act(self, findings: Sequence[Finding], source: Source, sink: Sink | None) -> None:
            given.append([each.tensor for each in findings])
            raise SinkError("away", kind="transient")

    dispatcher = ActionDispatcher([Unreachable()])
    for step in range(8, 20):
        dispatcher.give([finding().continued(1, step, step)], Running(), MemorySink())
    dispatcher.give([finding(step=20, tensor="new")], Running(), MemorySink())
    dispatcher.try_again(Running(), MemorySink(), last=True)
    assert given[-1] == ["gradient/w", "new"]


def test_the_engine_reports_what_actions_could_not_do() -> None:
    slow = Slow(error="no network")
    slow.let_go.set()
    engine = Engine(Running(), [], actions=[slow])
    engine._pending = [finding()]
    engine.step()
    engine.close()
    assert engine.problems == ["action slow failed: no network", "action slow: said beside"]
