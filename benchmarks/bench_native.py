"""Ring, statistics, CRC-32C and capture under pytest-benchmark; `python -m benchmarks native` prints ratios.

Before every round of a measurement, its limit is timed on the same bytes: one read, one write, or one copy
into memory that was touched before. So a slow phase of the machine affects both.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tdcore import _core

Benchmark = Any  # fixture of pytest-benchmark, which has no type annotations
LARGE = 64 << 20  # bytes; much larger than the last-level cache of most machines
VALUES, STATISTICS = 1, 2
FLAGS = [
    pytest.param(VALUES, id="values"),
    pytest.param(VALUES | STATISTICS, id="values and statistics"),
    pytest.param(STATISTICS, id="statistics"),
]


def normal(nbytes: int, dtype: Any = np.float32) -> Any:
    count = nbytes // np.dtype(dtype).itemsize
    return np.random.default_rng(0).standard_normal(count, dtype=np.float32).astype(dtype)


def relu(nbytes: int) -> Any:
    return np.maximum(normal(nbytes), 0)


def masked(nbytes: int, dtype: Any = np.float32) -> Any:
    """Every third value -Inf, as in an attention mask."""
    values = normal(nbytes, dtype)
    values[::3] = -np.inf
    return values


def small_integers(nbytes: int, dtype: Any) -> Any:
    return (normal(4 * nbytes) * 30).astype(np.int8).view(dtype)


STATISTICS_OF: dict[str, Callable[[], Any]] = {
    "f32": lambda: normal(LARGE),
    "f32 relu": lambda: relu(LARGE),
    "f32 with Inf": lambda: masked(LARGE),
    "f64": lambda: normal(LARGE, np.float64),
    "bf16": lambda: normal(LARGE, ml_dtypes.bfloat16),
    "bf16 with Inf": lambda: masked(LARGE, ml_dtypes.bfloat16),
    "f16": lambda: normal(LARGE, np.float16),
    "f16 with Inf": lambda: masked(LARGE, np.float16),
    "i64": lambda: np.random.default_rng(0).integers(0, 50_000, LARGE // 8),
    "u8": lambda: small_integers(LARGE, np.uint8),
    "i8": lambda: small_integers(LARGE, np.int8),
    "bool": lambda: small_integers(LARGE, np.int8) > 0,
    "f8e4m3": lambda: small_integers(LARGE, ml_dtypes.float8_e4m3fn),
}


def resnet18() -> list[Any]:
    """62 parameters, their gradients (44.7 MB each) and 99 activations of one image (224 x 224; 44 MB)."""
    convolutions = [9408, *4 * [36864], 73728, *3 * [147456], 294912, *3 * [589824], 1179648, *3 * [2359296]]
    shortcuts = [8192, 32768, 131072]
    norms = [*10 * [64], *10 * [128], *10 * [256], *10 * [512]]
    parameters = [*convolutions, *shortcuts, *norms, 512_000, 1000]
    activations = [
        *3 * [802816], *14 * [200704], *27 * [100352], *27 * [50176], *27 * [25088], 1000
    ]  # fmt: skip
    lists = [normal(4 * count) for count in [*parameters, *parameters]]
    return [*lists, *((relu if i % 3 == 2 else normal)(4 * count) for i, count in enumerate(activations))]


class Memory:
    """The speed of memory, measured by one read, one write or one copy of the bytes of some tensors."""

    def __init__(self, tensors: list[Any]) -> None:
        self.sources = [tensor.view(np.uint8).reshape(-1) for tensor in tensors]
        self.nbytes = sum(source.nbytes for source in self.sources)
        self._words = [source[: source.size & ~7].view(np.int64) for source in self.sources]
        self._targets: list[Any] = []

    def read(self) -> None:
        for words in self._words:
            if words.size:
                words.max()

    def write(self) -> None:
        for target in self._touched():
            target.fill(0)

    def copy(self) -> None:
        for target, source in zip(self._touched(), self.sources, strict=True):
            np.copyto(target, source)

    def _touched(self) -> list[Any]:
        if not self._targets:
            self._targets = [np.zeros_like(source) for source in self.sources]
            self.copy()
        return self._targets


def measure(
    benchmark: Benchmark, group: str, run: Callable[[], object], memory: Memory, limit: str, rounds: int
) -> None:
    """Time `run`, and the limit before each round. limit: name of a method of `memory`."""
    limits: list[float] = []

    def time_the_limit() -> None:
        start = time.perf_counter()
        getattr(memory, limit)()
        limits.append(time.perf_counter() - start)

    getattr(memory, limit)()
    benchmark.group = group
    benchmark.pedantic(run, setup=time_the_limit, rounds=rounds, warmup_rounds=2)
    benchmark.extra_info.update(
        bytes=memory.nbytes, limit=limit, limit_s=statistics.median(limits[2:]), limit_min_s=min(limits)
    )


class Drain:
    """A ring with a consumer that empties it between rounds, outside the timed part."""

    def __init__(self, data_bytes: int, threads: int = 1) -> None:
        self.ring = _core.Ring(data_bytes=data_bytes, slots=1 << 14, policy="drop", threads=threads)
        self.consumer = _core.Consumer(self.ring.fd)
        self.warm()

    def warm(self) -> None:
        """Touch the whole ring once, as prefaulting does in a session."""
        piece = np.zeros(4 << 20, np.uint8)
        for _ in range(2 * self.ring.data_bytes // piece.nbytes):
            self.capture([piece], VALUES)
            self.empty()

    def capture(self, tensors: list[Any], flags: int) -> None:
        lost = self.ring.capture(
            tensors, array("I", range(len(tensors))), bytes([flags]) * len(tensors), 0, 1, 0
        )
        assert lost == 0

    def empty(self) -> None:
        self.consumer.release(self.consumer.drain(1 << 40, 1 << 20))


class EmptyFirst(Memory):
    """Memory that empties the ring before its limits are timed."""

    def __init__(self, tensors: list[Any], drain: Drain) -> None:
        super().__init__(tensors)
        self._drain = drain

    def read(self) -> None:
        self._drain.empty()
        super().read()

    def copy(self) -> None:
        self._drain.empty()
        super().copy()


@pytest.fixture(scope="module")
def drain() -> Drain:
    return Drain(256 << 20)


@pytest.fixture(scope="module")
def shared() -> Drain:
    return Drain(256 << 20, threads=2)


@pytest.fixture(scope="module")
def resnet() -> list[Any]:
    return resnet18()


@pytest.mark.parametrize("limit", ["read", "write", "copy"])
def test_memory(benchmark: Benchmark, limit: str) -> None:
    memory = Memory([normal(LARGE)])
    measure(benchmark, "memory, 64 MB", getattr(memory, limit), memory, limit, 20)


@pytest.mark.parametrize("kind", list(STATISTICS_OF))
def test_stats(benchmark: Benchmark, kind: str) -> None:
    data = STATISTICS_OF[kind]()
    measure(benchmark, "statistics, 64 MB", lambda: _core.stats([data]), Memory([data]), "read", 12)


@pytest.mark.parametrize("nbytes", [4 << 10, 1 << 20, LARGE], ids=["4 KB", "1 MB", "64 MB"])
def test_crc32c(benchmark: Benchmark, nbytes: int) -> None:
    data = normal(nbytes)
    measure(benchmark, "CRC-32C", lambda: _core.crc32c(data), Memory([data]), "read", 30)


@pytest.mark.parametrize("flags", FLAGS)
def test_capture_large(benchmark: Benchmark, drain: Drain, flags: int) -> None:
    tensors = [normal(4 << 20) for _ in range(16)]
    capture(benchmark, "capture of 16 tensors of 4 MB", drain, tensors, flags, 25)


@pytest.mark.parametrize("flags", FLAGS)
def test_capture_resnet(benchmark: Benchmark, drain: Drain, resnet: list[Any], flags: int) -> None:
    capture(benchmark, "capture of ResNet-18, 223 tensors", drain, resnet, flags, 15)


@pytest.mark.parametrize("flags", FLAGS)
def test_capture_resnet_2_threads(benchmark: Benchmark, shared: Drain, resnet: list[Any], flags: int) -> None:
    capture(benchmark, "capture of ResNet-18, threads=2", shared, resnet, flags, 15)


@pytest.mark.parametrize("flags", FLAGS)
def test_capture_small(benchmark: Benchmark, drain: Drain, flags: int) -> None:
    tensors = [normal(256) for _ in range(300)]
    capture(benchmark, "capture of 300 tensors of 256 B", drain, tensors, flags, 300)


@pytest.mark.parametrize(("nbytes", "rounds"), [(64, 2000), (16 << 20, 40)], ids=["64 B", "16 MB"])
def test_ring(benchmark: Benchmark, drain: Drain, nbytes: int, rounds: int) -> None:
    capture(benchmark, "ring: one record of one tensor", drain, [normal(nbytes)], VALUES, rounds)


def capture(
    benchmark: Benchmark, group: str, drain: Drain, tensors: list[Any], flags: int, rounds: int
) -> None:
    """Compare with one copy of the bytes if values are saved, otherwise with one read."""
    limit = "copy" if flags & VALUES else "read"
    memory = EmptyFirst(tensors, drain)
    measure(benchmark, group, lambda: drain.capture(tensors, flags), memory, limit, rounds)
