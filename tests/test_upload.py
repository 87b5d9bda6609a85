"""`tdcore upload` uploads the objects in a job's spool to its bucket, once, and never to another run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tdcore.cli import main
from tdcore.errors import ConfigError, RunNotFound
from tdcore.maintenance.upload import Uploaded, upload
from tdcore.sinks.spool import Spool, find_spools
from tdcore.sinks.spool_folders import journal_path
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer

RUN = "a1b2c3"
OBJECTS = {"data/worker_0/0": b"segment", "index/worker_0/0": b"index", "end/worker_0/0000.json": b"{}"}


@pytest.fixture
def place(stub: StubServer, s3_prefix: str) -> Place:
    """A place that contains the run of the spools."""
    place = Place(server=stub, prefix=s3_prefix)
    put(place, "run.json", json.dumps({"format": 1, "run_id": RUN, "attempts": []}).encode())
    return place


@pytest.fixture
def spools(tmp_path: Path) -> Path:
    return tmp_path / "spools"


def put(place: Place, key: str, data: bytes) -> None:
    from tdcore.sinks import open_sink

    sink = open_sink(place.url())
    sink.put(key, [data])
    sink.close()


def spool_in(folder: Path, url: str, run_id: str | None = RUN, **about: Any) -> Spool:
    """Return a locked spool with OBJECTS in it."""
    spool = Spool(folder, url=url, run_id=run_id, **about)
    spool.lock()
    for key, data in OBJECTS.items():
        spool.append(key, [data])
    return spool


def leave(folder: Path, url: str, run_id: str | None = RUN, **about: Any) -> Path:
    """Leave a spool as a job does. about: further entries of its description."""
    spool_in(folder, url, run_id, **about).close()
    return folder


def left(results: list[Uploaded]) -> dict[str, int]:
    return {Path(result.spool).name: result.left for result in results}


def arrived(place: Place) -> dict[str, bytes]:
    return {key: data for key, data in place.objects().items() if key != "run.json"}


# Uploaded objects. -----------------------------------------------------------------------------------------


def test_all_that_a_job_left_arrives_in_its_order_and_nothing_stays(
    place: Place, stub: StubServer, spools: Path
) -> None:
    leave(spools / "run" / "worker_0" / "0000", place.url())
    sent: list[str] = []
    (result,) = upload(spools, sent=lambda folder, entry: sent.append(entry.key))
    assert arrived(place) == OBJECTS
    assert sent == list(OBJECTS)
    assert (result.objects, result.bytes, result.left, result.damaged, result.why) == (3, 14, 0, 0, "")
    assert list(spools.iterdir()) == []
    with pytest.raises(RunNotFound, match="contains no spool"):
        upload(spools)


def test_what_the_bucket_refuses_stays_and_the_next_upload_brings_it(
    place: Place, stub: StubServer, spools: Path
) -> None:
    leave(spools / "0000", place.url())
    stub.set(deny=["PutObject"])
    (result,) = upload(spools)
    assert (result.objects, result.left) == (0, 3)
    assert "s3:PutObject" in result.why
    stub.set(deny=[])
    assert left(upload(spools)) == {"0000": 0}
    assert arrived(place) == OBJECTS


def test_the_spool_of_a_living_job_is_left_alone(place: Place, spools: Path) -> None:
    living = spool_in(spools / "0001", place.url())
    leave(spools / "0000", place.url())
    results = upload(spools)
    assert left(results) == {"0000": 0, "0001": 3}
    assert "in use by another process" in results[1].why
    assert [entry.key for entry in living.entries] == list(OBJECTS)
    living.append("data/worker_0/1", [b"more"])
    living.close()
    assert left(upload(spools)) == {"0001": 0}
    assert arrived(place) == {**OBJECTS, "data/worker_0/1": b"more"}


def test_an_object_with_an_unreadable_header_is_counted_and_kept(place: Place, spools: Path) -> None:
    folder = leave(spools / "0000", place.url())
    (folder / "objects" / "000000000001").write_bytes(b"nothing that one knows")
    (result,) = upload(spools)
    assert (result.objects, result.left, result.damaged) == (2, 0, 1)
    assert "damaged" in result.why
    assert (folder / "damaged" / "000000000001").read_bytes() == b"nothing that one knows"


# Damaged spools. -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("about", "why"),
    [
        (b"{", "cannot be read"),
        (b'{"format": 1, "url": "s3://bucket/run?no_such=1"}', "no_such"),
        (b'{"format": 99}', "does not describe a spool"),
    ],
)
def test_a_broken_spool_does_not_keep_the_others(place: Place, spools: Path, about: bytes, why: str) -> None:
    broken = leave(spools / "0000", place.url())
    (broken / "spool.json").write_bytes(about)
    leave(spools / "0001", place.url())
    results = upload(spools)
    assert left(results) == {"0000": 3, "0001": 0}
    assert why in results[0].why
    assert arrived(place) == OBJECTS


def test_a_spool_that_its_job_removes_meanwhile_is_not_in_the_result(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(spools / "0000", place.url())
    monkeypatch.setattr(
        "tdcore.maintenance.upload.find_spools", lambda place: [spools / "gone", *find_spools(place)]
    )
    assert left(upload(spools)) == {"0000": 0}
    assert not (spools / "gone").exists()


# Another run. ----------------------------------------------------------------------------------------------


def test_a_place_that_holds_another_run_by_now_gets_nothing(place: Place, spools: Path) -> None:
    leave(spools / "0000", place.url(), run_id="another")
    (result,) = upload(spools)
    assert (result.objects, result.left) == (0, 3)
    assert f"belongs to run another, the bucket has run {RUN}" in result.why
    assert "--to to another place" in result.why
    assert arrived(place) == {}


def test_a_place_that_was_emptied_gets_nothing(stub: StubServer, s3_prefix: str, spools: Path) -> None:
    emptied = Place(server=stub, prefix=s3_prefix)
    leave(spools / "0000", emptied.url())
    (result,) = upload(spools)
    assert result.left == 3
    assert "has no run" in result.why
    assert emptied.objects() == {}


def test_what_run_a_place_holds_is_not_guessed_from_a_document_that_is_broken(
    place: Place, spools: Path
) -> None:
    put(place, "run.json", b"{")
    leave(spools / "0000", place.url())
    (result,) = upload(spools)
    assert result.left == 3
    assert "run.json cannot be read" in result.why


def test_a_spool_that_does_not_know_its_run_goes_where_it_says(place: Place, spools: Path) -> None:
    leave(spools / "0000", place.url(), run_id=None)
    assert left(upload(spools)) == {"0000": 0}
    assert arrived(place) == OBJECTS


def test_another_place_is_taken_as_it_is(place: Place, stub: StubServer, spools: Path) -> None:
    other = Place(server=stub, prefix=f"{place.prefix}-moved")
    leave(spools / "0000", place.url(), run_id="another")
    (result,) = upload(spools, to=other.url())
    assert result.to == f"s3://{stub.bucket}/{other.prefix}"
    assert arrived(other) == OBJECTS
    assert arrived(place) == {}


def test_spools_of_several_runs_do_not_go_to_one_place(place: Place, spools: Path) -> None:
    for name, run_id in (("0000", RUN), ("0001", "another")):
        leave(spools / name, place.url(), run_id=run_id)
    with pytest.raises(ConfigError, match="spools of several runs"):
        upload(spools, to=place.url())
    assert len(find_spools(spools)) == 2


def test_a_wrong_place_is_an_error_at_once(place: Place, spools: Path) -> None:
    leave(spools / "0000", place.url())
    with pytest.raises(ConfigError, match="no_such"):
        upload(spools, to="s3://bucket/run?no_such=1")
    assert len(find_spools(spools)) == 1


# Spools of running jobs. -----------------------------------------------------------------------------------


def journal(folder: Path) -> Path:
    path = journal_path(folder)
    path.write_bytes(b'{"start": 0}\n')
    return path


def test_while_its_trainer_lives_a_flusher_may_come_back_to_its_spool(place: Place, spools: Path) -> None:
    """Its flusher was killed a moment ago, so the spool is not locked."""
    folder = leave(spools / "0000", place.url())
    journal(folder)
    (result,) = upload(spools)
    assert f"a job that still runs (process {os.getpid()}) and uploads the spool itself" in result.why
    assert result.left == len(OBJECTS)
    assert arrived(place) == {}


def test_when_its_flusher_has_ended_well_a_living_trainer_does_not_matter(place: Place, spools: Path) -> None:
    """The trainer is a notebook that lives on after its hook was closed."""
    leave(spools / "0000", place.url())
    assert left(upload(spools)) == {"0000": 0}
    assert arrived(place) == OBJECTS


def test_what_a_dead_trainer_left_goes_with_its_journal(place: Place, spools: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = leave(spools / "run" / "worker_0" / "0000", place.url(), pid=dead.pid)
    journal(folder)
    upload(spools)
    assert arrived(place) == OBJECTS
    assert list(spools.iterdir()) == []


@pytest.mark.parametrize(
    "about", [{"host": "elsewhere"}, {"created_ns": 1}], ids=["other host", "reused number"]
)
def test_a_process_of_that_number_is_not_always_the_trainer(
    place: Place, spools: Path, about: dict[str, Any]
) -> None:
    folder = leave(spools / "0000", place.url(), **about)
    journal(folder)
    assert left(upload(spools)) == {"0000": 0}


def test_the_journal_stays_while_objects_wait(place: Place, stub: StubServer, spools: Path) -> None:
    folder = leave(spools / "0000", place.url(), pid=1 << 22)
    journal(folder)
    stub.set(deny=["PutObject"])
    upload(spools)
    assert journal_path(folder).exists()


# The command. ----------------------------------------------------------------------------------------------


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run the command and return its exit code."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(sys, "argv", ["tdcore", "upload", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_says_what_it_brought_and_where(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(spools / "[0000]", place.url())
    assert command(monkeypatch, spools) == 0
    where = f"s3://{place.server.bucket}/{place.prefix}"
    assert f"[0000]: 3 objects (14 B) to {where}; nothing is left" in capsys.readouterr().out
    assert command(monkeypatch, spools) == 3
    assert "contains no spool" in capsys.readouterr().err


def test_the_command_says_what_is_left_and_why(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(spools / "0000", place.url(), run_id="another")
    broken = leave(spools / "0001", place.url())
    (broken / "spool.json").write_bytes(b"{")
    assert command(monkeypatch, spools) == 1
    first, second = capsys.readouterr().out.strip().splitlines()
    assert "3 are left: " in first
    assert "belongs to run another" in first
    assert "0001: 0 objects (0 B); 3 are left: " in second


def test_the_command_tells_of_damaged_objects(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = leave(spools / "0000", place.url())
    (folder / "objects" / "000000000001").write_bytes(b"nothing that one knows")
    assert command(monkeypatch, spools) == 1
    assert "1 are damaged and were moved aside" in capsys.readouterr().out


def test_the_command_gives_the_same_as_json(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(spools / "0000", place.url())
    assert command(monkeypatch, spools, "--json") == 0
    (spool,) = json.loads(capsys.readouterr().out)["spools"]
    assert (spool["objects"], spool["left"], spool["why"]) == (3, 0, "")


def test_a_wrong_place_is_wrong_usage(
    place: Place, spools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(spools / "0000", place.url())
    assert command(monkeypatch, spools, "--to", "s3://bucket/run?no_such=1") == 2
    assert "no_such" in capsys.readouterr().err
