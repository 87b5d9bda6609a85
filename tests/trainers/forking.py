"""A trainer that forks while it works, in the ways in which training scripts fork.

python forking.py '{"out": "runs/x", "ledger": "ledger.txt", "steps": 30, "how": "os.fork"}'
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from tdcore.session import RingConfig, Session
from tests.trainers.quadratic import Array, Tap, training

SESSION: Session  # for children that inherit nothing else from their parent
TAP: Tap
CHILD_SECONDS = 20  # SIGALRM ends a child that takes longer, because it waits for a lock that its parent held


def use_everything(session: Session, tap: Tap, tensors: dict[str, Array]) -> None:
    """Call everything that hooks may call, in a child: it must do nothing, raise nothing and not wait."""
    signal.alarm(CHILD_SECONDS)
    assert tap(999_999, tensors) == 0
    session.put_collections({"collections": {"from a child": {}}})
    session.ring.intern("from a child", 1)
    assert not session.active
    assert session.stop_request() is None
    session.counters()
    session.progress()
    report = session.close()
    assert not report.drained
    assert "forked child" in report.reason
    signal.alarm(0)


def fork(session: Session, tap: Tap, tensors: dict[str, Array], how: str) -> None:
    child = os.fork()
    if child == 0:
        if how == "linger":
            time.sleep(600)
        use_everything(session, tap, tensors)
        if how == "os._exit":
            os._exit(0)
        sys.exit(0)  # runs the atexit handlers in the child
    if how == "linger":
        print(child, flush=True)
        return
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def in_pool(number: int) -> int:
    use_everything(SESSION, TAP, next(training(1))[1])
    return number


def while_threads_capture(session: Session, forks: int) -> None:
    """Fork while two threads spend most of their time in capture, intern and counters."""
    stop = threading.Event()
    steps = [1_000_000, 2_000_000]

    def work(index: int) -> None:
        tap = Tap(session)
        tensors = next(training(1))[1]
        while not stop.is_set():
            steps[index] += 1
            tap(steps[index], tensors)
            session.ring.intern(f"thread {index} step {steps[index]}", 1)
            session.put_collections({"collections": {}})
            session.counters()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    tap = Tap(session)
    for _ in range(forks):
        fork(session, tap, next(training(1))[1], "os._exit")
    stop.set()
    for thread in threads:
        thread.join()


def main(job: dict[str, Any]) -> None:
    global SESSION, TAP
    ring = RingConfig(ring_bytes=1 << 24, slots=1024)
    session = Session(
        job["out"], configuration={}, framework="numpy", framework_version=np.__version__, ring=ring
    )
    tap = Tap(session)
    SESSION, TAP = session, tap
    ledger = os.open(job["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    how = job["how"]
    for step, tensors in training(job["steps"]):
        os.write(ledger, f"{step} {tap(step, tensors)}\n".encode())
        if step == job["steps"] // 2:
            if how == "pool":
                with multiprocessing.get_context("fork").Pool(2) as pool:
                    assert pool.map(in_pool, range(8)) == list(range(8))
            elif how == "threads":
                while_threads_capture(session, job["forks"])
            else:
                fork(session, tap, tensors, how)
        time.sleep(job.get("pause", 0.0))
    if how == "linger":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
