"""Samples of the machine and the trainer: what they contain, how they are written, what a failure costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
from tdcore.config.settings import system_interval
from tdcore.errors import ConfigError, RunCorrupt, SinkError
from tdcore.flusher.options import FlusherOptions
from tdcore.flusher.system import SystemRecorder
from tdcore.flusher.system.cgroup import Cgroup
from tdcore.flusher.system.host_lock import HostLock
from tdcore.flusher.system.processes import ProcessTree
from tdcore.format.layout import FileRange
from tdcore.session import Session
from tdcore.sinks import LocalSink, MemorySink
from tdcore.trial.system import read_system
from tests.waiting import wait_until

OPTIONS = FlusherOptions(system_interval=timedelta(seconds=1), system_delay=timedelta(seconds=4))


def recorder(sink: Any, *, run_id: str = "", worker: str = "worker_0", host: str = "node") -> SystemRecorder:
    """For this process as the trainer. run_id: a name that no other test holds."""
    return SystemRecorder(
        sink,
        FileRange(worker, 0, 0, 0),
        trainer_pid=os.getpid(),
        run_id=run_id or f"{os.getpid()}-{time.monotonic_ns()}",
        options=OPTIONS,
        host=host,
    )


@pytest.fixture
def make() -> Iterator[Callable[..., SystemRecorder]]:
    """Makes recorders that are closed after the test."""
    with contextlib.ExitStack() as made:

        def make(*arguments: Any, **options: Any) -> SystemRecorder:
            return made.enter_context(contextlib.closing(recorder(*arguments, **options)))

        yield make


def samples(sink: Any) -> pa.Table:
    return read_system(sink, [0], None)


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


# What a sample has.


def test_a_run_has_samples_of_the_trainer_the_flusher_and_the_machine(tmp_path: Path) -> None:
    session = Session(tmp_path / "run", configuration={}, framework="test", framework_version="1")
    wait_until(lambda: session.counters() is not None)
    system = tmp_path / "run" / "system"
    wait_until(lambda: list(system.rglob("*.parquet")), "samples were written")
    session.close()
    table = td.create_trial(tmp_path / "run").system()
    assert table.num_rows >= 2
    last = table.to_pylist()[-1]
    assert last["memory_total"] == psutil.virtual_memory().total
    assert 0 < last["memory_available"] <= last["memory_total"]
    assert len(last["core_percent"]) == psutil.cpu_count()
    assert 0 <= last["cpu_percent"] <= 100
    assert last["trainer_memory"] > 1 << 20
    assert last["flusher_memory"] > 1 << 20
    assert last["gpus"] is None or last["gpus"][0]["index"] == 0
    assert table["sample"].to_pylist() == list(range(table.num_rows))
    assert table["time_ns"].to_pylist() == sorted(table["time_ns"].to_pylist())
    assert len(list(system.rglob("*.parquet"))) == 1


def test_cpu_time_of_the_trainer_is_that_which_the_kernel_counts() -> None:
    # In a process of its own, which has no other children.
    code = (
        "import os, time\nfrom tdcore.flusher.system.processes import ProcessTree\n"
        "tree = ProcessTree(os.getpid())\ntree.sample(0.0)\nbegin = time.process_time()\n"
        "while time.process_time() - begin < 0.5: pass\n"
        "print(tree.sample(1.0)[2], time.process_time() - begin)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    measured, own = map(float, done.stdout.split())
    assert measured == pytest.approx(own, abs=0.05)


def test_children_of_the_trainer_count_and_those_that_are_left_out_do_not() -> None:
    code = (
        "import subprocess, sys\nchildren = [subprocess.Popen(['sleep', '600']) for _ in range(3)]\n"
        "print(children[0].pid, flush=True)\nsys.stdin.read()\n"
        "for child in children: child.kill(), child.wait()\n"
        "print('alone', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        assert ProcessTree(trainer.pid).sample(0.0)[0] == 4
        assert ProcessTree(trainer.pid, leave_out=(child,)).sample(0.0)[0] == 3
        trainer.stdin.close()
        assert trainer.stdout.readline() == "alone\n"
        assert ProcessTree(trainer.pid).sample(0.0)[0] <= 1


def test_a_trainer_that_has_ended_has_no_processes() -> None:
    child = sleeping()
    tree = ProcessTree(child.pid)
    assert tree.sample(0.0)[0] == 1
    child.kill()
    child.wait()
    assert tree.sample(1.0)[:2] == (0, 0)


@pytest.mark.parametrize(
    ("files", "line", "expected"),
    [
        (
            {
                "a/b/memory.max": "2000",
                "a/memory.max": "max",
                "a/b/memory.current": "500",
                "a/cpu.max": "150000 100000",
            },
            "0::/a/b",
            {"memory_limit": 2000, "memory_limit_used": 500, "cpu_limit": 1.5},
        ),
        (
            {"a/b/memory.max": "2000", "a/memory.max": "1000", "a/memory.current": "700"},
            "0::/a/b",
            {"memory_limit": 1000, "memory_limit_used": 700},
        ),
        (
            {"memory/memory.limit_in_bytes": "3000", "memory/memory.usage_in_bytes": "10"},
            "4:memory:/docker/gone",
            {"memory_limit": 3000, "memory_limit_used": 10},
        ),
        ({"memory/memory.limit_in_bytes": str(2**63 - 4096)}, "4:memory:/", {}),
        (
            {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"},
            "3:cpu,cpuacct:/",
            {"cpu_limit": 0.5},
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", {}),
        ({}, "nonsense", {}),
    ],
    ids=[
        "version 2",
        "the tightest limit",
        "version 1",
        "unlimited",
        "version 1 CPUs",
        "unlimited CPUs",
        "none",
    ],
)
def test_limits_are_those_of_the_container(
    tmp_path: Path, files: dict[str, str], line: str, expected: dict[str, float]
) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(line + "\n")
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    assert Cgroup(root, proc).sample() == expected


# Which flusher samples the machine.


def test_one_worker_of_a_host_samples_the_machine(make: Callable[..., SystemRecorder]) -> None:
    sink, run_id = MemorySink(), f"{os.getpid()}-{time.monotonic_ns()}"
    first, second = (make(sink, run_id=run_id, worker=f"worker_{rank}") for rank in (0, 1))
    for now in range(3):
        first.poll(now)
        second.poll(now)
    first.finish(3)
    second.poll(4)
    second.finish(5)
    rows = samples(sink).to_pylist()
    machine = [(row["worker"], row["sample"]) for row in rows if row["memory_total"] is not None]
    assert machine == [("worker_0", 0), ("worker_0", 1), ("worker_0", 2), ("worker_1", 3)]
    assert all(row["trainer_memory"] for row in rows)


def test_another_worker_takes_over_when_the_one_that_samples_is_killed() -> None:
    run_id = f"{os.getpid()}-{time.monotonic_ns()}"
    code = (
        "import sys, time\nfrom tdcore.flusher.system.host_lock import HostLock\n"
        f"lock = HostLock({run_id!r}, 0)\nprint(lock.held(0.0), flush=True)\ntime.sleep(600)"
    )
    lock = HostLock(run_id, 0)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not lock.held(0.0)
        holder.send_signal(signal.SIGKILL)
    assert not lock.held(1.0)
    assert lock.held(2.0)
    other_attempt = HostLock(run_id, 1)
    assert other_attempt.held(0.0)
    lock.release()
    other_attempt.release()


# How samples are written.


def test_a_long_run_has_few_files_with_every_sample_once(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink)
    for now in range(1200):
        writer.poll(now)
        assert len(sink.objects) < 50
    assert samples(sink).num_rows > 1190
    writer.finish(1200)
    assert list(sink.objects) == ["system/node/worker_0/0000-000000000000-000000001199.parquet"]
    assert samples(sink)["sample"].to_pylist() == list(range(1200))


def test_a_flusher_continues_after_the_samples_of_one_that_died(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    for life in range(3):
        writer = make(sink, run_id=f"life-{life}-{time.monotonic_ns()}")
        for now in range(10):
            writer.poll(now)
    assert samples(sink)["sample"].to_pylist() == list(range(samples(sink).num_rows))


@settings(deadline=None)
@given(failing=st.lists(st.booleans(), min_size=1, max_size=60))
def test_samples_of_a_failing_sink_are_written_when_it_works_again(failing: list[bool]) -> None:
    sink = MemorySink()
    fails = False

    def fault(operation: str, key: str) -> None:
        if fails:
            raise SinkError("made up", kind="transient")

    sink.fault = fault
    writer = recorder(sink)
    for now, each in enumerate(failing):
        fails = each
        writer.poll(now)
    fails = False
    writer.finish(len(failing))
    assert samples(sink)["sample"].to_pylist() == list(range(len(failing)))


def test_samples_that_no_memory_is_left_for_are_counted(
    make: Callable[..., SystemRecorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.flusher.system.recorder._MAX_WAITING", 10)
    sink = MemorySink()

    def fault(operation: str, key: str) -> None:
        raise SinkError("made up", kind="transient")

    sink.fault = fault
    writer = make(sink)
    for now in range(100):
        writer.poll(now)
    sink.fault = None
    writer.finish(100)
    table = samples(sink)
    assert table.num_rows + sum(table["lost"].to_pylist()) == 100
    assert table.num_rows <= 10


def test_a_sample_that_fails_switches_sampling_off_and_is_reported(
    make: Callable[..., SystemRecorder], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def denied(self: object, now: float) -> None:
        raise PermissionError("made up")

    sink = MemorySink()
    writer = make(sink)
    writer.poll(0)
    monkeypatch.setattr(ProcessTree, "sample", denied)
    writer.poll(1)
    writer.poll(2)
    writer.finish(3)
    assert samples(sink).num_rows == 1
    assert capfd.readouterr().err.count("system metrics are off from here: PermissionError") == 1


def test_a_run_that_is_removed_is_reported_to_the_flusher(
    make: Callable[..., SystemRecorder], tmp_path: Path
) -> None:
    sink = LocalSink(tmp_path / "run")
    sink.put("run.json", [b"{}"])
    writer = make(sink)
    writer.poll(0)
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run").rmdir()
    with pytest.raises(SinkError) as caught:
        writer.finish(1)
    assert caught.value.kind == "gone"


# Settings and reading.


def test_no_samples_are_taken_when_they_are_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_SYSTEM_INTERVAL", "off")
    session = Session(tmp_path / "run", configuration={}, framework="test", framework_version="1")
    session.close()
    assert not (tmp_path / "run" / "system").exists()
    assert td.create_trial(tmp_path / "run").system().num_rows == 0


@pytest.mark.parametrize("text", ["0.01", "61", "fast", "nan", "0"])
def test_an_invalid_interval_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"TDCORE_SYSTEM_INTERVAL must be 0\.1 to 60 seconds, or off, got"):
        system_interval({"TDCORE_SYSTEM_INTERVAL": text})


def test_a_damaged_file_is_named(make: Callable[..., SystemRecorder]) -> None:
    sink = MemorySink()
    writer = make(sink)
    writer.poll(0)
    writer.finish(1)
    (key,) = sink.objects
    sink.objects[key] = sink.objects[key][:-20]
    with pytest.raises(RunCorrupt, match=key):
        samples(sink)


def test_files_that_are_merged_while_they_are_read_are_read_again(
    make: Callable[..., SystemRecorder],
) -> None:
    sink = MemorySink()
    writer = make(sink)
    for now in range(10):
        writer.poll(now)
    merged: list[str] = []

    def fault(operation: str, key: str) -> None:
        if operation == "get" and not merged:
            merged.append(key)
            writer.finish(10)

    sink.fault = fault
    assert samples(sink)["sample"].to_pylist() == list(range(10))
    assert merged
