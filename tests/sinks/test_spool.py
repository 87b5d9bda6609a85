"""The spool: what waits on the local disk is whole, in order, and as it was put there."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import RunCorrupt, SinkError
from tdcore.sinks.spool import Spool, SpoolInUseError, crc32c_of, find_spools

URL = "s3://bucket/run"


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", url=URL, worker="worker_0", attempt=0)


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
    again = Spool(spool.folder)
    assert contents(again) == [("index/a", b"y")]
    assert (again.url, again.about["worker"], again.about["attempt"]) == (URL, "worker_0", 0)
    assert again.append("index/b", [b"z"]).number == 2  # behind what was there


def test_an_empty_spool_leaves_no_folder_behind(spool: Spool) -> None:
    spool.lock()
    spool.append("data/a", [b"x"])
    spool.remove(spool.entries[0])
    spool.close()
    assert not spool.folder.exists()


def test_a_spool_that_holds_something_stays(spool: Spool) -> None:
    spool.lock()
    spool.append("data/a", [b"x"])
    spool.close()
    assert contents(Spool(spool.folder)) == [("data/a", b"x")]


def test_more_than_its_limit_is_refused_as_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", url=URL, limit_bytes=10)
    spool.append("data/a", [b"123456"])
    with pytest.raises(SinkError, match="is full: it may hold 10 bytes; raise spool_gib") as caught:
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
spool.append("data/a", [b"small"])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    spool.append("data/b", [b"x" * 1_000_000])
except SinkError as error:
    print(error.kind, spool.bytes)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["full", "5"]
    assert contents(Spool(tmp_path / "spool")) == [("data/a", b"small")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_half_an_object_that_a_crash_left_is_not_in_the_spool(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / ".tmp-half").write_bytes(b"half")
    assert contents(Spool(spool.folder)) == [("data/a", b"x")]
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
    with pytest.raises(RunCorrupt, match="removed by somebody"):
        spool.read(entry)
    spool.set_aside(entry)
    assert len(spool) == 0


def test_an_object_without_a_readable_header_is_set_aside(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    (spool.folder / "objects" / "000000000001").write_bytes(b"not an object")
    again = Spool(spool.folder)
    assert contents(again) == [("data/a", b"x")]
    assert [path.name for path in again.damaged] == ["000000000001"]


def test_two_processes_cannot_work_on_one_spool(spool: Spool) -> None:
    spool.lock()
    other = Spool(spool.folder, url=URL)
    with pytest.raises(SpoolInUseError, match="in use by another process"):
        other.lock()
    spool.append("data/a", [b"x"])
    spool.close()
    other.lock()
    other.close()


def test_a_folder_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunCorrupt, match=r"is not a spool: it has no spool\.json"):
        Spool(tmp_path)
    (tmp_path / "spool.json").write_text('{"format": 99}')
    with pytest.raises(RunCorrupt, match="not the description of a spool that this version knows"):
        Spool(tmp_path)


def test_all_spools_below_a_folder_are_found(tmp_path: Path) -> None:
    for name in ("b/worker_0/0000", "a/worker_1/0003"):
        Spool(tmp_path / name, url=URL).append("data/a", [b"x"])
    assert find_spools(tmp_path) == [tmp_path / "a/worker_1/0003", tmp_path / "b/worker_0/0000"]


def test_its_description_says_whose_it_is_and_holds_no_more(spool: Spool) -> None:
    spool.append("data/a", [b"x"])
    about = json.loads((spool.folder / "spool.json").read_bytes())
    assert set(about) == {"format", "url", "worker", "attempt", "host", "pid", "created_ns"}


@settings(deadline=None, max_examples=40)
@given(pieces=st.lists(st.binary(max_size=300_000), max_size=6))
def test_the_checksum_is_that_of_all_parts_together(pieces: list[bytes]) -> None:
    assert crc32c_of(pieces) == crc32c_of([b"".join(pieces)])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_spool_behaves_like_a_queue_on_disk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever is put in, taken out in any order, and however often it is opened anew."""
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder, url=URL)
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
            spool = Spool(folder, url=URL)
    assert contents(spool) == model
    assert spool.bytes == sum(len(value) for _, value in model)
