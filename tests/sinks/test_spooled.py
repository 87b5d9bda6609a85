"""SpooledSink: writes directly to the bucket while it is fast enough, else through the spool; in order."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.errors import SinkError
from tdcore.sinks.s3 import S3Sink
from tdcore.sinks.spool import Spool
from tdcore.sinks.spooled import SpooledSink
from tdcore.testing import SinkContract
from tests.s3.fixtures import Place
from tests.s3.servers import Server, StubServer
from tests.waiting import wait_until

SEGMENT = "data/worker_0/{}"
INDEX = "index/worker_0/{}"
Open = Callable[..., SpooledSink]


class TestContract(SinkContract):
    """SpooledSink fulfils the contract of sinks."""

    @pytest.fixture
    def sink(self, moto: Server, s3_prefix: str, tmp_path: Path) -> Iterator[SpooledSink]:
        url = moto.url(s3_prefix)
        with contextlib.closing(SpooledSink(S3Sink(url), Spool(tmp_path / "spool", url=url))) as sink:
            yield sink


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def place(stub: StubServer, s3_prefix: str) -> Place:
    return Place(server=stub, prefix=s3_prefix)


@pytest.fixture
def open_sink(place: Place, tmp_path: Path, said: list[str]) -> Iterator[Open]:
    """Open sinks on the same spool; they are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(*, limit: int | None = None, relief: float = 0.2, **options: str) -> SpooledSink:
            url = place.url(**{"connect_timeout": "1", "read_timeout": "2", **options})
            spool = Spool(tmp_path / "spool", url=url, limit_bytes=limit)
            sink = SpooledSink(
                S3Sink(url, patience=timedelta(seconds=0.3)),
                spool,
                spill_after=timedelta(seconds=0.2),
                relief=timedelta(seconds=relief),
                log=said.append,
            )
            stack.callback(sink.close)
            return sink

        yield make


def batch(number: int, size: int = 1000) -> list[tuple[str, list[bytes]]]:
    """Return a segment and its index file."""
    return [
        (SEGMENT.format(number), [bytes([number]) * size]),
        (INDEX.format(number), [b"index %d" % number]),
    ]


def expected(numbers: range, size: int = 1000) -> dict[str, bytes]:
    return {key: b"".join(parts) for number in numbers for key, parts in batch(number, size)}


def settled(sink: SpooledSink) -> bool:
    return not sink.waiting and not sink.trouble


def puts(stub: StubServer, prefix: str) -> list[str]:
    """Return the keys of the successful puts, in the order in which they were answered."""
    done = [entry for entry in stub.log("PutObject") if entry["status"] == 200]
    return [entry["key"].removeprefix(prefix + "/") for entry in done]


def test_while_the_bucket_keeps_up_nothing_touches_the_disk(
    open_sink: Open, place: Place, tmp_path: Path
) -> None:
    sink = open_sink()
    for future in [sink.start(batch(number)) for number in range(10)]:
        future.result(20)
    assert place.objects() == expected(range(10))
    assert sink.report()["spooled"] == {"objects": 0, "bytes": 0, "damaged": 0}
    assert not (tmp_path / "spool" / "objects").exists()


def test_an_index_file_is_put_after_its_segment_and_after_earlier_index_files(
    open_sink: Open, stub: StubServer, place: Place
) -> None:
    stub.set(latency=0.02)
    sink = open_sink()
    for future in [sink.start(batch(number, size=(9 - number) * 40_000)) for number in range(10)]:
        future.result(20)
    order = puts(stub, place.prefix)
    assert [key for key in order if key.startswith("index")] == [INDEX.format(n) for n in range(10)]
    for number in range(10):
        assert order.index(SEGMENT.format(number)) < order.index(INDEX.format(number))


def test_several_are_on_their_way_at_once(open_sink: Open, stub: StubServer) -> None:
    stub.set(latency=0.2)
    sink = open_sink()
    for future in [sink.start(batch(number)) for number in range(6)]:
        future.result(20)
    connections = {entry["connection"] for entry in stub.log("PutObject")}
    assert len(connections) > 1  # sequential requests would need one


def test_what_an_absent_bucket_does_not_take_waits_in_the_spool_and_follows_in_order(
    open_sink: Open, stub: StubServer, place: Place, said: list[str]
) -> None:
    sink = open_sink()
    sink.start(batch(0)).result(20)
    stub.set(refuse=True)
    for future in [sink.start(batch(number)) for number in range(1, 6)]:
        future.result(20)  # durable, although the bucket contains none of it
    assert place.objects() == expected(range(1))
    assert sink.waiting == 10
    assert sink.trouble
    assert len(said) == 1
    assert str(sink.report()["spooled"]["objects"]) == "10"
    stub.set(refuse=False)
    wait_until(lambda: settled(sink))
    assert place.objects() == expected(range(6))
    order = puts(stub, place.prefix)
    assert [key for key in order if key.startswith("index")] == [INDEX.format(n) for n in range(6)]


def test_after_a_time_of_trouble_the_straight_way_is_taken_again(
    open_sink: Open, stub: StubServer, place: Place
) -> None:
    sink = open_sink()
    stub.set(refuse=True)
    sink.start(batch(0)).result(20)
    stub.set(refuse=False)
    wait_until(lambda: settled(sink))
    spooled = sink.report()["spooled"]["objects"]
    sink.start(batch(1)).result(20)
    assert sink.report()["spooled"]["objects"] == spooled
    assert place.objects() == expected(range(2))


def test_missing_permission_is_told_once_and_loses_nothing(
    open_sink: Open, stub: StubServer, place: Place, said: list[str]
) -> None:
    stub.set(deny=["PutObject"])
    sink = open_sink()
    for number in range(3):
        sink.start(batch(number)).result(20)
    assert len(said) == 1
    assert "s3:PutObject" in said[0]
    stub.set(deny=[])
    wait_until(lambda: settled(sink))
    assert place.objects() == expected(range(3))


def test_when_memory_is_needed_what_is_on_its_way_goes_to_the_spool(
    open_sink: Open, stub: StubServer, place: Place
) -> None:
    stub.set(hang=3)  # until the client times out, which takes longer than this test
    sink = open_sink(relief=0.1, read_timeout="600")
    futures = [sink.start(batch(number)) for number in range(3)]
    sink.relieve()
    for future in futures:
        future.result(20)
    assert sink.report()["spooled"]["objects"] == 6
    wait_until(lambda: settled(sink))
    assert place.objects() == expected(range(3))


def test_a_need_for_memory_without_anything_on_its_way_changes_nothing(open_sink: Open) -> None:
    sink = open_sink()
    sink.start(batch(0)).result(20)
    sink.relieve()
    sink.start(batch(1)).result(20)
    assert sink.report()["spooled"]["objects"] == 0


def test_only_when_the_spool_is_full_too_the_caller_is_refused(
    open_sink: Open, stub: StubServer, place: Place
) -> None:
    stub.set(refuse=True)
    sink = open_sink(limit=2500)
    sink.start(batch(0)).result(20)
    sink.start(batch(1)).result(20)
    futures = [sink.start(batch(number)) for number in range(2, 4)]
    for future in futures:
        with pytest.raises(SinkError, match=r"spool .* is full") as caught:
            future.result(20)
        assert caught.value.kind == "full"
    stub.set(refuse=False)
    wait_until(lambda: settled(sink))
    sink.start_over()
    for number in range(2, 4):
        sink.start(batch(number)).result(20)
    assert place.objects() == expected(range(4))


def test_after_one_refusal_nothing_that_was_started_later_is_seen(
    open_sink: Open, stub: StubServer, place: Place
) -> None:
    stub.set(refuse=True)
    sink = open_sink(limit=1500)
    sink.start(batch(0)).result(20)
    futures = [sink.start(batch(1)), sink.start([(INDEX.format(2), [b"small, there would be room"])])]
    for future in futures:
        with pytest.raises(SinkError):
            future.result(20)
    stub.set(refuse=False)
    wait_until(lambda: settled(sink))
    with pytest.raises(SinkError):
        sink.start(batch(3)).result(20)  # start_over() was not called
    assert [key for key in place.objects() if key.startswith("index")] == [INDEX.format(0)]


def test_the_next_process_finishes_what_the_last_one_left(
    open_sink: Open, stub: StubServer, place: Place, said: list[str]
) -> None:
    stub.set(refuse=True)
    sink = open_sink()
    for number in range(3):
        sink.start(batch(number)).result(20)
    sink.close()
    stub.set(refuse=False)
    again = open_sink()
    again.start(batch(3)).result(20)  # after the objects that wait
    wait_until(lambda: settled(again))
    assert place.objects() == expected(range(4))
    order = puts(stub, place.prefix)
    assert [key for key in order if key.startswith("index")] == [INDEX.format(n) for n in range(4)]


def test_an_object_that_the_disk_has_damaged_is_never_sent(
    open_sink: Open, stub: StubServer, place: Place, tmp_path: Path, said: list[str]
) -> None:
    stub.set(refuse=True)
    sink = open_sink()
    sink.start(batch(0)).result(20)
    sink.close()
    damaged = tmp_path / "spool" / "objects" / "000000000000"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    stub.set(refuse=False)
    sink = open_sink()
    wait_until(lambda: settled(sink))
    assert place.objects() == {INDEX.format(0): b"index 0"}
    assert any(SEGMENT.format(0) in message and "damaged" in message for message in said)
    assert sink.report()["spooled"]["damaged"] == 1


def test_what_a_spool_holds_that_nobody_can_read_is_said_and_counted(
    open_sink: Open, stub: StubServer, tmp_path: Path, said: list[str]
) -> None:
    stub.set(refuse=True)
    sink = open_sink()
    sink.start(batch(0)).result(20)
    sink.close()
    (tmp_path / "spool" / "objects" / "000000000007").write_bytes(b"not an object")
    stub.set(refuse=False)
    sink = open_sink()
    wait_until(lambda: settled(sink))
    assert sink.report()["spooled"]["damaged"] == 1
    assert any("damaged" in message for message in said)


def test_reading_is_refused_while_the_bucket_does_not_hold_everything(
    open_sink: Open, stub: StubServer
) -> None:
    stub.set(refuse=True)
    sink = open_sink()
    sink.start(batch(0)).result(20)
    for read in (sink.get, sink.delete, sink.list, lambda key: sink.tail(key, 1)):
        with pytest.raises(SinkError, match="does not have all objects yet") as caught:
            read(INDEX.format(0))
        assert caught.value.kind == "transient"
    stub.set(refuse=False)
    wait_until(lambda: settled(sink))
    assert sink.get(INDEX.format(0)) == b"index 0"


def test_small_objects_that_were_just_sent_need_no_download(open_sink: Open, stub: StubServer) -> None:
    sink = open_sink()
    sink.start(batch(0)).result(20)
    assert sink.get(INDEX.format(0)) == b"index 0"
    assert stub.log("GetObject") == []
    sink.delete(INDEX.format(0))
    with pytest.raises(SinkError):
        sink.get(INDEX.format(0))


@pytest.mark.parametrize("engine", ["obstore", "aiobotocore"])
def test_bytes_that_were_damaged_on_the_way_are_sent_again(
    open_sink: Open, stub: StubServer, place: Place, engine: str
) -> None:
    sink = open_sink(engine=engine)
    sink.start(batch(0)).result(20)
    stub.set(corrupt_bodies=1)
    sink.start(batch(1)).result(20)
    wait_until(lambda: settled(sink))
    assert place.objects() == expected(range(2))
    assert any(entry["status"] == 400 for entry in stub.log("PutObject"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("wait", [0.0, 0.05, 0.3])
def test_closing_does_not_wait_for_an_absent_bucket(open_sink: Open, stub: StubServer, wait: float) -> None:
    stub.set(refuse=True)
    sink = open_sink()
    for number in range(10):
        sink.start(batch(number)).result(20)
    time.sleep(wait)
    sink.close()  # it would hang forever
    assert sink.waiting == 20


def test_a_closed_sink_can_be_closed_again(open_sink: Open) -> None:
    sink = open_sink()
    sink.close()
    sink.close()
