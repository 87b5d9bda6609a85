"""From ring to disk: rate and CPU seconds per GB of the flusher process, beside plain writes of the same
bytes.

The trainer side captures 4 MB tensors as fast as the ring takes them (policy block), so the flusher is the
bottleneck.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import ROOT, save
from tdcore.session import RingConfig, Session


def cpu_seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def through_the_flusher(folder: Path, gigabytes: float) -> dict[str, float]:
    tensors = [np.random.default_rng(i).standard_normal(1 << 20, dtype=np.float32) for i in range(8)]
    batch_bytes = sum(tensor.nbytes for tensor in tensors)
    rounds = max(1, int(gigabytes * 1e9 / batch_bytes))
    before = cpu_seconds(resource.RUSAGE_CHILDREN)
    session = Session(
        folder,
        configuration={},
        framework="none",
        framework_version="0",
        ring=RingConfig(ring_bytes=512 << 20),
    )
    names = array("I", [session.ring.intern(f"tensor_{i}", 10) for i in range(len(tensors))])
    start = time.perf_counter()
    for step in range(rounds):
        session.ring.capture(tensors, names, bytes([3]) * len(tensors), step, 4, step)
    session.close()
    seconds = time.perf_counter() - start
    moved = rounds * batch_bytes
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        "bytes": moved,
        "gb_per_s": moved / seconds / 1e9,
        "cpu_s_per_gb": (cpu_seconds(resource.RUSAGE_CHILDREN) - before) / (moved / 1e9),
        "files": len(files),
        "drops": session.counters().dropped_tensors,
    }


def plain_writes(folder: Path, gigabytes: float, direct: bool) -> dict[str, float]:
    """64 MB files of the same kind of bytes, written and synced one after the other, by os.write."""
    import mmap

    block = mmap.mmap(-1, 64 << 20)  # page-aligned
    block.write(np.random.default_rng(0).bytes(64 << 20))
    rounds = max(1, int(gigabytes * 1e9 / len(block)))
    flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0)
    before, start = cpu_seconds(resource.RUSAGE_SELF), time.perf_counter()
    for i in range(rounds):
        fd = os.open(folder / f"plain{i}", flags, 0o644)
        os.write(fd, block)
        os.fdatasync(fd)
        os.close(fd)
    seconds = time.perf_counter() - start
    moved = rounds * len(block)
    return {
        "gb_per_s": moved / seconds / 1e9,
        "cpu_s_per_gb": (cpu_seconds(resource.RUSAGE_SELF) - before) / (moved / 1e9),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    gigabytes: float = parser.parse_args().gigabytes
    (ROOT / "build").mkdir(exist_ok=True)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        result["flusher"] = through_the_flusher(folder / "run", gigabytes)
        for direct in (False, True):
            target = folder / f"plain-{direct}"
            target.mkdir()
            result["plain direct writes" if direct else "plain buffered writes"] = plain_writes(
                target, gigabytes, direct
            )
    for what, numbers in result.items():
        print(f"{what:22}", "  ".join(f"{key} {value:.4g}" for key, value in numbers.items()))
    print("saved", save("flush", {"method": __doc__, **result}).relative_to(ROOT))


if __name__ == "__main__":
    main()
