"""Both engines behave alike on three services: requests, answers, and the memory during a request."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import mmap
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import pytest

from tdcore import _core
from tdcore.sinks.s3 import parse_s3_url
from tdcore.sinks.s3.engine import S3Engine
from tdcore.sinks.s3.engine_choice import open_engine
from tdcore.sinks.s3.errors import S3Error
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer

T = TypeVar("T")
SECONDS = 20.0


def using(url: str, work: Callable[[S3Engine, Callable[[str], str]], Awaitable[T]]) -> T:
    """Return the result of work(engine, full_key)."""

    async def main() -> T:
        place = parse_s3_url(url)
        engine = await open_engine(place)
        try:
            return await work(engine, place.key)
        finally:
            await engine.close()

    return asyncio.run(main())


async def put(engine: S3Engine, key: str, data: bytes, **options: Any) -> None:
    await engine.put(key, [data], crc32c=_core.crc32c(data), seconds=SECONDS, **options)


def test_objects_come_back_in_whole_and_in_part(s3_place: Place, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        await put(engine, key("a"), b"0123456789")
        assert bytes(await engine.get(key("a"), seconds=SECONDS)) == b"0123456789"
        assert bytes(await engine.get_range(key("a"), 2, 3, seconds=SECONDS)) == b"234"
        assert bytes(await engine.get_range(key("a"), 8, 30, seconds=SECONDS)) == b"89"
        assert bytes(await engine.tail(key("a"), 4, seconds=SECONDS)) == b"6789"
        assert await engine.head(key("a"), seconds=SECONDS) == 10
        assert await engine.head(key("none"), seconds=SECONDS) is None
        await engine.delete(key("a"), seconds=SECONDS)
        await engine.delete(key("a"), seconds=SECONDS)
        with pytest.raises(S3Error) as caught:
            await engine.get(key("a"), seconds=SECONDS)
        assert caught.value.kind == "missing"

    using(s3_place.url(engine=engine), work)
    assert s3_place.objects() == {}


def test_pages_hold_what_the_prefix_says(s3_place: Place, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> list[str]:
        for name in ("a/1", "a/2", "ab/1", "b"):
            await put(engine, key(name), b"x")
        pages = [page async for page in engine.pages(key("a"), key("a/1"), seconds=SECONDS)]
        return [each.removeprefix(key("")) for page in pages for each in page]

    assert using(s3_place.url(engine=engine), work) == ["a/2", "ab/1"]


def test_a_put_of_what_must_be_absent_is_refused_when_it_is_there(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        await put(engine, key("a"), b"1", if_absent=True)
        with pytest.raises(S3Error) as caught:
            await put(engine, key("a"), b"2", if_absent=True)
        assert caught.value.kind == "exists"

    using(stub.url("p", engine=engine), work)
    assert stub.objects() == {"p/a": b"1"}


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ({"sse": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        ({"sse": "aws:kms"}, {"x-amz-server-side-encryption": "aws:kms"}),
        (
            {"sse": "aws:kms:dsse", "sse_kms_key_id": "key-1"},
            {
                "x-amz-server-side-encryption": "aws:kms:dsse",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
            },
        ),
        (
            {"sse": "aws:kms", "bucket_key": "true"},
            {"x-amz-server-side-encryption-bucket-key-enabled": "true"},
        ),
        ({"requester_pays": "true"}, {"x-amz-request-payer": "requester"}),
        ({"storage_class": "STANDARD_IA"}, {"x-amz-storage-class": "STANDARD_IA"}),
        ({}, {"content-type": "application/octet-stream", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}),
    ],
    ids=str,
)
def test_options_are_sent_with_an_object(
    query: dict[str, str], headers: dict[str, str], stub: StubServer, engine: str
) -> None:
    using(stub.url("p", engine=engine, **query), lambda engine, key: put(engine, key("a"), b"data"))
    sent = stub.log("PutObject")[-1]["headers"]
    assert {name: sent.get(name) for name in headers} == headers


def test_requester_pays_is_said_with_every_request(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        await put(engine, key("a"), b"data")
        await engine.get(key("a"), seconds=SECONDS)
        await engine.head(key("a"), seconds=SECONDS)
        assert [page async for page in engine.pages(key(""), "", seconds=SECONDS)] == [[key("a")]]
        await engine.delete(key("a"), seconds=SECONDS)

    stub.set(requester_pays=True)
    using(stub.url("p", engine=engine, requester_pays="true"), work)


def test_tags_are_sent_so_that_the_service_reads_them_back(stub: StubServer, engine: str) -> None:
    url = stub.url("p", engine=engine, **{"tag.team": "vision & co", "tag.a b": "c/d+e"})
    using(url, lambda engine, key: put(engine, key("a"), b"data"))
    sent = stub.log("PutObject")[-1]["headers"]["x-amz-tagging"]
    assert dict(parse_qsl(sent)) == {"team": "vision & co", "a b": "c/d+e"}


@pytest.mark.parametrize(
    ("engine", "checksum", "header"),
    [
        ("obstore", "auto", "x-amz-checksum-crc64nvme"),
        ("obstore", "crc64nvme", "x-amz-checksum-crc64nvme"),
        ("obstore", "sha256", "x-amz-checksum-sha256"),
        ("obstore", "none", ""),
        ("aiobotocore", "auto", "x-amz-checksum-crc32c"),
        ("aiobotocore", "crc32c", "x-amz-checksum-crc32c"),
        ("aiobotocore", "sha256", "x-amz-checksum-sha256"),
        ("aiobotocore", "none", ""),
    ],
)
def test_the_checksum_asked_for_travels_with_the_object(
    engine: str, checksum: str, header: str, stub: StubServer
) -> None:
    url = stub.url("p", engine=engine, checksum=checksum)
    using(url, lambda engine, key: put(engine, key("a"), b"data"))
    sent = stub.log("PutObject")[-1]["headers"]
    assert [name for name in sent if name.startswith("x-amz-checksum-")] == [header][: bool(header)]
    if header.endswith("sha256"):
        digest = hashlib.sha256(b"data").digest()
        assert sent[header] == base64.b64encode(digest).decode()
        assert sent["x-amz-content-sha256"] == digest.hex()
    assert "x-amz-trailer" not in sent
    assert sent["content-length"] == "4"


@pytest.mark.parametrize("checksum", ["auto", "sha256", "none"])
def test_a_large_object_of_many_parts_arrives_whole(checksum: str, stub: StubServer, engine: str) -> None:
    whole = bytes(range(251)) * 8_000
    cuts = [0, 1, 1, 70_000, 1_000_001, len(whole)]
    parts = [memoryview(whole)[start:end] for start, end in itertools.pairwise(cuts)]

    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        await engine.put(key("a"), parts, crc32c=_core.crc32c(whole), seconds=SECONDS)

    using(stub.url("p", engine=engine, checksum=checksum), work)
    assert stub.objects() == {"p/a": whole}


def test_bytes_damaged_on_the_way_are_refused_by_the_service(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> S3Error:
        with pytest.raises(S3Error) as caught:
            await put(engine, key("a"), b"data")
        return caught.value

    stub.set(corrupt_bodies=1)
    fault = using(stub.url("p", engine=engine), work)
    assert (fault.kind, fault.retry) == ("damaged", True)
    assert stub.objects() == {}


def test_a_crc32c_that_is_not_that_of_the_bytes_is_refused(stub: StubServer) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        assert engine.sends_crc32c
        with pytest.raises(S3Error, match="bytes changed"):
            await engine.put(key("a"), [b"data"], crc32c=_core.crc32c(b"dasa"), seconds=SECONDS)

    using(stub.url("p", engine="aiobotocore"), work)


def test_one_can_ask_whether_the_service_refuses_damage(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> bool:
        return await engine.refuses_damage(key("a"), seconds=SECONDS)

    assert using(stub.url("p", engine=engine), work)
    stub.set(ignore_checksums=True)
    assert not using(stub.url("p", engine=engine), work)


def test_after_a_put_the_memory_is_free(stub: StubServer, engine: str) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    view = memoryview(memory)

    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        part = view[: 1 << 19]
        await engine.put(key("a"), [part, view[1 << 19 :]], crc32c=_core.crc32c(view), seconds=SECONDS)
        part.release()

    using(stub.url("p", engine=engine), work)
    view.release()
    memory.close()  # BufferError while any object still uses the buffer
    assert stub.objects()["p/a"] == bytes(1 << 20)


def test_a_cancelled_put_ends_at_once_and_leaves_the_memory_free(stub: StubServer, engine: str) -> None:
    memory = mmap.mmap(-1, 8 << 20)
    view = memoryview(memory)
    crc = _core.crc32c(view)

    async def work(engine: S3Engine, key: Callable[[str], str]) -> None:
        task = asyncio.ensure_future(engine.put(key("a"), [view], crc32c=crc, seconds=300))
        while (await asyncio.to_thread(stub.settings))["hang"]:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)
        view.release()
        memory.close()

    stub.set(hang=1)
    using(stub.url("p", engine=engine), work)
    assert stub.objects() == {}


def test_a_put_without_an_answer_is_a_timeout(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> S3Error:
        with pytest.raises(S3Error) as caught:
            await engine.put(key("a"), [b"data"], crc32c=_core.crc32c(b"data"), seconds=0.3)
        return caught.value

    stub.set(hang=1)
    fault = using(stub.url("p", engine=engine), work)
    assert (fault.kind, fault.retry, fault.ambiguous) == ("timeout", True, True)


def test_a_get_without_an_answer_is_a_timeout(stub: StubServer, engine: str) -> None:
    async def work(engine: S3Engine, key: Callable[[str], str]) -> S3Error:
        with pytest.raises(S3Error) as caught:
            await engine.get(key("a"), seconds=0.3)
        return caught.value

    stub.set(hang=1)
    assert using(stub.url("p", engine=engine, read_timeout="0.3"), work).kind == "timeout"


def test_another_end_point_in_the_environment_does_not_stand_above_the_options(
    stub: StubServer, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    using(stub.url("p", engine=engine), lambda engine, key: put(engine, key("a"), b"data"))
    assert stub.objects() == {"p/a": b"data"}
