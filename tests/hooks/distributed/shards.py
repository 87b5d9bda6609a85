"""Reads the runs of all workers and assembles shards, with NumPy and pyarrow, without tdcore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

__all__ = ["Run"]

_DTYPES = {"F32": np.float32, "F64": np.float64, "I64": np.int64}  # those that occur in the cases


class Run:
    """The rows of all workers of a run, and their values."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = [
            row for file in sorted(path.glob("index/*/*.parquet")) for row in pq.read_table(file).to_pylist()
        ]
        self.attempt: dict[str, Any] = json.loads((path / "run.json").read_text())["attempts"][-1]

    def of(self, name: str, step: int) -> list[dict[str, Any]]:
        """Return the rows of a tensor at a step, by worker and call."""
        found = [row for row in self.rows if row["name"] == name and row["step"] == step]
        return sorted(found, key=lambda row: (row["worker"], row["call"]))

    def workers(self) -> set[str]:
        """Return the workers that have captured a tensor."""
        return {row["worker"] for row in self.rows}

    def value(self, row: dict[str, Any]) -> npt.NDArray[Any]:
        """Return the worker's own values of one row."""
        data = (self.path / "data" / row["worker"] / row["segment"]).read_bytes()
        count = int(np.prod(row["shape"]))
        found: npt.NDArray[Any] = np.frombuffer(data, _DTYPES[row["dtype"]], count, row["offset"])
        return np.reshape(found, row["shape"])

    def merged(self, name: str, step: int) -> npt.NDArray[Any]:
        """Return the whole tensor; copies must be equal in every bit, and every element must be there.

        A row without a place must also be a copy: a plain parameter next to sharded parameters.
        """
        rows = self.of(name, step)
        shards = [row["shard"] or _whole(row["shape"]) for row in rows]
        whole = np.full(shards[0]["global_shape"], np.nan)
        for row, shard in zip(rows, shards, strict=True):
            assert shard["global_shape"] == list(whole.shape)
            assert shard["partial"] is None
            box = tuple(
                slice(start, start + extent)
                for start, extent in zip(shard["offset"], row["shape"], strict=True)
            )
            value = self.value(row)
            assert np.isnan(whole[box]).all() or np.array_equal(whole[box], value)
            whole[box] = value
        assert not np.isnan(whole).any()
        return whole


def _whole(shape: list[int]) -> dict[str, Any]:
    return {"global_shape": shape, "offset": [0] * len(shape), "partial": None}
