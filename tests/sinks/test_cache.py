"""The cache of index files: copies are correct or absent; it is bounded, shared, and survives errors."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tdcore.sinks import MemorySink, Sink, SinkKeyError
from tdcore.sinks.cache import CachedSink, DiskCache, cache_folder
from tdcore.testing import SinkContract

KEY = "index/worker_0/0000-000000000000-000000000001.parquet"


def counted(inner: MemorySink) -> list[str]:
    """Return a list that gets the key of each object that is read from the sink itself."""
    seen: list[str] = []
    inner.fault = lambda operation, key: seen.append(key) if operation == "get" else None
    return seen


def cached(inner: Sink, folder: Path, place: str = "here", run_id: str = "1") -> CachedSink:
    sink = CachedSink(inner, place, DiskCache(folder))
    sink.use(run_id)
    return sink


class TestCachedSink(SinkContract):
    """A sink behind a cache fulfils the contract of sinks, as long as index files do not change."""

    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return CachedSink(MemorySink(), "here", DiskCache(tmp_path))


def test_an_index_file_is_read_from_its_place_once(tmp_path: Path) -> None:
    inner = MemorySink()
    inner.put(KEY, [b"rows"])
    seen = counted(inner)
    for _ in range(3):
        assert cached(inner, tmp_path).get(KEY) == b"rows"
    assert seen == [KEY]


def test_what_may_change_is_not_kept(tmp_path: Path) -> None:
    inner = MemorySink()
    sink = cached(inner, tmp_path)
    for key in ("run.json", "end/worker_0/0000.json", "findings/x.jsonl"):
        for text in (b"first", b"second"):
            inner.put(key, [text])
            assert sink.get(key) == text


@pytest.mark.parametrize(("place", "run_id"), [("there", "1"), ("here", "2")])
def test_another_run_has_copies_of_its_own(tmp_path: Path, place: str, run_id: str) -> None:
    inner = MemorySink()
    inner.put(KEY, [b"of the first run"])
    cached(inner, tmp_path).get(KEY)
    inner.put(KEY, [b"of the second"])
    assert cached(inner, tmp_path, place, run_id).get(KEY) == b"of the second"


def test_nothing_is_kept_before_the_run_is_known(tmp_path: Path) -> None:
    inner = MemorySink()
    inner.put(KEY, [b"rows"])
    CachedSink(inner, "here", DiskCache(tmp_path)).get(KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_object_is_not_kept_either(tmp_path: Path) -> None:
    inner = MemorySink()
    sink = cached(inner, tmp_path)
    with pytest.raises(SinkKeyError):
        sink.get(KEY)
    inner.put(KEY, [b"rows"])
    assert sink.get(KEY) == b"rows"


def _cut(data: bytes) -> bytes:
    return data[:-1]


def _changed(data: bytes) -> bytes:
    return b"X" + data[1:]


def _gone(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_cut, _changed, _gone])
def test_a_damaged_copy_is_no_copy(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    inner = MemorySink()
    inner.put(KEY, [b"rows"])
    cached(inner, tmp_path).get(KEY)
    (copy,) = (path for path in tmp_path.rglob("*") if path.is_file())
    copy.write_bytes(damage(copy.read_bytes()))
    seen = counted(inner)
    assert cached(inner, tmp_path).get(KEY) == b"rows"
    assert cached(inner, tmp_path).get(KEY) == b"rows"
    assert seen == [KEY]  # the cache has a correct copy again


@pytest.mark.parametrize("where", ["file", "file/below", "folder"])
def test_a_cache_that_cannot_be_used_is_none(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    inner = MemorySink()
    inner.put(KEY, [b"rows"])
    sink = cached(inner, tmp_path / where)
    for copy in (tmp_path / "folder" / sink._home / "worker_0" / Path(KEY).name,):
        copy.mkdir(parents=True)  # a folder in place of the copy
    assert sink.get(KEY) == b"rows"
    assert sink.get(KEY) == b"rows"


def test_the_least_recently_used_go_when_there_is_too_much(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=10_000)
    for at in range(30):
        cache.put(f"run/{at:02d}", bytes(1000))
        os.utime(tmp_path / "run/00")  # used in every round
        if at:
            os.utime(tmp_path / f"run/{at:02d}", (at, at))
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert "00" in left
    assert "29" in left
    assert "01" not in left
    assert sum(path.stat().st_size for path in (tmp_path / "run").iterdir()) <= 11_000


def test_what_would_fill_a_large_part_of_the_cache_is_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=10_000)
    cache.put("large", bytes(2501))
    assert cache.get("large") is None
    cache.put("small", bytes(2500))
    assert cache.get("small") == bytes(2500)


def test_what_others_leave_behind_goes_as_well(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    leftover = tmp_path / "old" / ".tmp-0123"
    leftover.write_bytes(bytes(20_000))
    os.utime(leftover, (1, 1))
    DiskCache(tmp_path, limit=10_000).put("new", b"x")
    assert not leftover.parent.exists()


def test_several_readers_share_a_folder(tmp_path: Path) -> None:
    wrong: list[bytes] = []

    def use(number: int) -> None:
        cache = DiskCache(tmp_path, limit=20_000)
        for at in range(100):
            name = f"run/{(at * 7 + number) % 40}"
            found = cache.get(name)
            if found is None:
                cache.put(name, name.encode() * 200)
            elif found != name.encode() * 200:
                wrong.append(found)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_folder_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("TDCORE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path("/home/someone/.cache/tdcore")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == Path("/home/someone/.cache/tdcore")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert cache_folder() == Path("/var/cache/someone/tdcore")
    monkeypatch.setenv("TDCORE_CACHE", "/scratch/cache")
    assert cache_folder() == Path("/scratch/cache")
