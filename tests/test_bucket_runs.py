"""Jobs whose run is in a bucket: real trainers, flushers and HTTP; killed, disconnected and refused."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import tdcore as td
from tdcore import _core
from tdcore.errors import ConfigError, SinkError
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.destination import open_destination
from tdcore.maintenance.upload import upload
from tdcore.session import RingConfig, Session
from tdcore.session.attempts import claim_attempt
from tdcore.sinks import open_sink
from tdcore.sinks.s3 import parse_s3_url
from tdcore.sinks.spool import find_spools
from tests.s3.fixtures import Place
from tests.s3.servers import Server, StubServer
from tests.trainers.checks import Trainer, check_run, end_of, flushers_of
from tests.trainers.quadratic import NAMES
from tests.waiting import wait_until

KILL_OPTIONS = FlusherOptions(visible_delay=timedelta(milliseconds=50))
RING = RingConfig(ring_bytes=16 << 20, slots=256, names_bytes=1 << 16)


@pytest.fixture
def place(stub: StubServer, s3_prefix: str) -> Place:
    return Place(server=stub, prefix=s3_prefix)


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of this test's spools."""
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spools"))
    return tmp_path / "spools"


@pytest.fixture
def url(place: Place, spools: Path) -> str:
    made = parse_s3_url(place.url("run", connect_timeout="1", read_timeout="2"))
    return made.options.at(made.where)


@pytest.fixture
def trainers(url: str) -> Iterator[list[Trainer]]:
    """A list of trainers that are stopped after the test."""
    started: list[Trainer] = []
    yield started
    for trainer in started:
        trainer.stop()
    for process in flushers_of(url):
        process.kill()


def download(place: Place, folder: Path) -> Path:
    """Download the run into a folder."""
    for key, data in place.objects().items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder / "run"


def flushers_gone(url: str) -> None:
    wait_until(lambda: not flushers_of(url), f"the flusher of {url} ended")


def flusher(url: str) -> psutil.Process:
    wait_until(lambda: bool(flushers_of(url)), "there is a flusher")
    return flushers_of(url)[0]


def open_session(url: str, worker: str = "worker_0", **options: Any) -> Session:
    settings: dict[str, Any] = {
        "configuration": {},
        "framework": "test",
        "framework_version": "1",
        "ring": RING,
    }
    return Session(url, worker=worker, **{**settings, **options})


def capture(session: Session, steps: range) -> None:
    ids = np.array([session.ring.intern("weight", 1)], dtype=np.uint32)
    for step in steps:
        value = np.full(1000, step, dtype=np.float32)
        session.ring.capture([value], ids, np.array([3], dtype=np.uint8), step, 1, step)


# --- undisturbed jobs ---


def test_a_job_writes_its_run_into_a_bucket(
    place: Place, url: str, spools: Path, tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, out=url, steps=30)
    trainers.append(trainer)
    assert trainer.wait() == 0, trainer.output
    flushers_gone(url)
    out = download(place, tmp_path / "copy")
    assert check_run(out, trainer.captured()) == 30 * len(NAMES)
    assert end_of(out)["clean"]
    assert list(spools.rglob("*")) == []  # no object waits in a spool, and no other file remains


def test_the_training_process_never_loads_an_s3_client(url: str) -> None:
    """If it loaded one, a DataLoader worker that is forked later and uses such a client itself would hang."""
    script = f"""
import sys
before = set(sys.modules)
import tdcore
from tdcore.session import Session
with Session({url!r}, configuration={{}}, framework="test", framework_version="1"):
    pass
clients = {{"obstore", "aiobotocore", "botocore", "boto3", "aiohttp", "s3fs", "asyncio"}}
print(sorted(clients & {{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_second_attempt_is_kept_beside_the_first(url: str) -> None:
    for attempt in range(2):
        with open_session(url) as session:
            assert session.attempt == attempt
            capture(session, range(attempt * 5, attempt * 5 + 10))
    run = td.create_trial(url)
    assert run.tensor("weight").value(4)[0] == 4.0
    assert run.steps() == list(range(15))


def test_a_flusher_thread_serves_a_bucket_too(url: str) -> None:
    with open_session(url, flusher="thread") as session:
        capture(session, range(20))
    assert td.create_trial(url).steps() == list(range(20))


def test_options_reach_the_service_with_every_object(place: Place, spools: Path, stub: StubServer) -> None:
    options = td.S3Options(
        endpoint_url=place.server.endpoint,
        region="us-east-1",
        addressing="path",
        sse="AES256",
        storage_class="STANDARD_IA",
        tags={"team": "vision"},
    )
    with open_session(options.at(f"s3://{place.server.bucket}/{place.prefix}/run")) as session:
        capture(session, range(3))
    puts = [entry for entry in stub.log("PutObject") if entry["status"] == 200]
    assert {"x-amz-server-side-encryption", "x-amz-storage-class", "x-amz-tagging"} <= set(
        puts[-1]["headers"]
    )
    assert all(entry["headers"]["x-amz-server-side-encryption"] == "AES256" for entry in puts)


def test_the_claim_names_the_trainer_and_its_spool(place: Place, url: str, spools: Path) -> None:
    with open_session(url):
        claim = json.loads(place.objects()["run/attempts/0000-worker_0.json"])
    assert claim["pid"] == os.getpid()
    assert claim["host"] == socket.gethostname()
    assert Path(claim["spool"]).is_relative_to(spools)


def test_a_large_configuration_starts_a_run_and_is_no_argument_of_a_process(place: Place, url: str) -> None:
    with open_session(url, configuration={"words": ["word"] * 50_000}):
        pass
    claim = json.loads(place.objects()["run/attempts/0000-worker_0.json"])
    assert len(claim["configuration"]["words"]) == 50_000


@pytest.mark.parametrize("engine", ["aiobotocore", "obstore"])
def test_a_script_with_a_flusher_thread_that_just_ends_loses_nothing(url: str, engine: str) -> None:
    script = f"""
import numpy as np
from tdcore.session import RingConfig, Session
session = Session({url + "&engine=" + engine!r}, configuration={{}}, framework="test",
                  framework_version="1", flusher="thread", ring=RingConfig(ring_bytes=1 << 22))
ids = np.array([session.ring.intern("weight", 1)], dtype=np.uint32)
for step in range(20):
    session.ring.capture([np.full(1000, step, np.float32)], ids, np.array([3], np.uint8), step, 1, step)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    run = td.create_trial(url)
    assert run.steps() == list(range(20))
    assert run.status == "ended"


# --- refused at the start ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"missing_bucket": True}, r"bucket"),
        ({"deny": ["PutObject"]}, r"s3:PutObject on arn:aws:s3:::tdcore-tests/"),
        ({"deny": ["ListBucket"]}, r"s3:ListBucket on arn:aws:s3:::tdcore-tests"),
        ({"accept_keys": {"OTHER": "key"}}, r"credentials|key"),
        ({"expired": True}, r"ExpiredToken"),
    ],
    ids=["no bucket", "no PutObject", "no ListBucket", "unknown key", "expired"],
)
def test_what_cannot_work_is_said_when_the_hook_is_made(
    url: str, stub: StubServer, settings: dict[str, Any], message: str
) -> None:
    stub.set(**settings)
    with pytest.raises(SinkError, match=message) as caught:
        open_session(url)
    assert len(stub.log()) < 10  # not tried again and again
    assert caught.value.kind == "denied"
    secret = stub.keys.secret_key
    assert secret not in str(caught.value)
    assert flushers_of(url) == []
    stub.set(missing_bucket=False, deny=[], accept_keys={}, expired=False)
    assert [key for key in stub.objects() if "/data/" in key or "/index/" in key] == []


def test_a_bucket_is_never_made(url: str, stub: StubServer) -> None:
    stub.set(missing_bucket=True)
    with pytest.raises(SinkError):
        open_session(url)
    assert stub.log("CreateBucket") == []


def test_an_option_that_cannot_work_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="unknown S3 option 'storage_klass'"):
        open_session(url + "&storage_klass=x")


@pytest.mark.parametrize("value", [object(), {1, 2}], ids=["an object", "a set"])
def test_a_configuration_that_is_not_json_is_a_config_error(place: Place, url: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="configuration must be made of JSON values"):
        open_session(url, configuration={"value": value})
    assert place.objects() == {}


def test_a_url_that_was_made_a_path_is_not_taken_for_a_folder(url: str) -> None:
    with pytest.raises(ConfigError, match="give the URL as a string"):
        open_session(str(Path(url)))


def test_a_spool_that_cannot_be_written_is_said_when_the_hook_is_made(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SinkError, match=r"cannot write to .*file/spool.*TDCORE_SPOOL"):
        open_session(f"{url}&spool={tmp_path}/file/spool")


# --- killed ---


@pytest.mark.parametrize("after_steps", [1, 10, 30])
def test_what_was_committed_before_the_trainer_is_killed_arrives(
    place: Place, url: str, stub: StubServer, tmp_path: Path, trainers: list[Trainer], after_steps: int
) -> None:
    stub.set(latency=0.1)
    trainer = Trainer(tmp_path, out=url, steps=100_000, pause=0.005)
    trainers.append(trainer)
    trainer.wait_for_steps(after_steps)
    trainer.process.kill()
    trainer.wait()
    flushers_gone(url)
    out = download(place, tmp_path / "copy")
    captured = trainer.captured()
    rows = check_run(out, captured)
    assert rows >= len(captured) * len(NAMES)
    assert end_of(out)["clean"] is False


@pytest.mark.parametrize("times", [1, 3])
def test_a_flusher_killed_during_uploads_loses_nothing_and_doubles_nothing(
    place: Place, url: str, stub: StubServer, tmp_path: Path, trainers: list[Trainer], times: int
) -> None:
    stub.set(latency=0.05)
    trainer = Trainer(tmp_path, out=url, steps=150, pause=0.02)
    trainers.append(trainer)
    for each in range(times):
        trainer.wait_for_steps(20 + 30 * each)
        flusher(url).kill()
    assert trainer.wait() == 0, trainer.output
    flushers_gone(url)
    out = download(place, tmp_path / "copy")
    assert check_run(out, trainer.captured()) == 150 * len(NAMES)
    assert end_of(out)["flusher_restarts"] == times


def holds_rows(spooled: Path) -> bool:
    """Return whether a spooled object is an index file; its key is at the begin of the spooled file."""
    with spooled.open("rb") as file:
        return b"index/" in file.read(4096)


def test_trainer_and_flusher_killed_while_the_bucket_is_away_leave_a_spool_to_upload(
    place: Place, url: str, stub: StubServer, spools: Path, tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, out=url, steps=100_000, pause=0.005)
    trainers.append(trainer)
    trainer.wait_for_steps(10)
    stub.set(refuse=True)
    wait_until(lambda: any(map(holds_rows, spools.rglob("objects/0*"))), "rows are in the spool")
    flushers = flushers_of(url)
    trainer.process.kill()
    for process in flushers:
        process.kill()
    trainer.wait()
    psutil.wait_procs(flushers)  # the spool is locked until they have ended
    stub.set(refuse=False)
    done = subprocess.run(
        [sys.executable, "-m", "tdcore.cli", "upload", str(spools), "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [(spool["left"], spool["why"]) for spool in json.loads(done.stdout)["spools"]] == [(0, "")]
    run = td.create_trial(url)
    values = run.tensor("weight")
    assert all(values.value(step).shape == (4096,) for step in run.steps())
    # There is no end file if no process was left to write it.
    assert [missing.what for missing in run.missing()] in ([], ["end"])


def test_what_an_earlier_run_at_the_same_place_left_does_not_get_into_the_new_one(
    place: Place, url: str, stub: StubServer, spools: Path
) -> None:
    options = FlusherOptions(spill_after=timedelta(seconds=0.2), end_deadline=timedelta(seconds=0.5))
    old = open_session(url, flusher_options=options)
    stub.set(refuse=True)
    capture(old, range(3))
    old.close()
    flushers_gone(url)
    stub.set(refuse=False)
    for key in place.objects():  # a user removes all objects
        place.server.client().request("DELETE", f"{place.prefix}/{key}")
    with open_session(url) as new:
        capture(new, range(100, 102))
    run = td.create_trial(url)
    assert run.steps() == [100, 101]
    (left,) = find_spools(spools)
    (result,) = upload(left)
    assert result.left
    assert "run" in result.why
    assert td.create_trial(url).steps() == [100, 101]


# --- the service is away at the end ---


def test_a_job_exits_in_time_without_its_bucket_and_upload_finishes_it(
    place: Place, url: str, stub: StubServer, spools: Path, tmp_path: Path, trainers: list[Trainer]
) -> None:
    options = {"spill_after": 0.3, "end_deadline": 2.0}
    trainer = Trainer(tmp_path, out=url, steps=20, flusher_options=options, end="wait")
    trainers.append(trainer)
    trainer.wait_for_steps(20)
    stub.set(refuse=True)
    trainer.process.terminate()
    trainer.wait()
    flushers_gone(url)
    stub.set(refuse=False)
    if list(spools.rglob("spool.json")):
        command = [sys.executable, "-m", "tdcore.cli", "upload", str(spools)]
        assert subprocess.run(command, check=False).returncode == 0
        assert subprocess.run(command, check=False, capture_output=True).returncode == 3  # no spool is left
    out = download(place, tmp_path / "copy")
    assert check_run(out, trainer.captured()) == 20 * len(NAMES)
    assert end_of(out)["totals"]["rows"] == 20 * len(NAMES)


def test_a_flusher_killed_at_birth_leaves_one_that_needs_no_bucket_to_go_on(
    place: Place, url: str, stub: StubServer, spools: Path
) -> None:
    options = FlusherOptions(spill_after=timedelta(seconds=0.2), end_deadline=timedelta(seconds=1))
    with open_session(url, flusher_options=options) as session:
        stub.set(refuse=True)  # the run is claimed; after this line the bucket cannot be read
        wait_until(lambda: session.progress().flusher_epoch == 1, "the first flusher is there")
        flusher(url).kill()
        capture(session, range(5))
    flushers_gone(url)
    stub.set(refuse=False)
    assert not any("end/" in key for key in place.objects())
    upload(spools)
    assert td.create_trial(url).steps() == [0, 1, 2, 3, 4]
    assert end_of(download(place, spools / "copy"))["flusher_restarts"] == 1


def test_close_says_what_is_not_in_the_bucket_yet_and_returns_in_time(url: str, stub: StubServer) -> None:
    options = FlusherOptions(spill_after=timedelta(seconds=0.2), end_deadline=timedelta(seconds=20))
    session = open_session(url, flusher_options=options)
    stub.set(refuse=True)
    capture(session, range(5))
    report = session.close(timedelta(seconds=1))
    assert not report.drained  # it did not wait for the bucket, which is still unavailable
    assert "the flusher is still working" in report.reason
    stub.set(refuse=False)
    flushers_gone(url)
    assert td.create_trial(url).steps() == list(range(5))


# --- many workers ---


def test_eight_workers_of_one_host_write_one_run(
    place: Place, url: str, moto: Server, s3_prefix: str
) -> None:
    url = moto.url(s3_prefix)
    sessions = [open_session(url, worker=f"worker_{rank}", world_size=8) for rank in range(8)]
    for session in sessions:
        capture(session, range(10))
    for session in sessions:
        assert session.close().drained
    run = td.create_trial(url)
    assert run.steps() == list(range(10))
    assert len(run.workers()) == 8
    assert {session.attempt for session in sessions} == {0}
    assert run.missing() == []


def test_64_workers_that_start_at_once_share_one_attempt(
    place: Place, url: str, stub: StubServer, tmp_path: Path
) -> None:
    """Each worker is simulated by a thread with its own ring, flusher and connections."""
    stub.set(latency=0.01)

    def work(rank: int) -> int:
        worker = f"worker_{rank}"
        with contextlib.closing(open_sink(url)) as sink:
            attempt = claim_attempt(
                sink,
                where="here",
                worker=worker,
                configuration={},
                framework="test",
                framework_version="1",
                world_size=64,
            ).attempt
        ring = _core.Ring(data_bytes=1 << 20, slots=64, names_bytes=1 << 16)
        ids = np.array([ring.intern("weight", 1)], dtype=np.uint32)
        for step in range(3):
            value = np.full(100, rank * 10 + step, dtype=np.float32)
            ring.capture([value], ids, np.array([3], dtype=np.uint8), step, 1, step)
        ring.set_closing()
        job = {"out": url, "worker": worker, "attempt": attempt, "spool": str(tmp_path / worker / "0000")}
        with open_destination(job) as (far, journal):
            consumer = _core.Consumer(ring.fd)
            assert Flusher(consumer, far, worker=worker, attempt=attempt, journal=journal).run()
        ring.close()
        return attempt

    with ThreadPoolExecutor(64) as pool:
        attempts = list(pool.map(work, range(64)))
    assert set(attempts) == {0}
    run = td.create_trial(url)
    assert len(run.workers()) == 64
    assert run.status == "ended"
    assert run.missing() == []
    for rank in (0, 31, 63):
        assert run.tensor("weight").value(2, worker=f"worker_{rank}")[0] == rank * 10 + 2
