"""Sources of samples: processes, limits of the container, and the lock of the host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tdcore.flusher.system.cgroup import Cgroup
from tdcore.flusher.system.host_lock import HostLock
from tdcore.flusher.system.processes import ProcessTree


def sleeping() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])


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
