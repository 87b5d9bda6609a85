"""Shared parts of the tests of capture: a ring with both sides, reference statistics, unusual producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tdcore import _core

STATS = np.dtype([tuple(field) for field in _core.STATS_DTYPE])
ROW: np.dtype[Any] = np.dtype(cast("Any", _core.ROW_DTYPE))
CODES = {name: code for code, name in _core.DTYPES.items()}
NO_PAYLOAD = 2**64 - 1
NO_NAME = 2**32 - 1
PAYLOAD, STATISTICS, BOTH = 1, 2, 3
OK, ABSENT, SKIPPED = 0, 1, 2
NUMPY_OF = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "C64": np.complex64,
    "C128": np.complex128,
}
Array = npt.NDArray[Any]


@dataclass
class Captured:
    """Rows of one drain, with the payload bytes of each (None for rows without a payload)."""

    rows: Array
    payloads: list[bytes | None]

    def value(self, index: int) -> Array:
        row, payload = self.rows[index], self.payloads[index]
        assert payload is not None
        shape = tuple(int(extent) for extent in row["shape"][: row["ndim"]])
        return np.frombuffer(payload, NUMPY_OF[_core.DTYPES[int(row["dtype"])]]).reshape(shape)


class Tap:
    """A ring and its consumer in one process."""

    def __init__(self, *, data_bytes: int = 1 << 24, policy: str = "drop") -> None:
        self.ring = _core.Ring(data_bytes=data_bytes, slots=256, policy=policy, block_timeout_seconds=0.01)
        self.consumer = _core.Consumer(self.ring.fd)

    def capture(self, tensors: Sequence[object], flags: int = BOTH, *, step: int = 1, call: int = 0) -> int:
        ids = [self.ring.intern(f"t{i}", 1) for i in range(len(tensors))]
        marks = bytes([flags]) * len(tensors)
        return int(self.ring.capture(tensors, np.array(ids, np.uint32), marks, step, 1, step, call))

    def take(self) -> Captured:
        drained = self.consumer.drain(1 << 30, 1 << 20)
        assert drained.torn == 0
        drained.plan_segment([name for name, *_ in self.consumer.names(0)])
        file = b"".join(bytes(part) for part in drained.segment_parts())
        rows = np.frombuffer(drained.rows, ROW).copy()
        payloads = [
            None
            if row["payload_offset"] == NO_PAYLOAD
            else file[int(row["segment_offset"]) : int(row["segment_offset"] + row["payload_bytes"])]
            for row in rows
        ]
        self.consumer.release(drained)
        return Captured(rows, payloads)

    def one(self, tensor: object, flags: int = BOTH) -> Captured:
        self.capture([tensor], flags)
        captured = self.take()
        assert len(captured.rows) == 1
        return captured

    def drops(self) -> dict[str, int]:
        drops = self.ring.counters()["drops"]
        return {reason: drop["tensors"] for reason, drop in drops.items() if drop["tensors"]}


def check_statistics(row: Any, values: Array) -> None:
    """Check the statistics of a row against float64 NumPy over the finite values."""
    wide = values.astype(np.float64).ravel()
    finite = wide[np.isfinite(wide)]
    assert row["count"] == wide.size
    assert row["nan_count"] == np.isnan(wide).sum()
    assert row["pos_inf_count"] == np.isposinf(wide).sum()
    assert row["neg_inf_count"] == np.isneginf(wide).sum()
    assert row["zero_count"] == (finite == 0).sum()
    assert row["log2_counts"].sum() == (finite != 0).sum()
    if finite.size == 0:
        assert np.isnan(row["min"])
        assert np.isnan(row["max"])
        return
    assert row["min"] == finite.min()
    assert row["max"] == finite.max()
    assert row["abs_max"] == np.abs(finite).max()
    scale = np.abs(finite).sum()
    assert abs(row["mean"] - finite.mean()) * finite.size <= 1e-6 * scale
    np.testing.assert_allclose(row["abs_sum"], scale, rtol=1e-6)
    np.testing.assert_allclose(row["square_sum"], np.square(finite).sum(), rtol=1e-6)
    spread = np.square(finite - finite.mean()).sum()
    np.testing.assert_allclose(row["m2"], spread, rtol=1e-5, atol=1e-9 * np.square(finite).sum())


class Exporter:
    """An object with only __dlpack__, which counts its exports."""

    def __init__(self, values: Array, *, versioned: bool = True, device: tuple[int, int] = (1, 0)) -> None:
        self.values = values
        self.versioned = versioned
        self.device = device
        self.exports = 0

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.exports += 1
        return self.values.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Failing:
    """An object whose export raises."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __dlpack__(self, **options: Any) -> Any:
        raise self.error
