"""A disk that is full, read-only or removed: the training continues, gaps are recorded, later data kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tdcore.flusher import FlusherOptions
from tdcore.session import RingConfig, Session
from tests.trainers.checks import check_values, end_of, flushers_of, read_index
from tests.trainers.quadratic import NAMES, Tap, training
from tests.waiting import wait_until

DISK_BYTES = 16 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tdcore-test", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def start(out: Path, **options: float) -> Session:
    quick = {"retry_delay": 0.05, "visible_delay": 0.1, "end_deadline": 2.0} | options
    return Session(
        out,
        configuration={},
        framework="numpy",
        framework_version="0",
        ring=RingConfig(ring_bytes=1 << 23, slots=256, when_full="drop"),
        flusher_options=FlusherOptions.from_json(quick),
    )


def train(tap: Tap, first: int, last: int) -> int:
    """Train and capture steps `first` to `last`; return the number of tensors that the ring dropped."""
    return sum(tap(step, tensors) for step, tensors in training(last + 1) if step >= first)


def assert_everything_is_accounted_for(out: Path, session: Session, captured_tensors: int) -> None:
    """Check that each tensor is exactly one of: stored, stored without its bytes, counted as dropped."""
    rows = read_index(out).to_pylist()
    drops = session.counters().drops
    lost = [row for row in rows if row["status"] == "lost"]
    assert all(row["reason"] == "io_error" and row["segment"] is None for row in lost)
    no_room = drops["ring_full"].tensors if "ring_full" in drops else 0
    given_up = drops["io_error"].tensors if "io_error" in drops else 0
    without_row = captured_tensors - no_room - len(rows)
    assert without_row >= 0
    assert given_up == len(lost) + without_row
    check_values(out, rows)


def test_after_a_full_disk_the_gap_is_recorded_and_later_data_is_kept(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = disk / "run"
    session = start(out)
    tap = Tap(session)
    train(tap, 0, 4)
    wait_until(lambda: session.progress().last_step == 4, "the first steps were written")
    ballast = disk / "ballast"
    ballast.write_bytes(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize - (64 << 10)))

    train(tap, 5, 64)  # 21 MB: more than the ring holds
    wait_until(lambda: session.progress().errors > 0, "the disk refused")
    assert "space" in session.progress().error
    wait_until(lambda: session.progress().pending_bytes < 1 << 22, "room was made in the ring")
    assert session.active

    ballast.unlink()
    wait_until(lambda: session.progress().pending_records == 0, "the ring was empty again")
    assert train(tap, 65, 69) == 0
    report = session.close()
    assert report.drained, report.reason

    rows = read_index(out).to_pylist()
    whole = {row["step"] for row in rows if row["segment"] is not None}
    assert {0, 1, 2, 3, 4, 65, 66, 67, 68, 69} <= whole
    assert not set(range(70)) <= whole
    assert_everything_is_accounted_for(out, session, 70 * len(NAMES))
    end = end_of(out)
    assert end["clean"] is True
    assert "io_error" in str(end) or "ring_full" in str(end)
    assert session.progress().errors > 0
    assert session.progress().error == ""  # the disk has room again
    warnings = [record.message for record in caplog.records if record.name == "tdcore"]
    assert len(warnings) == 1, warnings
    assert "No space left" in warnings[0]
    assert "The training continues" in warnings[0]


def test_a_disk_that_stays_full_ends_the_flusher_at_its_deadline(disk: Path) -> None:
    out = disk / "run"
    session = start(out, end_deadline=0.3)
    tap = Tap(session)
    train(tap, 0, 2)
    wait_until(lambda: session.progress().last_step == 2, "the first steps were written")
    (disk / "ballast").write_bytes(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
    train(tap, 3, 9)
    report = session.close(timedelta(seconds=60))
    assert not flushers_of(out)
    assert report.drained or report.reason
    rows = read_index(out).to_pylist()
    assert {row["step"] for row in rows if row["segment"] is not None} >= {0, 1, 2}
    check_values(out, rows)


def test_closing_on_a_disk_that_stays_full_returns_soon_and_says_what_is_lost(
    disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = disk / "run"
    session = start(out, end_deadline=3600.0, full_deadline=0.3)
    tap = Tap(session)
    train(tap, 0, 2)
    wait_until(lambda: session.progress().last_step == 2, "the first steps were written")
    (disk / "ballast").write_bytes(b"\0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_bsize))
    train(tap, 3, 9)
    report = session.close(timedelta(seconds=120))
    assert report.waited < timedelta(seconds=120)
    assert not flushers_of(out)
    assert not report.drained
    assert report.records_left > 0
    assert "space" in report.reason
    assert "lost, and counted in drops" in report.reason
    assert any("are lost: stopped after" in record.message for record in caplog.records)
    assert_everything_is_accounted_for(out, session, 10 * len(NAMES))


def test_a_disk_that_becomes_read_only_does_not_stop_the_training(disk: Path) -> None:
    out = disk / "run"
    session = start(out)
    tap = Tap(session)
    train(tap, 0, 2)
    wait_until(lambda: session.progress().last_step == 2, "the first steps were written")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    train(tap, 3, 5)
    wait_until(lambda: session.progress().errors > 0, "the disk refused")
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    train(tap, 6, 8)
    report = session.close()
    assert report.drained, report.reason
    assert {0, 1, 2, 6, 7, 8} <= set(read_index(out)["step"].to_pylist())
    assert_everything_is_accounted_for(out, session, 9 * len(NAMES))


def test_a_removed_folder_is_made_again_and_later_data_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "run"
    session = start(out)
    tap = Tap(session)
    train(tap, 0, 2)
    wait_until(lambda: session.progress().last_step == 2, "the first steps were written")
    shutil.rmtree(out)
    train(tap, 3, 5)
    wait_until(lambda: session.progress().last_step == 5, "later steps were written")
    train(tap, 6, 8)
    report = session.close()
    assert report.drained, report.reason
    files = sorted((out / "index" / "worker_0").glob("*.parquet"))
    assert files, "nothing was written after the folder was created again"
    assert end_of(out)["attempt"] == 0
