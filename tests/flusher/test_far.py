"""The flusher of a run in a bucket: everything arrives, also through the spool or a second flusher."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tdcore import _core
from tdcore.flusher import Flusher, FlusherOptions
from tdcore.flusher.destination import open_destination
from tdcore.flusher.ledger import IndexEntry, Ledger
from tdcore.format.layout import index_prefix
from tdcore.maintenance.upload import upload
from tdcore.sinks import Sink
from tdcore.sinks.s3 import S3Sink
from tdcore.sinks.spooled import SpooledSink
from tests.flushing import (
    MIB,
    QUICK,
    FlusherThread,
    Killed,
    Trainer,
    index_ranges,
    payloads,
    read_end,
    read_index,
    weights,
)
from tests.s3.fixtures import Place
from tests.s3.servers import StubServer
from tests.waiting import wait_until

FAR = replace(
    QUICK,
    remote_stop_poll=timedelta(milliseconds=20),
    segment_bytes=100_000,
    end_deadline=timedelta(seconds=2),
    merge_fan_in=4,
    spill_after=timedelta(seconds=0.2),
)


@pytest.fixture
def place(stub: StubServer, s3_prefix: str) -> Place:
    return Place(server=stub, prefix=s3_prefix)


@pytest.fixture
def job(place: Place, tmp_path: Path) -> dict[str, Any]:
    url = place.url(connect_timeout="1", read_timeout="2")
    return {
        "out": url,
        "worker": "worker_0",
        "attempt": 0,
        "spool": str(tmp_path / "spools" / "0000"),
        "options": FAR.as_json(),
    }


@pytest.fixture
def bucket(job: dict[str, Any]) -> Iterator[Sink]:
    """The bucket, for reading its content."""
    with contextlib.closing(S3Sink(job["out"])) as sink:
        yield sink


def run(
    trainer: Trainer,
    job: dict[str, Any],
    *,
    options: FlusherOptions = FAR,
    wait: Callable[[float], object] = time.sleep,
) -> bool:
    """Run a flusher on this thread until it ends."""
    with open_destination(job) as (sink, journal):
        consumer = _core.Consumer(trainer.ring.fd)
        flusher = Flusher(consumer, sink, worker="worker_0", attempt=0, options=options, journal=journal)
        return flusher.run(wait=wait)


def check(bucket: Sink, steps: int) -> None:
    """Check that all rows and all payloads of weights() are there, once each."""
    table = read_index(bucket)
    assert table.num_rows == 3 * steps
    found = payloads(bucket, table)
    assert found == {
        (name, step, 0): value.tobytes() for step in range(steps) for name, value in weights(step).items()
    }


def test_a_run_in_a_bucket_is_the_run_that_was_captured(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, tmp_path: Path
) -> None:
    for step in range(20):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job)
    check(bucket, 20)
    end = read_end(bucket)
    assert end["clean"]
    assert end["totals"]["rows"] == 60
    assert end["storage"]["engine"] in ("obstore", "aiobotocore")
    assert end["storage"]["spooled"] == {"objects": 0, "bytes": 0, "damaged": 0}
    assert not list((tmp_path / "spools").glob("*"))  # no spool, no journal


def test_while_the_bucket_is_away_the_ring_empties_into_the_spool(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, stub: StubServer
) -> None:
    stub.set(refuse=True)
    with open_destination(job) as (sink, journal):
        flusher = FlusherThread(trainer, sink, options=FAR, journal=journal)
        for step in range(30):
            trainer.capture(step, weights(step))
        wait_until(lambda: trainer.pending() == 0)
        assert trainer.ring.progress()["error"]
        stub.set(refuse=False)
        trainer.ring.set_closing()
        assert flusher.join()
    check(bucket, 30)
    end = read_end(bucket)
    assert end["drops"] == {}
    assert end["gaps"] == []


def test_a_job_that_ends_while_the_bucket_is_away_leaves_a_spool_that_upload_finishes(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, stub: StubServer, capfd: pytest.CaptureFixture[str]
) -> None:
    stub.set(refuse=True)
    for step in range(10):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job)  # although the bucket is still unavailable
    assert trainer.pending() == 0
    said = capfd.readouterr().err
    assert f"tdcore upload {job['spool']}" in said
    stub.set(refuse=False)
    (result,) = upload(Path(job["spool"]))
    assert (result.left, result.damaged, result.why) == (0, 0, "")
    check(bucket, 10)
    assert read_end(bucket)["totals"]["rows"] == 30
    assert not Path(job["spool"]).exists()


def test_when_the_spool_is_full_too_payloads_are_given_up_and_counted(
    job: dict[str, Any], bucket: Sink, stub: StubServer
) -> None:
    trainer = Trainer(data_bytes=MIB)
    job = {**job, "out": job["out"] + "&spool_bytes=1048576"}
    stub.set(refuse=True)
    with open_destination(job) as (sink, journal):
        flusher = FlusherThread(trainer, sink, options=FAR, journal=journal)
        for step in range(40):
            trainer.capture(step, weights(step, count=1, elements=25_000))
        stub.set(refuse=False)
        trainer.ring.set_closing()
        assert flusher.join()
    trainer.ring.close()
    table = read_index(bucket)
    kept = payloads(bucket, table)
    lost = [row for row in table.select(["status", "reason"]).to_pylist() if row["status"] == "lost"]
    assert table.num_rows == 40
    assert len(kept) + len(lost) == 40
    assert lost
    assert {row["reason"] for row in lost} == {"io_error"}
    assert read_end(bucket)["drops"]["io_error"]["tensors"] == len(lost)


@pytest.mark.parametrize("away", [False, True], ids=["bucket there", "bucket away"])
@pytest.mark.parametrize("killed_at", [1, 2, 3, 5, 8, 13, 21])
def test_a_second_flusher_writes_the_same_files_and_loses_nothing(
    trainer: Trainer,
    job: dict[str, Any],
    bucket: Sink,
    stub: StubServer,
    killed_at: int,
    away: bool,
) -> None:
    """The first flusher is killed at its n-th pause; with `away` the bucket is unavailable from then on."""
    pauses = [0]

    def die(seconds: float) -> None:
        time.sleep(seconds)
        pauses[0] += 1
        if pauses[0] == killed_at:
            raise Killed
        trainer.capture(pauses[0] - 1, weights(pauses[0] - 1))

    with contextlib.suppress(Killed):
        run(trainer, job, wait=die)
    assert pauses[0] == killed_at
    steps = pauses[0] - 1
    stub.set(refuse=away)
    for step in range(steps, steps + 5):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job)
    if away:
        stub.set(refuse=False)
        upload(Path(job["spool"]).parent)
    check(bucket, steps + 5)
    assert read_end(bucket)["flusher_restarts"] == 1
    assert read_end(bucket)["totals"]["rows"] == 3 * (steps + 5)


def test_what_was_begun_is_written_again_under_the_same_names(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, stub: StubServer
) -> None:
    for step in range(6):
        trainer.capture(step, weights(step))
    stub.set(latency=0.1, only=["PutObject"])

    def die(seconds: float) -> None:
        time.sleep(seconds)
        if any(key.endswith(".safetensors") for key in place_keys(stub, job)):
            raise Killed

    with contextlib.suppress(Killed):
        run(trainer, job, options=replace(FAR, segment_bytes=1300), wait=die)
    before = {key for key in place_keys(stub, job) if key.endswith(".safetensors")}
    stub.set(latency=0.0)
    for step in range(6, 9):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job, options=replace(FAR, merge_fan_in=64, final_merge=timedelta()))
    check(bucket, 9)
    assert before
    # written by the first flusher; the second one makes larger segments
    assert before <= set(place_keys(stub, job))


def place_keys(stub: StubServer, job: dict[str, Any]) -> list[str]:
    prefix = job["out"].partition("?")[0].split("/", 3)[3]
    return sorted(stub.objects(prefix))


def test_merges_and_deletions_happen_in_the_bucket_too(
    trainer: Trainer, job: dict[str, Any], bucket: Sink
) -> None:
    for step in range(40):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job, options=replace(FAR, segment_bytes=1300))
    check(bucket, 40)
    assert len(bucket.list(index_prefix("worker_0"))) == len(index_ranges(bucket)) < 10


def test_a_bucket_that_hangs_in_a_merge_does_not_keep_the_ring_waiting(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, go_on = threading.Event(), threading.Event()
    delete = SpooledSink.start_delete

    def hang(self: SpooledSink, keys: Sequence[str]) -> Future[None]:
        hangs.set()
        go_on.wait(60)
        return delete(self, keys)

    monkeypatch.setattr(SpooledSink, "start_delete", hang)
    with open_destination(job) as (sink, journal):
        flusher = FlusherThread(trainer, sink, options=replace(FAR, segment_bytes=1300), journal=journal)
        for step in range(8):
            trainer.capture(step, weights(step))
            wait_until(lambda: trainer.pending() == 0)
        wait_until(hangs.is_set)
        for step in range(8, 16):
            trainer.capture(step, weights(step))
        wait_until(lambda: trainer.pending() == 0)
        go_on.set()
        trainer.ring.set_closing()
        assert flusher.join()
    check(bucket, 16)


def test_a_merge_that_its_flusher_did_not_live_to_enter_is_undone(
    trainer: Trainer, job: dict[str, Any], bucket: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flusher is killed between the write of the merged index file and its entry in the journal."""

    def die(self: Ledger, old: Sequence[IndexEntry], new: IndexEntry) -> None:
        raise Killed

    for step in range(12):
        trainer.capture(step, weights(step))
    with monkeypatch.context() as patch, contextlib.suppress(Killed):
        patch.setattr(Ledger, "replace", die)
        run(trainer, job, options=replace(FAR, segment_bytes=1300))
    merged = {(first, last) for first, last in index_ranges(bucket) if last > first}
    assert merged
    for step in range(12, 15):
        trainer.capture(step, weights(step))
    trainer.ring.set_closing()
    assert run(trainer, job, options=replace(FAR, merge_fan_in=64, final_merge=timedelta()))
    check(bucket, 15)
    assert merged.isdisjoint(index_ranges(bucket))


@pytest.mark.parametrize("kept_bytes", [32 * MIB, 0], ids=["rows kept", "nothing kept"])
def test_a_tensor_in_parts_is_counted_once_wherever_its_lost_parts_lie(
    job: dict[str, Any], bucket: Sink, stub: StubServer, kept_bytes: int
) -> None:
    trainer = Trainer(data_bytes=2 * MIB)
    job = {**job, "out": job["out"] + "&spool_bytes=1048576"}
    stub.set(refuse=True)
    with open_destination(job) as (sink, journal):
        flusher = FlusherThread(trainer, sink, options=replace(FAR, kept_bytes=kept_bytes), journal=journal)
        for step in range(8):
            trainer.capture(step, weights(step, count=1, elements=200_000))  # four parts each
        stub.set(refuse=False)
        trainer.ring.set_closing()
        assert flusher.join()
    trainer.ring.close()
    parts = Counter(step for _, step, _ in payloads(bucket, read_index(bucket)))
    incomplete = [step for step in range(8) if parts[step] < 4]
    assert incomplete
    assert read_end(bucket)["drops"]["io_error"]["tensors"] == len(incomplete)
    assert sum(gap["tensors"] for gap in read_end(bucket)["gaps"]) == len(incomplete)


def test_a_stop_request_in_the_bucket_reaches_the_trainer(
    trainer: Trainer, job: dict[str, Any], bucket: Sink
) -> None:
    with open_destination(job) as (sink, journal):
        flusher = FlusherThread(trainer, sink, options=FAR, journal=journal)
        bucket.put("control/stop-0000.json", [json.dumps({"reason": "enough"}).encode()])
        wait_until(lambda: trainer.ring.stop_request())
        trainer.ring.set_closing()
        assert flusher.join()
    assert json.loads(str(trainer.ring.stop_request()))["reason"] == "enough"
