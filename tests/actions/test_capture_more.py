"""CaptureMore: the requests that it writes, their number, and the runs that it leaves unchanged."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tdcore.actions import CaptureMore
from tdcore.errors import ActionError, ConfigError, SinkError
from tdcore.format.control import MAX_CAPTURE_REQUESTS, MAX_REQUEST_BYTES, CaptureRequest
from tdcore.format.layout import COLLECTIONS_KEY, capture_key
from tdcore.sinks import MemorySink
from tests.actions.findings import Running, finding


def asked(sink: MemorySink) -> list[dict[str, Any]]:
    return [json.loads(sink.get(key)) for key in sink.list("control/capture-")]


def saved(sink: MemorySink, *names: str, attempt: int = 0) -> None:
    collection = {"include_regex": [], "tensor_names": list(names), "included": True}
    document = {"format": 1, "attempts": {str(attempt): {"collections": {"all": collection}}}}
    sink.put(COLLECTIONS_KEY, [json.dumps(document).encode()])


def test_the_tensors_of_the_findings_are_asked_for_in_one_request() -> None:
    sink = MemorySink()
    CaptureMore(steps=5).act([finding(), finding(step=8), finding(tensor="b")], Running(), sink)
    (request,) = asked(sink)
    assert request["tensors"] == ["gradient/w", "b"]
    assert [request[key] for key in ("format", "attempt", "steps", "level", "modes")] == [
        1, 0, 5, "values", ["TRAIN"],
    ]  # fmt: skip
    assert request["by"] == "rule VanishingGradient"
    assert "step 7" in request["reason"]
    parsed = CaptureRequest.parse(sink.get(capture_key(0, 0)).decode())
    assert (parsed.tensors, parsed.steps) == (("gradient/w", "b"), 5)


def test_a_key_asks_once_and_again_after_a_while_if_told_to() -> None:
    sink, once = MemorySink(), CaptureMore()
    for step in range(5):
        once.act([finding(step=step)], Running(), sink)
    assert len(asked(sink)) == 1
    again = CaptureMore(again_after=timedelta(microseconds=1))
    for step in range(2):
        again.act([finding(step=step)], Running(), sink)
    assert len(asked(sink)) == 3


def test_patterns_become_names_that_the_run_has_saved() -> None:
    sink = MemorySink()
    saved(sink, "a.weight", "gradient/a.weight", "gradient/b.weight", "relu_output_0")
    more = CaptureMore(regex=["^gradient/", "relu"], tensors="c", modes=("TRAIN", "EVAL"), level="statistics")
    more.act([finding(tensor="x")], Running(), sink)
    (request,) = asked(sink)
    assert request["tensors"] == ["c", "gradient/a.weight", "gradient/b.weight", "relu_output_0"]
    assert (request["modes"], request["level"]) == (["TRAIN", "EVAL"], "statistics")


def test_several_judges_ask_side_by_side_without_gaps() -> None:
    sink = MemorySink()
    first, second = CaptureMore(), CaptureMore()
    for step, tensor in enumerate("abc"):
        first.act([finding(step=step, tensor=tensor)], Running(), sink)
        second.act([finding(step=step, tensor=tensor.upper())], Running(), sink)
    assert [request["tensors"] for request in asked(sink)] == [[name] for name in "aAbBcC"]
    assert sink.list("control/") == [capture_key(0, number) for number in range(6)]


def test_what_could_not_be_written_leaves_no_gap() -> None:
    class Refusing(MemorySink):
        refuses = True

        def put_new(self, key: str, parts: Any) -> bool:
            if self.refuses:
                raise SinkError("disk is full", kind="full")
            return super().put_new(key, parts)

    sink, more = Refusing(), CaptureMore()
    with pytest.raises(SinkError):
        more.act([finding()], Running(), sink)
    sink.refuses = False
    more.act([finding(step=8)], Running(), sink)
    assert sink.list("control/") == [capture_key(0, 0)]


def test_findings_of_other_attempts_and_modes_are_requests_of_their_own() -> None:
    sink = MemorySink()
    CaptureMore().act([finding(0), finding(1), finding(1, tensor="b", mode="EVAL")], Running(ended=1), sink)
    assert sink.list("control/") == [capture_key(1, 0), capture_key(1, 1)]
    assert [request["modes"] for request in asked(sink)] == [["TRAIN"], ["EVAL"]]


def test_a_run_that_cannot_be_written_is_a_failure() -> None:
    with pytest.raises(SinkError, match="cannot write to the run"):
        CaptureMore().act([finding()], Running(), None)


def test_a_finding_without_a_tensor_is_a_failure_that_says_what_to_give() -> None:
    with pytest.raises(ActionError, match="give tensors= or regex="):
        CaptureMore().act([finding(tensor="")], Running(), MemorySink())
    with pytest.raises(ActionError, match="no saved name matches"):
        CaptureMore(regex="x").act([finding()], Running(), MemorySink())


def test_names_that_cannot_be_read_are_a_failure() -> None:
    sink = MemorySink()
    sink.put(COLLECTIONS_KEY, [b"{"])
    with pytest.raises(ActionError, match="cannot be read"):
        CaptureMore(regex="x").act([finding()], Running(), sink)


def test_more_tensors_than_fit_are_counted() -> None:
    sink, more = MemorySink(), CaptureMore(max_requests=3)
    more.act([finding(tensor=f"w{n}") for n in range(100)], Running(), sink)
    assert len(asked(sink)[0]["tensors"]) == 64
    more.act([finding(tensor=f"{n}" + "ü" * 400) for n in range(30)], Running(), sink)
    assert len(sink.get(capture_key(0, 1))) <= MAX_REQUEST_BYTES
    assert more.take_notes() == [
        "36 of 100 tensors do not fit into one request",
        "28 of 30 tensors do not fit into one request",
    ]
    assert more.take_notes() == []


def test_it_asks_so_often_per_attempt_and_then_says_so() -> None:
    sink, more = MemorySink(), CaptureMore(max_requests=2)
    for tensor in "abcd":
        more.act([finding(tensor=tensor)], Running(), sink)
    assert len(asked(sink)) == 2
    assert more.take_notes() == ["2 requests were made in attempt 0; max_requests allows no more"]


def test_a_training_that_was_asked_too_often_is_asked_no_more() -> None:
    sink = MemorySink()
    for number in range(MAX_CAPTURE_REQUESTS):
        sink.put(capture_key(0, number), [b"{}"])
    with pytest.raises(ActionError, match="already has 100 requests"):
        CaptureMore().act([finding()], Running(), sink)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps"), ({"steps": 1001}, "steps"), ({"steps": "3"}, "steps"),
        ({"level": "all"}, "level"), ({"modes": "train"}, "modes"), ({"regex": "("}, "regular expression"),
        ({"tensors": [""]}, "name"), ({"tensors": ["x" * 1025]}, "name"),
        ({"tensors": map(str, range(65))}, "at most 64"),
        ({"max_requests": 0}, "max_requests"), ({"max_requests": 101}, "max_requests"),
        ({"again_after": timedelta()}, "again_after"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CaptureMore(**options)
