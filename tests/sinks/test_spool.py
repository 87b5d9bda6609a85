"""The spool: waiting objects on the local disk are complete, in order, and unchanged."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import RunCorrupt, RunNotFound, SinkError
from tdcore.sinks.local import LocalSink
from tdcore.sinks.spool import Spool, SpoolInUseError, crc32c_of, find_spools

URL = "s3://bucket/run"


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A locked spool in its own folder."""
    with contextlib.closing(
        locked(tmp_path / "run" / "worker_0" / "0000", url=URL, worker="worker_0", attempt=0)
    ) as spool:
        yield spool


def locked(folder: Path, **about: Any) -> Spool:
    """Lock the spool in `folder` and open it for work."""
    spool = Spool(folder, **about)
    spool.lock()
    return spool


def opened_again(spool: Spool) -> Spool:
    """Open the spool as another process does later."""
    spool.close()
    return locked(spool.folder)


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file below `folder`, with its bytes and inode."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_ino) for path in files}


def contents(spool: Spool) -> list[tuple[str, bytes]]:
    return [(entry.key, bytes(spool.read(entry))) for entry in spool.entries]


def test_objects_come_out_in_the_order_in_which_they_went_in(spool: Spool) -> None:
    spool.append("data/b", [b"one ", b"two"])
    spool.append("data/a", [b""])
    assert contents(spool) == [("data/b", b"one two"), ("data/a", b"")]
    assert (len(spool), spool.bytes) == (2, 7)


def test_a_spool_is_found_again_with_all_that_it_holds(spool: Spool) -> None:
    spool.append("data/a", [b"x" * 10_000])
    spool.append("index/a", [b"y"])
    spool.remove(spool.entries[0])
    again = opened_again(spool)
    assert contents(again) == [("index/a", b"y")]
    assert (again.url, again.about["worker"], again.about["attempt"]) == (URL, "worker_0", 0)
    assert again.append("index/b", [b"z"]).number == 2  # after the objects that were already there


def test_an_empty_spool_leaves_no_folder_behind(spool: Spool, tmp_path: Path) -> None:
    spool.append("data/a", [b"x"])
    spool.remove(spool.entries[0])
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_that_holds_something_stays(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    assert contents(opened_again(spool)) == [("data/a", b"x")]


def test_an_object_that_is_not_known_keeps_the_whole_spool(spool: Spool) -> None:
    spool.remove(spool.append("data/a", [b"x"]))
    (spool.folder / "objects" / "somebody's copy").write_bytes(b"x")
    spool.close()
    assert set(tree(spool.folder)) == {"spool.json", "lock", "objects/somebody's copy"}
    assert Spool(spool.folder).url == URL


def test_looking_at_a_spool_changes_nothing_of_it(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / ".tmp-being-written").write_bytes(b"half")
    (spool.folder / "objects" / "000000000007").write_bytes(b"not an object")
    before = tree(spool.folder)
    for look in (Spool(spool.folder), Spool(spool.folder, url=URL)):
        look.close()
    assert tree(spool.folder) == before


def test_a_look_at_a_spool_that_is_in_use_does_not_disturb_it(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    stop = threading.Event()
    failures: list[BaseException] = []

    def look() -> None:
        try:
            while not stop.is_set():
                with pytest.raises(SpoolInUseError):
                    Spool(spool.folder).lock()
        except BaseException as error:
            failures.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for number in range(40):
        spool.remove(spool.append(f"data/{number}", [bytes(1 << 18)]))
    stop.set()
    looker.join()
    assert failures == []
    assert contents(spool) == [("data/a", b"x")]


def test_nothing_is_put_into_a_spool_that_is_not_locked(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    spool.close()
    with pytest.raises(SinkError, match="is closed"):
        spool.append("data/b", [b"y"])
    assert contents(opened_again(spool)) == [("data/a", b"x")]


def test_more_than_its_limit_is_refused_as_full(tmp_path: Path) -> None:
    spool = locked(tmp_path / "spool", url=URL, limit_bytes=10)
    spool.append("data/a", [b"123456"])
    with pytest.raises(SinkError, match="is full: its limit is 10 bytes; raise spool_gib") as caught:
        spool.append("data/b", [b"12345"])
    assert caught.value.kind == "full"
    spool.remove(spool.entries[0])
    spool.append("data/b", [b"12345"])
    assert contents(spool) == [("data/b", b"12345")]


def test_a_full_disk_refuses_and_leaves_the_rest_as_it_was(tmp_path: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from tdcore.errors import SinkError
from tdcore.sinks.spool import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
spool = Spool(Path({str(tmp_path / "spool")!r}), url="{URL}")
spool.lock()
spool.append("data/a", [b"small"])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    spool.append("data/b", [b"x" * 1_000_000])
except SinkError as error:
    print(error.kind, spool.bytes)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["full", "5"]
    assert contents(locked(tmp_path / "spool")) == [("data/a", b"small")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_half_an_object_that_a_crash_left_is_not_in_the_spool(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / ".tmp-half").write_bytes(b"half")
    assert contents(opened_again(spool)) == [("data/a", b"x")]
    assert os.listdir(spool.folder / "objects") == ["000000000000"]


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer"])
def test_damaged_bytes_are_seen_before_they_are_sent(spool: Spool, damage: str) -> None:
    entry = spool.append("data/a", [b"some bytes"])
    path = spool.folder / "objects" / "000000000000"
    whole = path.read_bytes()
    changed = {"flipped": whole[:-1] + b"!", "cut": whole[:-1], "longer": whole + b"!"}[damage]
    path.write_bytes(changed)
    with pytest.raises(RunCorrupt, match=r"data/a.*damaged"):
        spool.read(entry)
    place = spool.set_aside(entry)
    assert place.read_bytes() == changed
    assert spool.damaged == [place]
    assert len(spool) == spool.bytes == 0


def test_what_cannot_be_read_just_now_is_not_taken_for_damaged(spool: Spool) -> None:
    entry = spool.append("data/a", [b"x"])
    path = spool.folder / "objects" / "000000000000"
    path.rename(spool.folder / "elsewhere")
    path.mkdir()
    with pytest.raises(SinkError, match="cannot read") as caught:
        spool.read(entry)
    assert caught.value.kind == "transient"
    path.rmdir()
    (spool.folder / "elsewhere").rename(path)
    assert contents(spool) == [("data/a", b"x")]


def test_an_object_that_somebody_removed_is_known_to_be_missing(spool: Spool) -> None:
    entry = spool.append("data/a", [b"x"])
    (spool.folder / "objects" / "000000000000").unlink()
    with pytest.raises(RunCorrupt, match="removed by another process"):
        spool.read(entry)
    spool.set_aside(entry)
    assert len(spool) == 0


def test_an_object_without_a_readable_header_is_set_aside_and_told(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / "000000000001").write_bytes(b"not an object")
    again = opened_again(spool)
    assert contents(again) == [("data/a", b"x")]
    assert [path.name for path in again.damaged] == ["000000000001"]
    assert again.found_damaged == again.damaged
    later = opened_again(again)
    assert (later.found_damaged, later.damaged) == ([], again.damaged)  # reported once, and kept


def test_what_was_set_aside_is_never_written_over(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / "000000000001").write_bytes(b"not an object")
    again = opened_again(spool)
    again.set_aside(again.append("data/b", [b"y"]))
    assert [path.name for path in again.damaged] == ["000000000001", "000000000002"]


def test_an_object_that_is_removed_while_it_is_found_is_not_in_the_spool(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append("data/a", [b"x"])
    spool.append("data/b", [b"y"])
    found = LocalSink.list

    def list_then_remove(sink: LocalSink, prefix: str, after: str = "") -> list[str]:
        keys = found(sink, prefix, after)
        (spool.folder / "objects" / "000000000000").unlink()
        return keys

    monkeypatch.setattr(LocalSink, "list", list_then_remove)
    again = opened_again(spool)
    assert contents(again) == [("data/b", b"y")]
    assert again.damaged == []


def test_two_processes_cannot_work_on_one_spool(spool: Spool) -> None:
    other = Spool(spool.folder, url=URL)
    with pytest.raises(SpoolInUseError, match="in use by another process"):
        other.lock()
    spool.append("data/a", [b"x"])
    spool.close()
    other.lock()
    assert contents(other) == [("data/a", b"x")]
    other.close()


def test_locking_again_takes_nothing_in_twice(spool: Spool) -> None:
    entry = spool.append("data/a", [b"x"])
    spool.lock()
    assert spool.entries == [entry]
    assert spool.bytes == 1


def test_a_lock_that_cannot_take_in_what_is_there_is_let_go(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool.append("data/a", [b"x"])
    spool.close()
    with monkeypatch.context() as patch:
        patch.setattr(LocalSink, "list", lambda *arguments: (_ for _ in ()).throw(SinkError("unreadable")))
        again = Spool(spool.folder)
        with pytest.raises(SinkError, match="unreadable"):
            again.lock()
    assert contents(locked(spool.folder)) == [("data/a", b"x")]


def test_the_lock_of_a_spool_that_was_just_removed_locks_nothing(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool is opened before its owner removes it and locked afterwards; the next one uses a new file."""
    flock, rounds = fcntl.flock, []

    def owner_leaves_first(descriptor: int, how: int) -> None:
        rounds.append(descriptor)
        if len(rounds) == 1:
            spool.close()
        flock(descriptor, how)

    other = Spool(spool.folder, url=URL)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", owner_leaves_first)
        other.lock()
    assert len(rounds) == 2
    with pytest.raises(SpoolInUseError):
        Spool(spool.folder, url=URL).lock()
    other.close()


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SinkError, match="No locks available; name another with") as caught:
        Spool(spool.folder, url=URL).lock()
    assert not isinstance(caught.value, SpoolInUseError)


def test_a_folder_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"is not a spool: it has no spool\.json"):
        Spool(tmp_path)
    (tmp_path / "spool.json").write_text('{"format": 99}')
    with pytest.raises(RunCorrupt, match="does not describe a spool that this version supports"):
        Spool(tmp_path)


def test_all_spools_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b/worker_0/0000", "a/worker_1/0003"):
        spool = locked(tmp_path / name, url=URL)
        spool.append("data/a", [b"x"])
        spool.close()
    assert find_spools(tmp_path) == [tmp_path / "a/worker_1/0003", tmp_path / "b/worker_0/0000"]


def test_its_description_says_whose_it_is_and_holds_no_more(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    about = json.loads((spool.folder / "spool.json").read_bytes())
    assert set(about) == {"format", "url", "worker", "attempt", "host", "pid", "created_ns"}
    assert spool.run_id == ""


def test_its_description_names_the_run_where_that_is_known(tmp_path: Path) -> None:
    spool = locked(tmp_path / "spool", url=URL, run_id="a1b2", worker=None)
    spool.append("data/a", [b"x"])
    again = opened_again(spool)
    assert again.run_id == "a1b2"
    assert "worker" not in again.about


@settings(deadline=None, max_examples=40)
@given(pieces=st.lists(st.binary(max_size=300_000), max_size=6))
def test_the_checksum_is_that_of_all_parts_together(pieces: list[bytes]) -> None:
    assert crc32c_of(pieces) == crc32c_of([b"".join(pieces)])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_spool_behaves_like_a_queue_on_disk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Objects are put in, taken out in any order, and the spool is opened again at any time."""
    folder = tmp_path_factory.mktemp("spool")
    spool = locked(folder, url=URL)
    model: list[tuple[str, bytes]] = []
    for at in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["append", "append", "remove", "reopen"]))
        if action == "append":
            value = data.draw(st.binary(max_size=9000))
            spool.append(f"data/{at}", [value[:100], value[100:]])
            model.append((f"data/{at}", value))
        elif action == "remove" and model:
            which = data.draw(st.integers(0, len(model) - 1))
            spool.remove(spool.entries[which])
            del model[which]
        elif action == "reopen":
            spool.close()
            spool = locked(folder, url=URL)
    assert contents(spool) == model
    assert spool.bytes == sum(len(value) for _, value in model)
    spool.close()
