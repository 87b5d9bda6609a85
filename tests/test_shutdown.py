"""A training that ends by itself: all data is stored, in bounded time, and no process remains."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from tdcore.session import RingConfig, Session
from tests.signals import IN_THE_BACKGROUND, ignored_signals
from tests.trainers.checks import Trainer, check_run, end_of, flushers_of, read_index
from tests.trainers.quadratic import NAMES, Tap, training
from tests.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(
        tmp_path / "run",
        configuration={},
        framework="numpy",
        framework_version="0",
        ring=RingConfig(ring_bytes=1 << 26, slots=1024),
    )
    yield session
    for process in flushers_of(session.out_dir):
        process.resume()
    session.close()
    for process in flushers_of(session.out_dir):
        process.kill()


def hold(session: Session) -> psutil.Process:
    """Suspend the flusher after it has attached."""
    wait_until(lambda: session.progress().flusher_epoch > 0, "the flusher attached")
    (process,) = flushers_of(session.out_dir)
    process.suspend()
    return process


def train(session: Session, steps: int) -> list[tuple[int, int]]:
    tap = Tap(session)
    return [(step, tap(step, tensors)) for step, tensors in training(steps)]


def test_close_drains_a_hundred_pending_batches(tmp_path: Path, session: Session) -> None:
    flusher = hold(session)
    captured = train(session, 100)
    assert session.progress().pending_records >= 100
    flusher.resume()
    report = session.close()
    assert report.drained, report.reason
    assert report.progress.pending_records == 0
    assert check_run(tmp_path / "run", captured) == 100 * len(NAMES)
    assert not flushers_of(session.out_dir)


def test_close_with_a_hung_flusher_ends_at_its_deadline_and_says_what_remains(
    tmp_path: Path, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    flusher = hold(session)
    captured = train(session, 10)
    with caplog.at_level(logging.WARNING, "tdcore"):
        report = session.close(timedelta(seconds=0.2))
    assert not report.drained
    assert "still working" in report.reason
    assert report.records_left == 10
    assert report.bytes_left >= report.counters.payload_bytes
    assert "10 records" in caplog.text
    flusher.resume()
    again = session.close(timedelta(seconds=PATIENCE_SECONDS))
    assert again.drained, again.reason
    check_run(tmp_path / "run", captured)


def test_what_a_timed_out_close_left_is_written_by_the_flusher_alone(
    tmp_path: Path, session: Session
) -> None:
    flusher = hold(session)
    captured = train(session, 10)
    session.close(timedelta())
    flusher.resume()
    wait_until(lambda: not flushers_of(session.out_dir), "the flusher finished alone")
    check_run(tmp_path / "run", captured)
    assert end_of(tmp_path / "run")["clean"] is True


def test_a_flusher_killed_during_close_is_replaced_and_nothing_is_lost(
    tmp_path: Path, session: Session
) -> None:
    flusher = hold(session)
    captured = train(session, 20)
    session.close(timedelta())
    flusher.kill()
    report = session.close()
    assert report.drained, report.reason
    assert report.restarts == 1
    check_run(tmp_path / "run", captured)


@pytest.mark.parametrize("flusher", ["process", "thread"])
@pytest.mark.parametrize(
    ("end", "status"), [("return", 0), ("exception", 1), ("sys.exit", 3), ("SIGINT", -signal.SIGINT)]
)
def test_a_normal_end_without_close_is_a_clean_end(
    tmp_path: Path, end: str, status: int, flusher: str
) -> None:
    trainer = Trainer(tmp_path, steps=15, end=end, flusher=flusher, env={"PYTHONWARNINGS": "error"})
    assert trainer.wait() == status, trainer.output
    assert not trainer.flushers()  # the exit has waited for the flusher
    check_run(trainer.out, trainer.captured())
    assert end_of(trainer.out)["clean"] is True
    expected = {"exception": "on purpose", "SIGINT": "KeyboardInterrupt"}
    if end not in expected:
        assert trainer.output == ""
    else:
        assert expected[end] in trainer.output
        assert "Exception ignored" not in trainer.output


def test_ctrl_c_in_the_terminal_does_not_reach_the_flusher(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=10_000, pause=0.002)
    try:
        trainer.wait_for_steps(10)
        os.killpg(trainer.process.pid, signal.SIGINT)  # as a terminal does: to the whole process group
        assert trainer.wait() == -signal.SIGINT, trainer.output
        check_run(trainer.out, trainer.captured())
        assert end_of(trainer.out)["clean"] is True
        assert not trainer.flushers()
    finally:
        trainer.stop()


def test_a_training_in_the_background_goes_on_at_ctrl_c_and_ends_clean(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=40, wait_at=10, signals=ignored_signals())
    try:
        trainer.wait_for_steps(10)
        (flusher,) = trainer.flushers()
        for each in IN_THE_BACKGROUND:
            os.killpg(trainer.process.pid, each)
            flusher.send_signal(each)
        trainer.go_on()
        assert trainer.wait() == 0, trainer.output
        assert len(trainer.captured()) == 40
        check_run(trainer.out, trainer.captured())
        assert end_of(trainer.out)["clean"] is True
        assert not trainer.flushers()
    finally:
        trainer.stop()


def test_exit_with_a_hung_flusher_ends_at_its_deadline_and_warns(tmp_path: Path) -> None:
    trainer = Trainer(
        tmp_path, steps=15, wait_at=10, end="wait", close_seconds=0.3, env={"PYTHONWARNINGS": "error"}
    )
    try:
        trainer.wait_for_steps(10)
        (flusher,) = trainer.flushers()
        flusher.suspend()
        trainer.go_on()
        trainer.wait_for_steps(15)
        trainer.process.send_signal(signal.SIGINT)
        assert trainer.wait() == -signal.SIGINT, trainer.output
        assert "not yet written" in trainer.output
        assert "Warning" not in trainer.output
        flusher.resume()
        trainer.wait_for_flushers()
        check_run(trainer.out, trainer.captured())
    finally:
        trainer.stop()


def test_whoever_reads_the_trainers_output_does_not_wait_for_the_flusher(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=10, end="wait", stdout=subprocess.PIPE)
    try:
        trainer.wait_for_steps(10)
        (flusher,) = trainer.flushers()
        flusher.suspend()
        trainer.process.kill()
        output, _ = trainer.process.communicate(timeout=PATIENCE_SECONDS)
        assert output == b""
        assert trainer.flushers()  # the flusher still runs, although its output has ended
    finally:
        trainer.stop()


def test_a_signal_handler_may_close_while_close_waits(tmp_path: Path, session: Session) -> None:
    flusher = hold(session)
    captured = train(session, 5)
    inner: list[bool] = []

    def handler(*_: object) -> None:  # called as for the grace signal of a scheduler
        inner.append(session.close(timedelta()).drained)
        flusher.resume()

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        report = session.close()
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert inner == [False]
    assert report.drained, report.reason
    check_run(tmp_path / "run", captured)


def test_a_session_that_captured_nothing_ends_cleanly(tmp_path: Path, session: Session) -> None:
    report = session.close()
    assert report.drained, report.reason
    assert read_index(tmp_path / "run").num_rows == 0
    assert end_of(tmp_path / "run")["clean"] is True
