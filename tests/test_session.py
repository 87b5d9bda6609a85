"""The session of one worker: its attempt, its flusher, its counters.

Shutdown, crash, fork and full disk have their own files.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tdcore.errors import (
    ConfigError,
    FlusherError,
    RunCorrupt,
    SinkError,
    UnsupportedFeature,
    UnsupportedFormat,
)
from tdcore.format import layout
from tdcore.session import RingConfig, Session, StopRequest
from tdcore.session.attempts import ClaimedAttempt, claim_attempt
from tdcore.session.counters import Drop
from tdcore.session.spawning import environment
from tdcore.sinks import LocalSink, MemorySink, Sink
from tests.trainers.checks import check_run, end_of, flushers_of, read_index
from tests.trainers.quadratic import NAMES, Tap, training
from tests.waiting import PATIENCE_SECONDS, wait_until

SMALL_RING = RingConfig(ring_bytes=1 << 24, slots=1024)
MakeSession = Callable[..., Session]


@pytest.fixture
def make_session(tmp_path: Path) -> Iterator[MakeSession]:
    """Create sessions in tmp_path/run; after the test they are closed and their flushers are killed."""
    made: list[Session] = []
    fixed: dict[str, Any] = {"configuration": {}, "framework": "numpy", "framework_version": "0"}

    def make(out: str | os.PathLike[str] = tmp_path / "run", **options: Any) -> Session:
        session = Session(out, **(fixed | {"ring": SMALL_RING} | options))
        made.append(session)
        return session

    yield make
    for session in made:
        session.close()
        for process in flushers_of(session.out_dir):
            process.kill()


@pytest.fixture(params=["process", "thread"])
def flusher(request: pytest.FixtureRequest) -> Literal["process", "thread"]:
    kind: Literal["process", "thread"] = request.param
    return kind


def run_json(out: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((out / "run.json").read_text())
    return document


def train(session: Session, steps: int) -> list[tuple[int, int]]:
    tap = Tap(session)
    return [(step, tap(step, tensors)) for step, tensors in training(steps)]


# --- capture ---


def test_what_was_captured_is_in_the_run_after_close(
    tmp_path: Path, make_session: MakeSession, flusher: Literal["process", "thread"]
) -> None:
    session = make_session(flusher=flusher)
    captured = train(session, 20)
    report = session.close()
    assert report.drained, report.reason
    assert (report.records_left, report.bytes_left, report.reason, report.restarts) == (0, 0, "", 0)
    assert check_run(tmp_path / "run", captured) == 20 * len(NAMES)
    assert end_of(tmp_path / "run")["clean"] is True


def test_counters_and_progress_agree_with_what_was_captured(make_session: MakeSession) -> None:
    session = make_session()
    train(session, 5)
    counters = session.close().counters
    size = sum(tensor.nbytes for tensor in next(training(1))[1].values())
    assert (counters.captures, counters.tensors) == (5, 5 * len(NAMES))
    assert counters.payload_bytes == 5 * size
    assert counters.capture_time > timedelta()
    assert (dict(counters.drops), counters.dropped_tensors, counters.dropped_bytes) == ({}, 0, 0)
    progress = session.progress()
    assert (progress.rows, progress.last_step, progress.pending_records) == (5 * len(NAMES), 4, 0)
    assert (progress.flusher_epoch, progress.errors, progress.error) == (1, 0, "")
    assert session.counters() == counters


def test_close_may_be_called_again_and_reports_the_same(make_session: MakeSession) -> None:
    session = make_session()
    train(session, 2)
    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: session.close(), range(4)))
    assert all(report is reports[0] for report in reports)
    assert not session.active
    train(session, 1)  # does nothing
    assert session.counters() == reports[0].counters


def test_the_context_manager_closes_also_on_an_error(tmp_path: Path, make_session: MakeSession) -> None:
    captured = []

    def fail() -> None:
        with make_session() as session:
            captured.extend(train(session, 3))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    check_run(tmp_path / "run", captured)


def test_data_becomes_visible_while_the_training_goes_on(
    tmp_path: Path, make_session: MakeSession, flusher: Literal["process", "thread"]
) -> None:
    session = make_session(flusher=flusher)
    train(session, 3)
    wait_until(lambda: read_index(tmp_path / "run").num_rows == 3 * len(NAMES), "three steps were visible")
    assert session.active


def test_a_dropped_session_ends_its_flusher_and_keeps_its_data(
    tmp_path: Path, make_session: MakeSession
) -> None:
    out = tmp_path / "dropped"
    session = Session(out, configuration={}, framework="numpy", framework_version="0", ring=SMALL_RING)
    captured = train(session, 3)
    assert flushers_of(out)
    del session
    gc.collect()
    wait_until(lambda: not flushers_of(out), "the flusher of the dropped session ended")
    check_run(out, captured)


# --- attempts ---


def test_a_new_run_says_what_it_is(tmp_path: Path, make_session: MakeSession) -> None:
    session = make_session(configuration={"save_interval": 10}, world_size=4)
    run = run_json(tmp_path / "run")
    assert (run["format"], run["run_id"], session.attempt) == (1, session.run_id, 0)
    (entry,) = run["attempts"]
    assert (entry["attempt"], entry["world_size"], entry["framework"], entry["pid"]) == (
        0,
        4,
        "numpy",
        os.getpid(),
    )
    assert entry["configuration"] == {"save_interval": 10}


def test_a_used_folder_is_a_new_attempt_and_the_old_one_stays(
    tmp_path: Path, make_session: MakeSession
) -> None:
    first = make_session(configuration={"n": 1})
    captured = train(first, 3)
    first.close()
    before = run_json(tmp_path / "run")
    second = make_session(configuration={"n": 2})
    train(second, 5)
    second.close()
    after = run_json(tmp_path / "run")
    assert (first.attempt, second.attempt) == (0, 1)
    assert after["run_id"] == before["run_id"]
    assert after["attempts"][0] == before["attempts"][0]
    assert [entry["configuration"]["n"] for entry in after["attempts"]] == [1, 2]
    check_run(tmp_path / "run", captured, attempt=0)
    assert read_index(tmp_path / "run", attempt=1).num_rows == 5 * len(NAMES)


def test_workers_of_one_job_share_the_attempt(tmp_path: Path, make_session: MakeSession) -> None:
    sessions = [make_session(worker=f"worker_{rank}", world_size=2) for rank in range(2)]
    assert [session.attempt for session in sessions] == [0, 0]
    assert len({session.run_id for session in sessions}) == 1
    assert len(run_json(tmp_path / "run")["attempts"]) == 1


def _claim(sink: Sink, **changes: Any) -> ClaimedAttempt:
    options: dict[str, Any] = {
        "where": "runs/x",
        "worker": "worker_0",
        "configuration": {},
        "framework": "numpy",
    }
    return claim_attempt(sink, **(options | {"framework_version": "0", "world_size": 1} | changes))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_trainers_that_race_for_a_folder_get_attempts_of_their_own(tmp_path: Path, kind: str) -> None:
    shared = MemorySink()
    trainers = 12
    start = threading.Barrier(trainers)

    def claim(_: int) -> ClaimedAttempt:
        sink: Sink = shared if kind == "memory" else LocalSink(tmp_path / "run")
        start.wait()
        return _claim(sink)

    with ThreadPoolExecutor(trainers) as pool:
        attempts = list(pool.map(claim, range(trainers)))
    assert sorted(attempt.attempt for attempt in attempts) == list(range(trainers))
    assert len({attempt.run_id for attempt in attempts}) == 1
    sink = shared if kind == "memory" else LocalSink(tmp_path / "run")
    run = json.loads(sink.get("run.json"))
    assert [entry["attempt"] for entry in run["attempts"]] == list(range(trainers))


def test_an_attempt_entered_in_run_json_without_a_claim_is_not_used_again() -> None:
    sink = MemorySink()
    sink.put("run.json", [json.dumps({"format": 1, "run_id": "r", "attempts": [{"attempt": 6}]}).encode()])
    assert (_claim(sink).attempt, _claim(sink).attempt) == (7, 8)


def test_files_of_something_else_in_the_folder_are_left_alone(
    tmp_path: Path, make_session: MakeSession
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "attempts").mkdir()
    (out / "attempts" / "readme").write_text("mine too")
    make_session().close()
    assert (out / "notes.txt").read_text() == "mine"
    assert (out / "attempts" / "readme").read_text() == "mine too"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('{"name": "my app"}', RunCorrupt, "not the file of a tdcore run"),
        ("[1, 2]", RunCorrupt, "is a list of 2, expected an object"),
        ('{"format": 1, "run_id"', RunCorrupt, "not JSON"),
        ('{"format": 99, "run_id": "x", "attempts": []}', UnsupportedFormat, "of format '99'"),
        (
            '{"format": 1, "run_id": "x", "attempts": ["a"]}',
            RunCorrupt,
            "an attempt is 'a', expected an object",
        ),
    ],
)
def test_a_run_json_that_is_not_ours_is_refused_and_kept(
    tmp_path: Path, make_session: MakeSession, text: str, error: type[Exception], words: str
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "run.json").write_text(text)
    with pytest.raises(error, match=words):
        make_session()
    assert (out / "run.json").read_text() == text
    assert not flushers_of(out)


# --- errors at creation ---


@pytest.mark.parametrize("place", ["a file is in the way", "read-only file system"])
def test_an_out_dir_that_cannot_be_written_is_an_error_at_once(
    tmp_path: Path, make_session: MakeSession, place: str
) -> None:
    if place == "a file is in the way":
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "run"
    else:
        out = Path("/proc/tdcore-run")
    with pytest.raises(SinkError, match="cannot start a run in") as caught:
        make_session(out)
    assert str(out) in str(caught.value)
    assert "choose an out_dir" in str(caught.value)
    assert not flushers_of(out)


def test_a_wrong_ring_size_is_an_error_and_leaves_no_attempt(
    tmp_path: Path, make_session: MakeSession
) -> None:
    with pytest.raises(ConfigError, match="RingConfig"):
        make_session(ring=RingConfig(ring_bytes=12345))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"worker": "../x"}, "worker"),
        ({"configuration": {"x": object()}}, "configuration"),
        ({"flusher": "fork"}, "flusher"),
        ({"close_timeout": timedelta(seconds=-1)}, "close_timeout"),
        ({"out": ""}, "out_dir"),
    ],
)
def test_an_argument_that_cannot_work_is_named(
    make_session: MakeSession, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_session(**options)


def test_a_url_without_a_sink_is_refused_with_a_way_out(make_session: MakeSession) -> None:
    with pytest.raises(UnsupportedFeature, match="give a folder"):
        make_session("gs://bucket/prefix")


def test_a_relative_out_dir_stays_where_it_was(
    tmp_path: Path, make_session: MakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = make_session("run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    captured = train(session, 2)
    session.close()
    check_run(tmp_path / "run", captured)


# --- starting the flusher ---


@pytest.mark.parametrize("executable", [None, "", "/no/such/python"])
def test_without_a_python_to_start_the_error_names_the_thread(
    make_session: MakeSession, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(FlusherError, match='flusher="thread"'):
        make_session()


def test_a_flusher_that_never_starts_switches_capture_off_once_and_says_why(
    tmp_path: Path,
    make_session: MakeSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho this is no python >&2\nexit 9\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    with caplog.at_level(logging.ERROR, "tdcore"):
        session = make_session()
        wait_until(lambda: not session.active, "capture was switched off")
        train(session, 3)  # continues undisturbed
        report = session.close()
    assert (report.drained, report.restarts) == (False, 5)
    assert "status 9: this is no python" in report.reason
    assert session.failure == report.reason
    assert len(caplog.records) == 1, caplog.text
    assert "the training continues" in caplog.text
    end = end_of(tmp_path / "run")
    assert end["clean"] is False
    assert "this is no python" in end["reason"]


HOSTILE = {
    "PYTHONINSPECT": "1",
    "PYTHONSTARTUP": "/no/such/file.py",
    "PYTHONWARNINGS": "error",
    "PYTHONVERBOSE": "1",
    "OMP_NUM_THREADS": "garbage",
}


def test_the_flusher_returns_freed_memory_unless_the_user_has_chosen_an_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("ARROW_DEFAULT_MEMORY_POOL", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    found = environment()
    assert (found["ARROW_DEFAULT_MEMORY_POOL"], found["MALLOC_ARENA_MAX"]) == ("system", "4")
    assert found["MALLOC_TRIM_THRESHOLD_"] == found["MALLOC_MMAP_THRESHOLD_"] == str(8 << 20)


def test_the_flusher_is_not_misled_by_the_trainers_folder_or_environment(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "tdcore").mkdir(parents=True)
    for name in ["json.py", "struct.py", "pyarrow.py", "numpy.py", "sitecustomize.py"]:
        (project / name).write_text("raise SystemExit('the wrong ' + __name__)")
    (project / "tdcore" / "__init__.py").write_text("raise SystemExit('the wrong tdcore')")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\n"
        "from tdcore.session import RingConfig, Session\n"
        "os.chdir(sys.argv[2])\n"
        "sys.path.insert(0, sys.argv[2]); sys.path.insert(0, '')\n"
        f"os.environ.update({HOSTILE!r})\n"
        "session = Session(sys.argv[1], configuration={}, framework='x', framework_version='0',\n"
        "                  ring=RingConfig(ring_bytes=1 << 20, slots=64))\n"
        "report = session.close()\n"
        "print(report.drained, report.restarts, report.reason)\n"
    )
    done = _python([str(script), str(tmp_path / "run"), str(project)])
    assert done.stdout.split() == ["True", "0"], done.stdout + done.stderr


def _python(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    import tdcore

    package = os.path.dirname(os.path.abspath(tdcore.__path__[0]))
    environment = {**os.environ, "PYTHONPATH": package}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_a_session_imports_neither_a_framework_nor_pyarrow(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from tdcore.session import RingConfig, Session\n"
        "with Session(sys.argv[1], configuration={}, framework='x', framework_version='0',\n"
        "             ring=RingConfig(ring_bytes=1 << 20, slots=64)): pass\n"
        "heavy = ('torch', 'pyarrow', 'numpy', 'asyncio', 'multiprocessing')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    done = _python(["-c", code, str(tmp_path / "run")])
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_rows_of_an_earlier_step_do_not_set_the_progress_back(make_session: MakeSession) -> None:
    session = make_session(flusher="thread")
    tap, tensors = Tap(session), next(training(1))[1]
    tap(11, tensors)
    wait_until(lambda: session.progress().rows == len(NAMES), "step 11 was written")
    tap(10, tensors)
    wait_until(lambda: session.progress().rows == 2 * len(NAMES), "step 10 was written")
    assert session.progress().last_step == 11


def test_the_flusher_holds_none_of_the_trainers_files_open(tmp_path: Path, make_session: MakeSession) -> None:
    with (tmp_path / "precious").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        session = make_session()
        train(session, 1)
        wait_until(lambda: session.progress().records > 0, "the flusher was at work")
        (flusher,) = flushers_of(session.out_dir)
        assert str(tmp_path / "precious") not in [opened.path for opened in flusher.open_files()]
        assert flusher.cwd() == "/"
        assert os.getsid(flusher.pid) == flusher.pid
        assert flusher.environ()["OMP_NUM_THREADS"] == "1"
        assert flusher.environ()["CUDA_VISIBLE_DEVICES"] == ""


# --- documents and requests ---


def test_collections_of_all_attempts_stand_side_by_side(tmp_path: Path, make_session: MakeSession) -> None:
    for attempt in range(3):
        session = make_session()
        session.put_collections({"collections": {"weights": {"tensor_names": ["early"]}}})
        session.put_collections({"collections": {"weights": {"tensor_names": [f"of attempt {attempt}"]}}})
        session.close()
    document = json.loads((tmp_path / "run" / "collections.json").read_text())
    names = {
        key: entry["collections"]["weights"]["tensor_names"] for key, entry in document["attempts"].items()
    }
    assert names == {str(attempt): [f"of attempt {attempt}"] for attempt in range(3)}


def test_collections_too_large_for_the_ring_are_written_at_close(
    tmp_path: Path, make_session: MakeSession
) -> None:
    session = make_session(ring=RingConfig(ring_bytes=1 << 16, slots=16))
    names = [f"tensor {i}" for i in range(10_000)]
    session.put_collections({"collections": {"all": {"tensor_names": names}}})
    session.close()
    document = json.loads((tmp_path / "run" / "collections.json").read_text())
    assert document["attempts"]["0"]["collections"]["all"]["tensor_names"] == names


def test_no_stop_is_requested_until_somebody_asks(
    tmp_path: Path, make_session: MakeSession, flusher: Literal["process", "thread"]
) -> None:
    session = make_session(flusher=flusher)
    assert session.stop_request() is None
    request = {"reason": "gradients vanish", "rule": "TDC101", "step": 12, "by": "tdcore rules run"}
    LocalSink(tmp_path / "run").put(layout.stop_key(0), [json.dumps(request).encode()])
    wait_until(lambda: session.stop_request() is not None, "the stop request arrived")
    assert session.stop_request() == StopRequest(
        reason="gradients vanish", rule="TDC101", step=12, by="tdcore rules run"
    )
    assert session.stop_request() is session.stop_request()


def test_other_requests_are_given_once_each(
    tmp_path: Path, make_session: MakeSession, flusher: Literal["process", "thread"]
) -> None:
    session = make_session(flusher=flusher)
    assert session.take_request() is None
    sink = LocalSink(tmp_path / "run")
    for number in range(3):
        sink.put_new(layout.capture_key(0, number), [f"request {number}".encode()])
    taken: list[str] = []

    def take() -> bool:
        taken.extend(filter(None, [session.take_request()]))
        return len(taken) == 3

    wait_until(take, "the requests arrived")
    assert taken == ["request 0", "request 1", "request 2"]
    assert session.stop_request() is None


@pytest.mark.parametrize("text", ["", "stop!", "[]", '{"step": "soon"}'])
def test_a_stop_request_written_by_hand_is_one_too(
    tmp_path: Path, make_session: MakeSession, text: str
) -> None:
    session = make_session(flusher="thread")
    LocalSink(tmp_path / "run").put(layout.stop_key(0), [text.encode()])
    wait_until(lambda: session.stop_request() is not None, "the stop request arrived")
    request = session.stop_request()
    assert request is not None
    assert request.reason


def test_a_stop_request_of_an_earlier_attempt_does_not_stop_this_one(
    tmp_path: Path, make_session: MakeSession
) -> None:
    make_session().close()
    LocalSink(tmp_path / "run").put(layout.stop_key(0), [b"{}"])
    session = make_session(flusher="thread")
    train(session, 1)
    wait_until(lambda: session.progress().rows > 0, "the flusher went once around")
    assert session.attempt == 1
    assert session.stop_request() is None


def test_a_tensor_that_cannot_be_captured_is_counted_with_its_reason(make_session: MakeSession) -> None:
    session = make_session()
    ids = np.array([session.ring.intern("odd", 1)], np.uint32)
    assert session.ring.capture([object()], ids, np.array([3], np.uint8), 0, 1, 0) == 1
    assert dict(session.close().counters.drops) == {"unreadable": Drop(tensors=1, bytes=0)}
