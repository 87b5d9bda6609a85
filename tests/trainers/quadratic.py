"""A small trainer that captures everything at every step, and keeps a ledger of its captures.

Gradient descent on a separable quadratic in float32, element by element, so that a check of the run can
repeat the training and compare every bit. The ledger gets one line per capture, written before the next step
begins: it contains exactly the captures that had been committed when the process was killed.

    python quadratic.py '{"out": "runs/x", "ledger": "ledger.txt", "steps": 100, "end": "return"}'
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

# Together large enough for the page-aligned path through the ring and to disk.
SIZES = {"bias": 7, "weight": 4096, "embedding": 40_000}
RATES = {name: np.float32(0.01 * (1 + i)) for i, name in enumerate(SIZES)}
NAMES = [f"{kind}{name}" for name in SIZES for kind in ("", "gradient/")]


def training(steps: int) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield (step, all tensors by name), with the values at the time of that step's capture."""
    random = np.random.default_rng(0)
    weights = {name: random.standard_normal(size, dtype=np.float32) for name, size in SIZES.items()}
    targets = {name: random.standard_normal(size, dtype=np.float32) for name, size in SIZES.items()}
    for step in range(steps):
        tensors: dict[str, Array] = {}
        for name, weight in weights.items():
            gradient = weight - targets[name]
            tensors[name] = weight
            tensors[f"gradient/{name}"] = gradient
        yield step, tensors
        for name, weight in weights.items():
            weight -= RATES[name] * tensors[f"gradient/{name}"]


class Tap:
    """Captures all tensors of a step in one call."""

    def __init__(self, session: Any) -> None:
        self.session = session
        ids = [session.ring.intern(name, 3 if "/" in name else 1) for name in NAMES]
        self.ids = np.array(ids, np.int64).astype(np.uint32)  # -1 if names are no longer accepted
        self.flags = np.full(len(NAMES), 3, np.uint8)

    def __call__(self, step: int, tensors: dict[str, Array]) -> int:
        """Capture a step; return the number of tensors that were not kept as requested."""
        values = [tensors[name] for name in NAMES]
        return int(self.session.ring.capture(values, self.ids, self.flags, step, 1, step))


def end(how: str) -> None:
    """End the process in one of the ways in which training processes end."""
    if how == "exception":
        raise RuntimeError("this training fails on purpose")
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(4)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "abort":
        os.abort()
    if how in ("SIGTERM", "SIGKILL", "SIGINT"):
        os.kill(os.getpid(), getattr(signal, how))
    if how == "wait":
        while True:
            signal.pause()


def main(job: dict[str, Any]) -> None:
    from tdcore.flusher import FlusherOptions
    from tdcore.session import RingConfig, Session

    ring = RingConfig(
        ring_bytes=job.get("ring_bytes", 1 << 24),
        slots=1024,
        when_full=job.get("when_full", "block"),
        block_timeout=timedelta(seconds=job.get("block_seconds", 30)),
    )
    session = Session(
        job["out"],
        configuration={},
        framework="numpy",
        framework_version=np.__version__,
        ring=ring,
        flusher=job.get("flusher", "process"),
        flusher_options=FlusherOptions.from_json(job.get("flusher_options", {})),
        close_timeout=timedelta(seconds=job.get("close_seconds", 30)),
    )
    tap = Tap(session)
    ledger = os.open(job["ledger"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pause = job.get("pause", 0.0)
    for step, tensors in training(job["steps"]):
        while step == job.get("wait_at") and not os.path.exists(job["go"]):
            time.sleep(0.005)
        left_out = tap(step, tensors)
        os.write(ledger, f"{step} {left_out}\n".encode())
        if pause:
            time.sleep(pause)  # stands for the work of a larger model
    end(job.get("end", "return"))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
