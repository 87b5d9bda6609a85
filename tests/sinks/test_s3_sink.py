"""S3Sink fulfils the contract of sinks on three services with both engines; its special features."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from tdcore.errors import SinkError, SinkKeyError
from tdcore.sinks import Sink
from tdcore.sinks.base import ReadAheadSink
from tdcore.sinks.s3 import S3Sink
from tdcore.testing import _BAD_KEYS, SinkContract
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer


@pytest.fixture
def opened(stub: StubServer, s3_prefix: str, engine: str) -> Iterator[S3Sink]:
    sink = S3Sink(stub.url(s3_prefix, engine=engine))
    yield sink
    sink.close()


class TestS3Sink(SinkContract):
    service = ""

    @pytest.fixture
    def sink(self, s3_place: Place, engine: str) -> Iterator[Sink]:
        self.service = s3_place.server.name
        sink = S3Sink(s3_place.url(engine=engine))
        yield sink
        sink.close()

    def test_of_many_who_put_new_exactly_one_wins(self, sink: Sink) -> None:
        if self.service == "rclone":
            pytest.skip("rclone ignores If-None-Match: only sequential writers exclude each other")
        super().test_of_many_who_put_new_exactly_one_wins(sink)

    def test_readers_never_see_a_piece_of_an_object(self, sink: Sink) -> None:
        if self.service == "rclone":
            pytest.skip("rclone writes into the object while others read it")
        super().test_readers_never_see_a_piece_of_an_object(sink)

    def test_a_key_that_could_leave_the_run_is_refused(self, sink: Sink) -> None:  # type: ignore[override]
        """All keys use one sink, because creating a client for each takes long."""
        for key in _BAD_KEYS:
            super().test_a_key_that_could_leave_the_run_is_refused(sink, key)


def test_importing_it_imports_no_client() -> None:
    code = (
        "import sys, tdcore.sinks, tdcore.sinks.s3.options, tdcore.sinks.s3.sink;"
        "clients = {'obstore', 'botocore', 'aiobotocore', 'aiohttp'} & set(sys.modules);"
        "sys.exit(str(clients) if clients else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_making_one_sends_nothing(opened: S3Sink, stub: StubServer) -> None:
    assert isinstance(opened, ReadAheadSink)
    assert opened.where == f"s3://{stub.bucket}/{opened.place.prefix}"
    assert opened.loop._thread is None
    assert stub.log() == []


def test_an_empty_prefix_is_the_whole_bucket(stub: StubServer, engine: str) -> None:
    sink = S3Sink(stub.url(engine=engine))
    sink.put("a/1", [b"x"])
    assert stub.objects() == {"a/1": b"x"}
    assert sink.list("") == ["a/1"]
    assert sink.list("", after="a/1") == []
    sink.close()


def test_a_listing_leaves_out_neighbours_that_begin_alike(
    stub: StubServer, s3_prefix: str, engine: str
) -> None:
    sink, other = (S3Sink(stub.url(prefix, engine=engine)) for prefix in (s3_prefix, s3_prefix + "0"))
    other.put("a", [b"x"])
    sink.put("b", [b"x"])
    assert sink.list("") == ["b"]
    sink.close()
    other.close()


def test_a_listing_of_many_pages_is_whole_and_a_late_start_takes_few(
    opened: S3Sink, stub: StubServer
) -> None:
    stub.set(max_keys=10)
    keys = [f"index/{at:03}" for at in range(57)]
    for key in keys:
        opened.put(key, [b""])
    assert opened.list("index/") == keys
    before = len(stub.log("ListBucket"))
    assert opened.list("index/", after="index/050") == keys[51:]
    assert len(stub.log("ListBucket")) == before + 1
    assert opened.list("index/05") == keys[50:]


def test_keys_may_hold_what_urls_may_not(opened: S3Sink, stub: StubServer) -> None:
    keys = sorted(["data/a b+c%2F=&?#.x", "data/\u00fcber/\u65e5\u672c", "data/a'(b)!*~,;:@$"])
    for key in keys:
        opened.put(key, [key.encode()])
    assert opened.list("") == keys
    assert [opened.get(key).decode() for key in keys] == keys
    assert sorted(stub.objects()) == [opened.place.key(key) for key in keys]


def test_ranges_close_together_come_with_one_request(opened: S3Sink, stub: StubServer) -> None:
    opened.put("data/a", [bytes(range(250)) * 20_000])
    before = len(stub.log("GetObject"))
    pieces = opened.get_ranges("data/a", [(at * 1000, 100) for at in range(1000)] + [(4_000_000, 10)])
    assert all(bytes(piece) == bytes(range(100)) for piece in pieces[:1000])
    assert len(stub.log("GetObject")) == before + 2


def test_a_range_beyond_the_end_is_empty(opened: S3Sink) -> None:
    opened.put("data/a", [b"0123456789"])
    assert [bytes(piece) for piece in opened.get_ranges("data/a", [(50, 5)])] == [b""]
    opened.put("data/empty", [])
    assert [bytes(piece) for piece in opened.get_ranges("data/empty", [(0, 5)])] == [b""]
    assert opened.tail("data/empty", 5) == b""


def test_no_ranges_of_a_missing_object_are_a_key_error_too(opened: S3Sink) -> None:
    with pytest.raises(SinkKeyError):
        opened.get_ranges("data/none", [])


def test_what_was_announced_is_fetched_once_and_together(opened: S3Sink, stub: StubServer) -> None:
    keys = [f"index/{at:03}" for at in range(100)]
    for key in keys:
        opened.put(key, [key.encode()])
    opened.prefetch(keys)
    assert [opened.get(key).decode() for key in keys] == keys
    assert len(stub.log("GetObject")) == 100
    assert opened.get(keys[0]).decode() == keys[0]
    assert len(stub.log("GetObject")) == 101


def test_what_was_announced_and_is_not_there_is_asked_for_again(opened: S3Sink) -> None:
    opened.prefetch(["index/a", "not/../a key"])
    opened.prefetch(["index/a"])
    with pytest.raises(SinkKeyError):
        opened.get("index/a")
    opened.put("index/a", [b"x"])
    assert opened.get("index/a") == b"x"


def test_a_get_can_be_started_without_waiting(opened: S3Sink) -> None:
    opened.put("a", [b"x"])
    futures = [opened.start_get("a") for _ in range(3)]
    assert [future.result() for future in futures] == [b"x"] * 3


def test_after_close_every_call_says_so(opened: S3Sink) -> None:
    opened.put("a", [b"x"])
    opened.close()
    opened.prefetch(["a"])
    with pytest.raises(SinkError, match="closed"):
        opened.get("a")


def test_closing_ends_what_waits_and_leaves_no_thread(stub: StubServer, s3_prefix: str, engine: str) -> None:
    before = set(threading.enumerate())
    sink = S3Sink(stub.url(s3_prefix, engine=engine))
    sink.put("a", [b"x"])
    stub.set(hang=1)
    waiting = sink.start_get("a")
    while stub.settings()["hang"]:
        pass
    sink.close()
    with pytest.raises(CancelledError):
        waiting.result(timeout=10)
    assert "tdcore-s3" not in {each.name for each in set(threading.enumerate()) - before}


_FORKED = """
import os, sys
from tdcore.errors import SinkError
from tdcore.sinks.s3 import S3Sink

sink = S3Sink(sys.argv[1])
sink.put("a", [b"x"])
with sink.loop._lock:  # as when another thread is at work in that moment
    child = os.fork()
if child == 0:
    words = []
    for call in (lambda: sink.get("a"), lambda: sink.start_get("a"), lambda: sink.list("")):
        try:
            call()
        except SinkError as error:
            words.append(str(error))
    sink.prefetch(["a"])
    sink.close()
    sink.close()
    print(*words, sep="\\n", flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert sink.get("a") == b"x"
sink.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_is_told_to_open_the_run_again(
    stub: StubServer, s3_prefix: str, engine: str, tmp_path: Path
) -> None:
    (tmp_path / "forked.py").write_text(_FORKED)
    command = [sys.executable, str(tmp_path / "forked.py"), stub.url(s3_prefix, engine=engine)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert len(words) == 3
    assert all("was opened before a fork; open the run again in this process" in word for word in words)


def test_the_report_counts(opened: S3Sink) -> None:
    opened.put("a", [b"x" * 1000])
    opened.get("a")
    report = opened.report()
    assert (report["requests"], report["bytes_sent"], report["bytes_received"]) == (2, 1000, 1000)
    assert report["retries"] == {}
