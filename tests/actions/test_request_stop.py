"""RequestStop: the request that it writes, the number of requests, and the runs that it leaves unchanged."""

from __future__ import annotations

import json

import pytest

from tdcore import actions
from tdcore.actions import RequestStop
from tdcore.errors import ConfigError, SinkError
from tdcore.sinks import MemorySink
from tests.actions.findings import Running, finding


def test_the_stop_request_names_rule_step_tensor_and_reason() -> None:
    sink = MemorySink()
    RequestStop(clock=lambda: 5).act([finding()], Running(), sink)
    assert json.loads(sink.get("control/stop-0000.json")) == {
        "format": 1, "attempt": 0, "reason": "gradient/w: too small", "rule": "VanishingGradient",
        "code": "TDC101", "step": 7, "mode": "TRAIN", "mode_step": 7,
        "tensor": "gradient/w", "by": "rule VanishingGradient", "requested_ns": 5,
    }  # fmt: skip


def test_a_session_understands_the_stop_request() -> None:
    from tdcore.session.session import _parse_stop

    request = _parse_stop(json.dumps(RequestStop().request(finding())))
    assert (request.rule, request.step, request.reason) == ("VanishingGradient", 7, "gradient/w: too small")
    assert request.by == "rule VanishingGradient"


def test_the_first_finding_of_each_attempt_asks_once() -> None:
    sink, stop = MemorySink(), RequestStop()
    stop.act([finding(0, 3), finding(0, 4), finding(1, 9)], Running(), sink)
    stop.act([finding(0, 5)], Running(), sink)
    assert sink.list("control/") == ["control/stop-0000.json", "control/stop-0001.json"]
    assert json.loads(sink.get("control/stop-0000.json"))["step"] == 3


def test_an_attempt_that_has_ended_is_left_alone() -> None:
    sink = MemorySink()
    RequestStop().act([finding(0), finding(1)], Running(ended=1), sink)
    assert sink.list("control/") == ["control/stop-0001.json"]


def test_a_request_that_is_there_stays_as_it_is() -> None:
    sink = MemorySink()
    sink.put("control/stop-0000.json", [b"{}"])
    RequestStop().act([finding()], Running(), sink)
    assert sink.get("control/stop-0000.json") == b"{}"


def test_a_request_that_could_not_be_written_is_tried_again() -> None:
    stop, sink = RequestStop(), MemorySink()
    with pytest.raises(SinkError):
        stop.act([finding()], Running(), None)
    stop.act([finding(step=8)], Running(), sink)
    assert json.loads(sink.get("control/stop-0000.json"))["step"] == 8


def test_the_older_librarys_prefix_is_refused_with_what_to_write_instead() -> None:
    with pytest.raises(ConfigError, match=r"StopSageMakerJob\(job_name_prefix='My-Job'\)"):
        RequestStop("My-Job")


def test_the_earlier_name_is_an_alias_with_a_warning() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"tdcore\.actions\.StopTraining is now tdcore\.actions\.RequestStop"
    ):
        assert actions.StopTraining is RequestStop
    with pytest.warns(DeprecationWarning, match="ActionDispatcher"):
        assert actions.Outbox is actions.ActionDispatcher
    with pytest.raises(AttributeError, match="no_such_action"):
        actions.no_such_action  # noqa: B018
