"""Ring, statistics, CRC-32C and capture under pytest-benchmark; `python -m benchmarks.native` prints the
ratios.

Each group holds the limit (named `limit_*`) and what is measured against it, on the same bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdcore import _core

Benchmark = Callable[..., Any]
LARGE = 64 << 20  # bytes: far beyond the last cache
DTYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def normal(nbytes: int, dtype: Any = np.float32) -> Any:
    count = nbytes // np.dtype(dtype).itemsize
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32).astype(dtype)


class Drain:
    """A ring with a consumer that empties it between rounds, outside the timed part."""

    def __init__(self, data_bytes: int) -> None:
        self.ring = _core.Ring(data_bytes=data_bytes, slots=1 << 14, policy="drop")
        self.consumer = _core.Consumer(self.ring.fd)
        self.warm()

    def warm(self) -> None:
        """Touch all of the ring once, as prefaulting does in a session."""
        piece = np.zeros(4 << 20, np.uint8)
        for _ in range(2 * self.ring.data_bytes // piece.nbytes):
            self.capture([piece], flags=1)
            self.empty()

    def capture(self, tensors: list[Any], flags: int) -> int:
        return self.ring.capture(
            tensors, array("I", range(len(tensors))), bytes([flags]) * len(tensors), 0, 1, 0
        )

    def empty(self) -> None:
        self.consumer.release(self.consumer.drain(1 << 40, 1 << 20))


@pytest.fixture(scope="module")
def drain() -> Drain:
    return Drain(256 << 20)


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_stats(benchmark: Benchmark, dtype: str) -> None:
    data = normal(LARGE, DTYPES[dtype])
    benchmark.group = f"stats {dtype}"  # type: ignore[attr-defined]
    benchmark(_core.stats, [data])


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_limit_one_read(benchmark: Benchmark, dtype: str) -> None:
    data = normal(LARGE, DTYPES[dtype]).view(np.int32)
    benchmark.group = f"stats {dtype}"  # type: ignore[attr-defined]
    benchmark(data.max)


@pytest.mark.parametrize("nbytes", [4 << 10, 1 << 20, LARGE], ids=["4KB", "1MB", "64MB"])
def test_crc32c(benchmark: Benchmark, nbytes: int) -> None:
    data = normal(nbytes)
    benchmark.group = f"crc32c {nbytes}"  # type: ignore[attr-defined]
    benchmark(_core.crc32c, data)


@pytest.mark.parametrize("nbytes", [4 << 10, 1 << 20, LARGE], ids=["4KB", "1MB", "64MB"])
def test_limit_one_read_for_crc(benchmark: Benchmark, nbytes: int) -> None:
    data = normal(nbytes).view(np.int32)
    benchmark.group = f"crc32c {nbytes}"  # type: ignore[attr-defined]
    benchmark(data.max)


@pytest.mark.parametrize(
    ("flags", "what"), [(1, "payload"), (3, "payload and statistics"), (2, "statistics")]
)
def test_capture_large(benchmark: Benchmark, drain: Drain, flags: int, what: str) -> None:
    tensors = [normal(4 << 20) for _ in range(16)]
    benchmark.group = "capture of 64 MB"  # type: ignore[attr-defined]
    benchmark.extra_info["what"] = what  # type: ignore[attr-defined]
    benchmark.pedantic(drain.capture, (tensors, flags), setup=drain.empty, rounds=40)  # type: ignore[attr-defined]


def test_limit_memcpy(benchmark: Benchmark) -> None:
    tensors = [normal(4 << 20) for _ in range(16)]
    targets = [np.zeros_like(tensor) for tensor in tensors]
    benchmark.group = "capture of 64 MB"  # type: ignore[attr-defined]

    def copy() -> None:
        for target, tensor in zip(targets, tensors, strict=True):
            np.copyto(target, tensor)

    benchmark.pedantic(copy, rounds=40)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("flags", "what"), [(1, "payload"), (3, "payload and statistics"), (2, "statistics")]
)
def test_capture_300_small(benchmark: Benchmark, drain: Drain, flags: int, what: str) -> None:
    tensors = [normal(256) for _ in range(300)]
    benchmark.group = "capture of 300 tensors of 256 B"  # type: ignore[attr-defined]
    benchmark.extra_info["what"] = what  # type: ignore[attr-defined]
    benchmark.pedantic(drain.capture, (tensors, flags), setup=drain.empty, rounds=300)  # type: ignore[attr-defined]


def test_ring_one_record(benchmark: Benchmark, drain: Drain) -> None:
    tensors = [normal(64)]
    benchmark.group = "one record of one 64 B tensor"  # type: ignore[attr-defined]
    benchmark.pedantic(drain.capture, (tensors, 1), setup=drain.empty, rounds=2000)  # type: ignore[attr-defined]
