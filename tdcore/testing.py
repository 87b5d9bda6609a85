"""Tests for classes of other packages that implement tdcore's protocols. This module needs pytest.

`SinkContract` has the tests that every sink must pass:

    class TestMySink(SinkContract):
        @pytest.fixture
        def sink(self) -> Sink: ...        # an empty place, for one run
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tdcore.sinks.base import Buffer, Sink, SinkKeyError

__all__ = ["SinkContract"]

_BAD_KEYS = (
    *("", "/", "/etc/passwd", "index/", "index//x", "..", "../x", "index/../x", "index/.."),
    *(".", "./x", "index/./x", "index\\x", "a\nb", "a\0b", ".tmp-x", "index/.tmp-x/y", "k" * 1025),
)


class SinkContract:
    """Tests of the behaviour that tdcore needs of a sink. Subclass it and define the fixture `sink`."""

    @pytest.fixture
    def sink(self) -> Sink:
        """An empty sink."""
        raise NotImplementedError("give the fixture `sink`")

    def test_what_was_put_is_what_one_gets(self, sink: Sink) -> None:
        """The same bytes are returned."""
        sink.put("index/worker_0/a.parquet", [b"some bytes"])
        assert sink.get("index/worker_0/a.parquet") == b"some bytes"

    def test_parts_are_stored_one_after_the_other(self, sink: Sink) -> None:
        """Every kind of buffer is accepted."""
        parts: list[Buffer] = [
            b"one ",
            bytearray(b"two "),
            memoryview(b"three"),
            b"",
            memoryview(b"xx four xx")[2:7],
        ]
        sink.put("data/a", parts)
        assert sink.get("data/a") == b"one two three four"

    def test_parts_of_wider_elements_are_stored_as_bytes(self, sink: Sink) -> None:
        """A buffer of doubles is stored as its bytes."""
        doubles: Any = memoryview(bytes(range(16))).cast("d")
        sink.put("data/a", [doubles])
        assert sink.get("data/a") == bytes(range(16))

    @pytest.mark.parametrize("parts", [[], [b""]], ids=["no parts", "an empty part"])
    def test_an_empty_object_is_an_object(self, sink: Sink, parts: Sequence[bytes]) -> None:
        """An empty object is listed and can be read."""
        sink.put("control/empty", parts)
        assert sink.get("control/empty") == b""
        assert sink.list("control/") == ["control/empty"]

    @pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 3 * 1024 * 1024 + 5])
    def test_every_size_survives(self, sink: Sink, size: int) -> None:
        """Objects of sizes near page and block sizes are stored unchanged."""
        data = bytes(at * 131 % 251 for at in range(997)) * (size // 997 + 1)
        sink.put("data/a", [memoryview(data)[: size // 2], memoryview(data)[size // 2 : size]])
        assert sink.get("data/a") == data[:size]

    def test_a_second_put_replaces_the_object(self, sink: Sink) -> None:
        """The second object may be shorter."""
        sink.put("run.json", [b"a long first version"])
        sink.put("run.json", [b"second"])
        assert sink.get("run.json") == b"second"
        assert sink.list("") == ["run.json"]

    def test_put_new_makes_an_object_only_once(self, sink: Sink) -> None:
        """The first object is kept."""
        assert sink.put_new("attempts/0000", [b"first"])
        assert not sink.put_new("attempts/0000", [b"second"])
        assert sink.get("attempts/0000") == b"first"
        assert sink.list("attempts/") == ["attempts/0000"]

    def test_of_many_who_put_new_exactly_one_wins(self, sink: Sink) -> None:
        """The object has the data of the only writer that got True."""
        won: list[bytes] = []
        start = threading.Barrier(8)

        def claim(name: bytes) -> None:
            start.wait()
            if sink.put_new("attempts/0000", [name]):
                won.append(name)

        threads = [threading.Thread(target=claim, args=(b"%d" % at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert sink.get("attempts/0000") == won[0]

    def test_a_missing_object_is_a_key_error_that_names_it(self, sink: Sink) -> None:
        """The error is also a FileNotFoundError."""
        for read in (sink.get, lambda key: sink.tail(key, 4), lambda key: sink.get_ranges(key, [(0, 1)])):
            with pytest.raises(SinkKeyError, match="index/none") as caught:
                read("index/none")
            assert isinstance(caught.value, FileNotFoundError)

    def test_the_folder_of_an_object_is_not_an_object(self, sink: Sink) -> None:
        """Folders, if the sink has any, cannot be read."""
        sink.put("data/worker_0/a", [b"x"])
        with pytest.raises(SinkKeyError):
            sink.get("data/worker_0/a/b")
        with pytest.raises(SinkKeyError):
            sink.get("data/worker_0")

    def test_the_tail_is_the_end_of_the_object(self, sink: Sink) -> None:
        """A shorter object is returned whole."""
        sink.put("index/a", [b"0123456789"])
        assert sink.tail("index/a", 4) == b"6789"
        assert sink.tail("index/a", 10) == b"0123456789"
        assert sink.tail("index/a", 100) == b"0123456789"

    def test_ranges_are_pieces_of_the_object(self, sink: Sink) -> None:
        """Ranges are returned in the requested order. They may overlap, be empty, or pass the end."""
        sink.put("data/a", [b"0123456789"])
        asked = [(7, 2), (0, 3), (1, 3), (4, 0), (8, 100), (10, 5)]
        got = [bytes(piece) for piece in sink.get_ranges("data/a", asked)]
        assert got == [b"78", b"012", b"123", b"", b"89", b""]
        assert sink.get_ranges("data/a", []) == []

    def test_ranges_far_apart_in_a_large_object(self, sink: Sink) -> None:
        """A sink may fetch neighbouring ranges together; the bytes are the same."""
        data = bytes(at * 7 % 251 for at in range(251)) * 20_000
        sink.put("data/a", [data])
        asked = [(at * 37_001, 1_000) for at in range(100)] + [(4_999_990, 10), (0, 1)]
        got = [bytes(piece) for piece in sink.get_ranges("data/a", asked)]
        assert got == [data[offset : offset + length] for offset, length in asked]

    def test_a_listing_is_sorted_and_holds_what_the_prefix_says(self, sink: Sink) -> None:
        """The prefix need not end with a folder."""
        keys = ["a/10", "a/2", "a/b/c", "ab/1", "b/1", "run.json"]
        for key in reversed(keys):
            sink.put(key, [b"x"])
        assert sink.list("") == keys
        assert sink.list("a/") == ["a/10", "a/2", "a/b/c"]
        assert sink.list("a") == ["a/10", "a/2", "a/b/c", "ab/1"]
        assert sink.list("a/1") == ["a/10"]
        assert sink.list("c/") == []

    def test_a_listing_can_start_after_a_key(self, sink: Sink) -> None:
        """The key need not exist."""
        for key in ("a/1", "a/2", "a/3"):
            sink.put(key, [b"x"])
        assert sink.list("a/", after="a/1") == ["a/2", "a/3"]
        assert sink.list("a/", after="a/25") == ["a/3"]
        assert sink.list("a/", after="a/3") == []

    def test_a_deleted_object_is_gone_and_may_be_deleted_again(self, sink: Sink) -> None:
        """Deleting a missing object is not an error."""
        sink.put("a/1", [b"x"])
        sink.delete("a/1")
        sink.delete("a/1")
        sink.delete("never/there")
        assert sink.list("") == []
        with pytest.raises(SinkKeyError):
            sink.get("a/1")

    def test_cleaning_leaves_finished_objects_alone(self, sink: Sink) -> None:
        """Cleaning has no effect when there is no object under the prefix."""
        sink.put("index/worker_0/a", [b"x"])
        sink.clean("index/worker_0/")
        sink.clean("data/worker_0/")
        assert sink.list("") == ["index/worker_0/a"]

    @pytest.mark.parametrize("key", _BAD_KEYS, ids=repr)
    def test_a_key_that_could_leave_the_run_is_refused(self, sink: Sink, key: str) -> None:
        """Every operation with a key rejects such a key."""
        with pytest.raises(ValueError, match="key"):
            sink.put(key, [b"x"])
        with pytest.raises(ValueError, match="key"):
            sink.put_new(key, [b"x"])
        with pytest.raises(ValueError, match="key"):
            sink.get(key)
        with pytest.raises(ValueError, match="key"):
            sink.tail(key, 1)
        with pytest.raises(ValueError, match="key"):
            sink.get_ranges(key, [(0, 1)])
        with pytest.raises(ValueError, match="key"):
            sink.delete(key)
        assert sink.list("") == []

    @pytest.mark.parametrize("prefix", ["../", "/", "a/../", "a//", "a/../../b"])
    def test_a_prefix_that_could_leave_the_run_is_refused(self, sink: Sink, prefix: str) -> None:
        """Prefixes are checked like keys."""
        with pytest.raises(ValueError, match="key"):
            sink.list(prefix)
        with pytest.raises(ValueError, match="key"):
            sink.clean(prefix)

    def test_readers_never_see_a_piece_of_an_object(self, sink: Sink) -> None:
        """While an object is replaced, readers get the old version or the new one."""
        versions = [bytes([at]) * 300_000 for at in range(2)]
        sink.put("run.json", [versions[0]])
        seen: set[bytes] = set()
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                seen.add(sink.get("run.json"))
            seen.add(sink.get("run.json"))

        reader = threading.Thread(target=read)
        reader.start()
        for at in range(20):
            sink.put("run.json", [versions[at % 2][:100_000], versions[at % 2][100_000:]])
        done.set()
        reader.join()
        assert seen <= set(versions)

    def test_a_sink_can_be_closed_twice(self, sink: Sink) -> None:
        """The second call has no effect."""
        sink.put("a/1", [b"x"])
        sink.close()
        sink.close()
