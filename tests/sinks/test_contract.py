"""The contract of sinks, for every sink, and the special features of each sink."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tdcore.errors import UnsafeFile, UnsupportedFeature
from tdcore.sinks import LocalSink, MemorySink, Sink, SinkError, local_path, open_sink
from tdcore.testing import SinkContract


class TestLocalSink(SinkContract):
    @pytest.fixture
    def sink(self, tmp_path: Path) -> Sink:
        return LocalSink(tmp_path / "run")


class TestMemorySink(SinkContract):
    @pytest.fixture
    def sink(self) -> Sink:
        return MemorySink()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB; needs permission to mount a file system."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("needs root to mount a small file system")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.decode()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_opening_a_local_sink_makes_nothing(root: Path) -> None:
    sink = LocalSink(root)
    assert sink.list("") == []
    assert not root.exists()


def test_a_put_leaves_no_other_file_behind(root: Path) -> None:
    sink = LocalSink(root)
    sink.put("index/worker_0/a.parquet", [b"x"])
    sink.put("index/worker_0/a.parquet", [b"y"])
    assert sink.put_new("attempts/0000", [b"z"])
    assert not sink.put_new("attempts/0000", [b"z"])
    assert files(root) == ["attempts/0000", "index/worker_0/a.parquet"]


def test_an_unfinished_put_is_not_listed_and_clean_removes_it(root: Path) -> None:
    sink = LocalSink(root)
    sink.put("index/worker_0/a.parquet", [b"x"])
    (root / "index/worker_0/.tmp-0011-b.parquet").write_bytes(b"half")
    assert sink.list("") == ["index/worker_0/a.parquet"]
    sink.clean("index/worker_0/")
    assert files(root) == ["index/worker_0/a.parquet"]


def test_a_listing_refuses_a_folder_with_a_link_in_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    sink = LocalSink(root)
    sink.put("index/a", [b"x"])
    (root / "index" / "link").symlink_to(tmp_path / "other")
    with pytest.raises(UnsafeFile, match=r"index/link in .* is a link"):
        sink.list("index/")


def test_a_full_disk_says_so_and_later_puts_work_when_space_returns(small_disk: Path) -> None:
    sink = LocalSink(small_disk / "run")
    sink.put("data/a", [bytes(500_000)])
    sink.put("data/keep", [b"old"])
    with pytest.raises(
        SinkError, match=r"cannot write 'data/b' \(900000 bytes\) in .*No space left.*free space"
    ) as caught:
        sink.put("data/b", [bytes(900_000)])
    assert caught.value.kind == "full"
    assert caught.value.errno == errno.ENOSPC
    assert sink.list("data/") == ["data/a", "data/keep"]
    assert files(small_disk / "run") == ["data/a", "data/keep"]
    sink.delete("data/a")
    sink.put("data/b", [bytes(900_000)])
    assert sink.get("data/b") == bytes(900_000)


def test_a_full_disk_keeps_the_old_version_of_a_file(small_disk: Path) -> None:
    sink = LocalSink(small_disk / "run")
    sink.put("run.json", [b"old"])
    with pytest.raises(SinkError):
        sink.put("run.json", [bytes(2_000_000)])
    assert sink.get("run.json") == b"old"


def test_a_limit_on_file_size_is_a_full_sink(root: Path) -> None:
    code = (
        "import resource, sys; from tdcore.sinks import LocalSink, SinkError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: LocalSink(sys.argv[1]).put('data/a', [bytes(100000)])\n"
        "except SinkError as error: print(error.kind)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=True)
    assert done.stdout == "full\n"
    assert files(root) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_a_removed_folder_is_gone_once_and_then_made_again(root: Path) -> None:
    sink = LocalSink(root)
    sink.put("index/worker_0/a", [b"x"])
    shutil.rmtree(root)
    with pytest.raises(SinkError, match="removed") as caught:
        sink.put("index/worker_0/b", [b"y"])
    assert caught.value.kind == "gone"
    sink.put("index/worker_0/b", [b"y"])
    assert sink.list("") == ["index/worker_0/b"]


def test_a_removed_folder_is_noticed_by_a_sink_that_has_only_read(root: Path) -> None:
    LocalSink(root).put("run.json", [b"{}"])
    sink = LocalSink(root)
    sink.get("run.json")
    shutil.rmtree(root)
    with pytest.raises(SinkError) as caught:
        sink.put("index/a", [b"x"])
    assert caught.value.kind == "gone"


def test_a_folder_that_is_a_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(SinkError, match="run"):
        LocalSink(tmp_path / "run").put("a/b", [b"x"])


def test_a_folder_that_may_not_be_written_is_denied(root: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    root.mkdir(mode=0o500)
    with pytest.raises(SinkError) as caught:
        LocalSink(root).put("a/b", [b"x"])
    assert caught.value.kind == "denied"


def test_two_sinks_on_one_folder_do_not_disturb_each_other(root: Path) -> None:
    def write(name: str) -> None:
        sink = LocalSink(root)
        for at in range(50):
            sink.put(f"index/{name}/{at:02d}", [name.encode()])

    threads = [threading.Thread(target=write, args=(f"worker_{at}",)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(LocalSink(root).list("index/")) == 150


def test_the_memory_sink_raises_what_a_test_asks_for() -> None:
    sink = MemorySink()

    def fault(operation: str, key: str) -> None:
        if operation == "put":
            raise SinkError(f"no room for {key}", kind="full")

    sink.fault = fault
    with pytest.raises(SinkError, match="no room for a"):
        sink.put("a", [b"x"])
    sink.fault = None
    sink.put("a", [b"x"])
    assert sink.objects == {"a": b"x"}


def test_open_sink_takes_paths_and_file_urls(tmp_path: Path) -> None:
    assert local_path("runs/demo") == "runs/demo"
    assert local_path("file:///tmp/a%20b") == "/tmp/a b"
    assert local_path("file://localhost/tmp/x") == "/tmp/x"
    open_sink(f"file://{tmp_path}/run").put("a", [b"x"])
    assert (tmp_path / "run" / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://bucket/prefix", "no sink for gs://"),
        ("file://elsewhere/x", "names the host"),
        ("", "empty"),
    ],
)
def test_open_sink_refuses_what_it_cannot_serve_and_says_what_to_do(url: str, message: str) -> None:
    with pytest.raises(UnsupportedFeature, match=message):
        open_sink(url)
