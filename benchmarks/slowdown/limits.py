"""Physical limits, measured in the worker's process: the minimum time of any tool that moves these bytes."""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

_DISK_BYTES = 128 << 20


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median wall time of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def copy_seconds(sizes: list[int], repeats: int = 9) -> float:
    """The fastest plain copy of tensors of these sizes (bytes) into memory that was touched before.

    Two ways are tried: tensor by tensor, and all bytes as one block, for which the C library uses streaming
    stores. Source and target are larger than the caches if the tensors are.
    """
    if not sizes:
        return 0.0
    return min(_seconds_to_copy(sizes, repeats), _seconds_to_copy([sum(sizes)], repeats))


def _seconds_to_copy(sizes: list[int], repeats: int) -> float:
    pairs = [(torch.zeros(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)) for size in sizes]
    return median_seconds(lambda: [target.copy_(source) for target, source in pairs], repeats)


def read_seconds(sizes: list[int], repeats: int = 9) -> float:
    """One read of tensors of these sizes (bytes): the maximum of their 32-bit words, one thread."""
    sources = [torch.ones(max(1, size // 4), dtype=torch.int32).numpy() for size in sizes]
    return median_seconds(lambda: [source.max() for source in sources], repeats)


def direct_write_bytes_per_second(folder: Path) -> float:
    """Speed of large direct writes to the disk (buffered and synced if direct writes are not supported)."""
    block = mmap.mmap(-1, 16 << 20)  # page-aligned
    block.write(os.urandom(1 << 20) * 16)
    path = folder / "direct_write"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    except OSError:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    start = time.perf_counter()
    for _ in range(_DISK_BYTES // len(block)):
        os.write(fd, block)
    os.fdatasync(fd)
    seconds = time.perf_counter() - start
    os.close(fd)
    path.unlink()
    return _DISK_BYTES / seconds
