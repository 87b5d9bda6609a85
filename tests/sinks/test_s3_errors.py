"""Errors between the S3 client and the service: retries, reports, and the text of messages."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tdcore.errors import SinkError, SinkKeyError
from tdcore.sinks.s3 import S3Options, S3Sink, parse_s3_url
from tdcore.sinks.s3 import errors as words
from tdcore.sinks.s3.errors import S3Error, error_from_reply
from tests.s3.servers import StubServer

PLACE = parse_s3_url("s3://bucket/runs/a?sse=aws:kms&tag.team=vision")


@pytest.mark.parametrize(
    ("status", "code", "kind", "sink_kind"),
    [
        (503, "SlowDown", "throttled", "transient"),
        (503, "ServiceUnavailable", "throttled", "transient"),
        (503, "", "throttled", "transient"),
        (429, "", "throttled", "transient"),
        (400, "RequestLimitExceeded", "throttled", "transient"),
        (400, "RequestTimeout", "timeout", "transient"),
        (408, "", "timeout", "transient"),
        (500, "InternalError", "server", "transient"),
        (500, "", "server", "transient"),
        (502, "", "server", "transient"),
        (504, "", "server", "transient"),
        (307, "TemporaryRedirect", "server", "transient"),
        (409, "ConditionalRequestConflict", "conflict", "transient"),
        (400, "BadDigest", "damaged", "transient"),
        (400, "XAmzContentSHA256Mismatch", "damaged", "transient"),
        (400, "IncompleteBody", "damaged", "transient"),
        (412, "PreconditionFailed", "exists", "denied"),
        (400, "ExpiredToken", "credentials", "denied"),
        (403, "InvalidAccessKeyId", "credentials", "denied"),
        (403, "SignatureDoesNotMatch", "denied", "denied"),
        (403, "AccessDenied", "denied", "denied"),
        (403, "RequestTimeTooSkewed", "denied", "denied"),
        (403, "", "denied", "denied"),
        (404, "NoSuchBucket", "no_bucket", "denied"),
        (404, "", "missing", "denied"),
        (301, "PermanentRedirect", "region", "denied"),
        (400, "AuthorizationHeaderMalformed", "region", "denied"),
        (400, "IllegalLocationConstraintException", "region", "denied"),
        (501, "NotImplemented", "unsupported", "denied"),
        (416, "InvalidRange", "range", "denied"),
        (400, "EntityTooLarge", "refused", "denied"),
    ],
)
def test_every_reply_has_a_meaning(status: int, code: str, kind: str, sink_kind: str) -> None:
    body = f"<Error><Code>{code}</Code><RequestId>4711</RequestId></Error>" if code else ""
    fault = error_from_reply(status, body)
    assert (fault.kind, fault.code, fault.status) == (kind, code, status)
    error = fault.error("put", PLACE)
    assert error.kind == sink_kind
    assert fault.retry == (sink_kind == "transient")
    assert "4711" not in str(error)


def test_the_region_and_the_wait_are_taken_from_the_reply() -> None:
    body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"
    assert error_from_reply(400, body).region == "eu-west-1"
    assert error_from_reply(503, "", retry_after="7").retry_after == 7.0
    assert error_from_reply(503, "", retry_after="Wed, 21 Oct 2015 07:28:00 GMT").retry_after is None
    assert error_from_reply(503, "", retry_after="1e9").retry_after == 300.0


@pytest.mark.parametrize(
    ("action", "permission"),
    [
        (
            "put",
            "s3:PutObject on arn:aws:s3:::bucket/runs/a/* and s3:PutObjectTagging and kms:GenerateDataKey",
        ),
        ("get", "s3:GetObject on arn:aws:s3:::bucket/runs/a/*"),
        ("list", "s3:ListBucket on arn:aws:s3:::bucket"),
        ("delete", "s3:DeleteObject on arn:aws:s3:::bucket/runs/a/*"),
    ],
)
def test_a_denial_names_the_permission_that_is_missing(action: words.S3Action, permission: str) -> None:
    error = S3Error("denied", code="AccessDenied", status=403).error(action, PLACE)
    assert permission in str(error)
    assert "permission denied (AccessDenied, 403)" in str(error)
    assert "sse" not in str(error)


def test_every_kind_of_fault_has_words_and_becomes_a_sink_error() -> None:
    for kind in words.S3ErrorKind.__args__:  # type: ignore[attr-defined]
        for action in words.S3Action.__args__:  # type: ignore[attr-defined]
            error = S3Error(kind).error(action, PLACE, "index/x")
            assert isinstance(error, SinkKeyError) == (kind == "missing" and action == "get")
            assert error.kind in ("gone" if isinstance(error, SinkKeyError) else "", "denied", "transient")
            assert "s3://bucket/runs/a" in str(error)


@pytest.mark.parametrize(
    "code", ["SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "BadDigest"]
)
def test_what_can_pass_is_tried_again(code: str, stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    sink = opened()
    stub.set(fail_next=[code, code])
    sink.put("a", [b"data"])
    stub.set(fail_next=[code])
    assert sink.get("a") == b"data"
    stub.set(fail_next=[code])
    assert sink.list("") == ["a"]
    stub.set(fail_next=[code])
    sink.delete("a")
    assert stub.objects() == {}
    assert sum(sink.report()["retries"].values()) == 5


@pytest.mark.parametrize("setting", ["lose_replies", "reset_replies"])
def test_a_connection_that_breaks_is_made_again(
    setting: str, stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    sink = opened()
    stub.set(**{setting: 2})
    sink.put("a", [b"data"])
    stub.set(**{setting: 1})
    assert sink.get("a") == b"data"
    # aiohttp opens some of the connections again without a report
    assert set(sink.report()["retries"]) <= {"connection"}


def test_connections_that_close_without_a_word_are_no_fault_to_the_caller(
    stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    stub.set(requests_per_connection=1)
    sink = opened()
    for at in range(5):
        sink.put(f"a{at}", [b"data"])
    assert len(sink.list("")) == 5


def test_damaged_bytes_are_sent_again(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(corrupt_bodies=2)
    sink = opened()
    sink.put("a", [b"data"])
    assert stub.objects() == {"p/a": b"data"}
    assert sum(sink.report()["retries"].values()) == 2


def test_no_answer_is_a_timeout_and_tried_again(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(hang=1)
    sink = opened(connect_timeout="0.1", read_timeout="0.3")
    sink.put("a", [b"data"])
    stub.set(hang=1)
    assert sink.get("a") == b"data"
    assert sink.report()["retries"] == {"timeout": 2}


def test_a_storm_passes(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(slow_down=0.4, errors={"InternalError": 0.1}, seed=7)
    sink = opened()
    for at in range(20):
        sink.put(f"a{at}", [b"data"])
    stub.set(slow_down=0.0, errors={})
    assert len(stub.objects()) == 20


def test_the_service_says_how_long_to_wait(
    stub: StubServer, opened: Callable[..., S3Sink], engine: str
) -> None:
    if engine == "obstore":
        pytest.skip("obstore does not show the headers of an error")
    stub.set(fail_next=["SlowDown"], retry_after=40.0)
    with pytest.raises(SinkError, match="SlowDown"):
        opened().put("a", [b"data"])  # 40 s is longer than the client waits


def test_without_patience_there_is_one_try(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    sink = opened(patience=0)
    stub.set(refuse=True)
    with pytest.raises(SinkError, match="the service limits the rate of requests") as caught:
        sink.put("a", [b"data"])
    assert caught.value.kind == "transient"
    assert len(stub.log("PutObject")) == 1


def test_the_same_failure_has_the_same_words(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    sink = opened(patience=0)
    stub.set(refuse=True)
    texts = set()
    for at in range(3):
        with pytest.raises(SinkError) as caught:
            sink.put(f"a{at}", [b"data"])
        texts.add(str(caught.value))
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("actions", "call", "match"),
    [
        (["PutObject"], lambda sink: sink.put("a", [b"x"]), "s3:PutObject on arn:aws:s3:::.*/p/\\*"),
        (["PutObject"], lambda sink: sink.put_new("b", [b"x"]), "s3:PutObject"),
        (["GetObject"], lambda sink: sink.get("a"), "s3:GetObject"),
        (["ListBucket"], lambda sink: sink.list(""), "s3:ListBucket on arn:aws:s3:::"),
        (["DeleteObject"], lambda sink: sink.delete("a"), "s3:DeleteObject"),
    ],
)
def test_a_denial_is_told_at_once(
    actions: list[str],
    call: Callable[[S3Sink], Any],
    match: str,
    stub: StubServer,
    opened: Callable[..., S3Sink],
) -> None:
    sink = opened()
    stub.set(deny=actions)
    with pytest.raises(SinkError, match=match) as caught:
        call(sink)
    assert caught.value.kind == "denied"
    assert sink.report()["retries"] == {}


def test_a_missing_bucket_is_told_at_once_and_never_made(
    stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    stub.set(missing_bucket=True)
    sink = opened()
    for call in (lambda: sink.put("a", [b"x"]), lambda: sink.list(""), lambda: sink.put_new("a", [b"x"])):
        with pytest.raises(SinkError, match="no such bucket") as caught:
            call()
        assert caught.value.kind == "denied"
    assert stub.log("CreateBucket") == []


def test_a_missing_bucket_is_not_a_missing_object(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(missing_bucket=True)
    with pytest.raises(SinkError, match="no such bucket") as caught:
        opened().get("a")
    assert not isinstance(caught.value, SinkKeyError)


def test_a_put_new_whose_reply_was_lost_is_ours(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    sink = opened()
    stub.set(lose_replies=1, only=["PutObject"])
    assert sink.put_new("a", [b"ours"])
    assert not sink.put_new("a", [b"ours"])


def test_a_put_new_that_finds_a_strangers_object_after_a_fault_lost(
    stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    """The other writer put its object between our first attempt, which failed, and the second one."""
    sink, stranger = opened(), opened()
    stranger.put("warm", [b""])
    stub.set(fail_next=["", "InternalError"], latency=0.0)
    result: list[bool] = []
    pausing = threading.Event()
    original = asyncio.sleep

    async def slow(seconds: float) -> None:
        if seconds and seconds > 0.002:
            pausing.set()
            while "p/a" not in stub.objects():
                await original(0.01)
        await original(0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tdcore.sinks.s3.store.asyncio.sleep", slow)
        thread = threading.Thread(target=lambda: result.append(sink.put_new("a", [b"ours"])))
        thread.start()
        assert pausing.wait(20)
        stranger.put("a", [b"theirs"])
        thread.join()
    assert result == [False]
    assert stub.objects()["p/a"] == b"theirs"


def test_without_conditional_puts_one_after_the_other_still_exclude(
    stub: StubServer, opened: Callable[..., S3Sink]
) -> None:
    for setting in ("ignore_if_none_match", "not_implemented_if_none_match"):
        stub.reset()
        stub.set(**{setting: True})
        sink = opened()
        assert sink.put_new("a", [b"first"])
        assert not sink.put_new("a", [b"second"])
        assert stub.objects() == {"p/a": b"first"}


def test_put_new_works_without_the_right_to_look(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(deny=["GetObject", "ListBucket"])
    sink = opened()
    assert sink.put_new("a", [b"first"])
    assert not sink.put_new("a", [b"second"])


@pytest.mark.parametrize(
    ("host", "match"),
    [
        ("http://127.0.0.1:{port}", "no server answers at the endpoint"),
        ("http://no-such-host.invalid:9", "host is not known"),
    ],
)
def test_nobody_there_is_transient(host: str, match: str, stub: StubServer, engine: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = S3Options(endpoint_url=host.format(port=port), region="eu-west-1", engine=engine)  # type: ignore[arg-type]
    sink = S3Sink(url.at("s3://bucket/p"), patience=timedelta(seconds=0))
    with pytest.raises(SinkError, match=match) as caught:
        sink.put("a", [b"x"])
    assert caught.value.kind == "transient"
    sink.close()


def test_patience_ends(stub: StubServer, opened: Callable[..., S3Sink]) -> None:
    stub.set(refuse=True)
    sink = opened(patience=0.3)
    with pytest.raises(SinkError):
        sink.get("a")  # although the service still refuses
    assert len(stub.log("GetObject")) >= 2
