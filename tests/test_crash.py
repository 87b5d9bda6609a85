"""Crashes: of the trainer, in every way in which a process can die, and of the flusher."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import psutil
import pytest

from tdcore.session import RingConfig, Session
from tests.trainers.checks import (
    Trainer,
    check_run,
    check_values,
    end_of,
    flushers_of,
    read_index,
)
from tests.trainers.quadratic import NAMES, Tap, training
from tests.waiting import wait_until


@pytest.fixture
def trainers() -> Iterator[list[Trainer]]:
    """A list of trainers that are stopped after the test."""
    started: list[Trainer] = []
    yield started
    for trainer in started:
        trainer.stop()


# --- the trainer dies ---


@pytest.mark.parametrize("how", ["os._exit", "segfault", "abort", "SIGTERM", "SIGKILL"])
def test_a_trainer_that_dies_without_goodbye_loses_nothing(
    tmp_path: Path, trainers: list[Trainer], how: str
) -> None:
    trainer = Trainer(tmp_path, steps=15, end=how)
    trainers.append(trainer)
    assert trainer.wait() != 0
    trainer.wait_for_flushers()
    assert len(trainer.captured()) == 15, trainer.output
    assert check_run(trainer.out, trainer.captured()) == 15 * len(NAMES)
    end = end_of(trainer.out)
    assert end["clean"] is False
    assert end["last_step"] == 14


@pytest.mark.parametrize("after_steps", [1, 7, 40])
def test_every_batch_committed_before_a_sigkill_is_kept(
    tmp_path: Path, trainers: list[Trainer], after_steps: int
) -> None:
    trainer = Trainer(tmp_path, steps=100_000)
    trainers.append(trainer)
    trainer.wait_for_steps(after_steps)
    trainer.process.kill()
    trainer.wait()
    trainer.wait_for_flushers()
    check_run(trainer.out, trainer.captured())
    assert end_of(trainer.out)["clean"] is False


def test_a_trainer_that_dies_while_its_flusher_is_held_loses_nothing(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, steps=20, end="wait", ring_bytes=1 << 24)
    trainers.append(trainer)
    trainer.wait_for_steps(1)
    (flusher,) = trainer.flushers()
    flusher.suspend()
    trainer.wait_for_steps(20)
    trainer.process.kill()
    trainer.wait()
    flusher.resume()
    trainer.wait_for_flushers()
    assert check_run(trainer.out, trainer.captured()) == 20 * len(NAMES)


def test_with_the_flusher_as_a_thread_a_killed_trainer_keeps_what_was_written(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, steps=100_000, flusher="thread", pause=0.005)
    trainers.append(trainer)
    trainer.wait_for_steps(1)
    wait_until(lambda: read_index(trainer.out).num_rows > 0, "something was written")
    trainer.process.kill()
    trainer.wait()
    rows = read_index(trainer.out).to_pylist()
    assert rows
    check_values(trainer.out, rows)


def test_the_next_attempt_after_a_crash_keeps_the_crashed_one(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    crashed = Trainer(tmp_path, steps=12, end="SIGKILL")
    trainers.append(crashed)
    crashed.wait()
    crashed.wait_for_flushers()
    captured = crashed.captured()
    crashed.ledger.unlink()
    resumed = Trainer(tmp_path, steps=9)
    trainers.append(resumed)
    assert resumed.wait() == 0, resumed.output
    check_run(resumed.out, captured, attempt=0)
    check_run(resumed.out, resumed.captured(), attempt=1)
    assert (end_of(resumed.out, attempt=0)["clean"], end_of(resumed.out, attempt=1)["clean"]) == (False, True)


# --- the flusher dies ---


def test_a_flusher_killed_again_and_again_loses_and_doubles_nothing(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    kills = 5
    trainer = Trainer(tmp_path, steps=100_000, pause=0.01)
    trainers.append(trainer)
    killed: set[int] = set()
    for _ in range(kills):
        wait_until(
            lambda: any(process.pid not in killed for process in trainer.flushers()), "a flusher was there"
        )
        (flusher,) = (process for process in trainer.flushers() if process.pid not in killed)
        trainer.wait_for_steps(len(trainer.captured()) + 20)
        flusher.send_signal(signal.SIGKILL)
        killed.add(flusher.pid)
    trainer.process.send_signal(signal.SIGINT)
    assert trainer.wait() == -signal.SIGINT, trainer.output
    assert not trainer.flushers()
    check_run(trainer.out, trainer.captured())
    assert end_of(trainer.out)["clean"] is True


def test_trainer_and_flusher_killed_one_after_the_other_keep_a_readable_run(
    tmp_path: Path, trainers: list[Trainer]
) -> None:
    trainer = Trainer(tmp_path, steps=100_000, pause=0.002)
    trainers.append(trainer)
    trainer.wait_for_steps(5)
    wait_until(lambda: read_index(trainer.out).num_rows > 0, "something was written")
    trainer.process.kill()
    for flusher in trainer.flushers():
        flusher.kill()
    trainer.wait()
    rows = read_index(trainer.out).to_pylist()
    assert rows
    check_values(trainer.out, rows)


# --- the flusher is suspended ---


def held_session(
    tmp_path: Path, when_full: Literal["block", "drop", "degrade"]
) -> tuple[Session, psutil.Process]:
    session = Session(
        tmp_path / "run",
        configuration={},
        framework="numpy",
        framework_version="0",
        ring=RingConfig(
            ring_bytes=1 << 22, slots=64, when_full=when_full, block_timeout=timedelta(milliseconds=20)
        ),
    )
    wait_until(lambda: session.progress().flusher_epoch == 1, "the flusher attached")
    (flusher,) = flushers_of(session.out_dir)
    flusher.suspend()
    return session, flusher


@pytest.mark.parametrize("when_full", ["block", "drop"])
def test_a_full_ring_never_stops_the_training_and_counts_every_drop(
    tmp_path: Path, when_full: Literal["block", "drop"]
) -> None:
    session, flusher = held_session(tmp_path, when_full)
    tap = Tap(session)
    left_out = {step: tap(step, tensors) for step, tensors in training(40)}
    flusher.resume()
    report = session.close()
    assert report.drained, report.reason
    dropped = sum(left_out.values())
    assert 0 < dropped < 40 * len(NAMES)
    assert {reason: drop.tensors for reason, drop in report.counters.drops.items()} == {"ring_full": dropped}
    rows = read_index(tmp_path / "run").to_pylist()
    assert len(rows) == 40 * len(NAMES) - dropped == report.counters.tensors
    bytes_of = {name: tensor.nbytes for name, tensor in next(training(1))[1].items()}
    all_bytes = 40 * sum(bytes_of.values())
    assert report.counters.dropped_bytes == all_bytes - sum(bytes_of[row["name"]] for row in rows)
    check_values(tmp_path / "run", rows)


def test_a_full_ring_that_degrades_keeps_the_statistics(tmp_path: Path) -> None:
    session, flusher = held_session(tmp_path, "degrade")
    tap = Tap(session)
    left_out = sum(tap(step, tensors) for step, tensors in training(40))
    flusher.resume()
    report = session.close()
    assert report.drained, report.reason
    drops = {reason: drop.tensors for reason, drop in report.counters.drops.items()}
    assert set(drops) <= {"degraded", "ring_full"}
    assert sum(drops.values()) == left_out
    rows = read_index(tmp_path / "run").to_pylist()
    degraded = [row for row in rows if row["reason"] == "degraded"]
    assert len(degraded) == drops["degraded"] > 0
    assert len(rows) == 40 * len(NAMES) - drops.get("ring_full", 0)
    assert all(row["status"] == "ok" and row["segment"] is None and row["count"] for row in degraded)
    check_values(tmp_path / "run", rows)


def test_the_ring_is_used_again_once_the_flusher_comes_back(tmp_path: Path) -> None:
    session, flusher = held_session(tmp_path, "drop")
    tap = Tap(session)
    values = list(training(60))
    for step, tensors in values[:40]:
        tap(step, tensors)
    flusher.resume()
    wait_until(lambda: session.progress().pending_records == 0, "the ring was empty again")
    assert [tap(step, tensors) for step, tensors in values[40:45]] == [0] * 5
    session.close()
    steps = set(read_index(tmp_path / "run")["step"].to_pylist())
    assert set(range(40, 45)) <= steps


# --- the flusher cannot start ---


def test_a_flusher_that_always_dies_at_once_is_given_up_and_the_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -KILL $$\n")
    dying.chmod(0o755)
    with caplog.at_level(logging.ERROR, "tdcore"):
        session, flusher = held_session(tmp_path, "drop")
        tap = Tap(session)
        for step, tensors in training(4):
            tap(step, tensors)
        monkeypatch.setattr(sys, "executable", str(dying))  # settings of the next flushers
        flusher.kill()
        wait_until(lambda: not session.active, "the flusher was given up")
        for step, tensors in training(4):  # does nothing, and does not fail
            tap(step, tensors)
        report = session.close()
    assert not report.drained
    assert (report.records_left, report.restarts) == (4, 5)
    assert f"signal {signal.SIGKILL}" in report.reason
    assert [record.name for record in caplog.records] == ["tdcore"]
    assert "4 records" in caplog.text
    end = end_of(tmp_path / "run")
    assert (end["clean"], end["records_left"]) == (False, 4)


def test_a_sigchld_that_is_ignored_does_not_hide_a_dead_flusher(tmp_path: Path) -> None:
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        session, flusher = held_session(tmp_path, "drop")
        tap = Tap(session)
        captured = [(step, tap(step, tensors)) for step, tensors in training(5)]
        flusher.kill()
        report = session.close()
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert report.drained, report.reason
    assert report.restarts >= 1
    check_run(tmp_path / "run", captured)


def test_a_reaper_in_the_training_script_does_not_confuse_the_supervisor(tmp_path: Path) -> None:
    # Scripts that collect all dead children with waitpid(-1) take the flusher's status from the supervisor.
    session, flusher = held_session(tmp_path, "drop")
    tap = Tap(session)
    captured = [(step, tap(step, tensors)) for step, tensors in training(5)]
    flusher.kill()
    with contextlib.suppress(ChildProcessError):  # if the supervisor was faster
        os.waitpid(flusher.pid, 0)
    report = session.close()
    assert report.drained, report.reason
    check_run(tmp_path / "run", captured)
