"""Writes a run of any number of rows as the flusher would, without a training.

The rows have the columns, encodings and metadata of the flusher's files. A step has one row of each tensor.
The numbers are random and differ from step to step; blocks of random numbers are used several times, because
random numbers take longer than the encoding of a file.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.flusher.index_summary import IndexSummary
from tdcore.flusher.index_writer import IndexWriter
from tdcore.format.layout import INDEX_SCHEMA, FileRange

__all__ = ["Shape", "make_run"]

_EPOCH_NS = 1_700_000_000_000_000_000
_ELEMENTS = 4096
_RUN_ID = "5ca1e"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of a run. rows is rounded down to whole steps of all workers and attempts.

    every: global steps between two saved steps. file_rows: rows per index file.
    """

    rows: int
    names: int = 1000
    workers: int = 1
    attempts: int = 1
    every: int = 100
    file_rows: int = 32_000

    @property
    def steps(self) -> int:
        """Saved steps of each worker in each attempt."""
        return max(1, self.rows // (self.names * self.workers * self.attempts))


def make_run(folder: Path, shape: Shape) -> dict[str, Any]:
    """Write the run. Returns the number of rows and files, and the bytes of the index."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    workers = [f"worker_{rank}" for rank in range(shape.workers)]
    entries = [_attempt(attempt, workers) for attempt in range(shape.attempts)]
    _put(folder / "run.json", {"format": 1, "run_id": _RUN_ID, "attempts": entries})
    names = _names(shape.names)
    for attempt, entry in enumerate(entries):
        collections = {"all": {"include_regex": [], "tensor_names": names, "included": True}}
        _put(
            folder / "collections.json",
            {"format": 1, "attempts": {str(attempt): {"collections": collections}}},
        )
        for rank, worker in enumerate(workers):
            _put(folder / "attempts" / f"{attempt:04d}-{worker}.json", entry)
            _write_worker(folder, shape, worker, attempt, names, rank)
    files = list((folder / "index").rglob("*.parquet"))
    return {
        "rows": shape.steps * shape.names * shape.workers * shape.attempts,
        "files": len(files),
        "index_bytes": sum(path.stat().st_size for path in files),
    }


def _attempt(attempt: int, workers: list[str]) -> dict[str, Any]:
    return {
        "attempt": attempt, "started_ns": _EPOCH_NS + attempt, "world_size": len(workers),
        "framework": "none", "framework_version": "0", "tdcore_version": "0", "host": "none", "pid": 0,
        "configuration": {}, "workers": workers,
    }  # fmt: skip


def _put(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))


def _names(number: int) -> list[str]:
    """Names as of a model: weights, gradients and outputs of layers, and one loss."""
    kinds = ("weight", "gradient", "output")
    return ["loss", *(f"{kinds[at % 3]}/layer{at // 3}.weight" for at in range(number - 1))]


def _write_worker(folder: Path, shape: Shape, worker: str, attempt: int, names: list[str], rank: int) -> None:
    per_file = max(1, min(shape.file_rows // shape.names, shape.steps // 2))  # at least two, to merge
    block = _Block(names, min(per_file, shape.steps), seed=rank)
    first_step = attempt * shape.steps // 2  # an attempt resumes in the middle of the one before
    ticket = 0
    for start in range(0, shape.steps, per_file):
        steps = min(per_file, shape.steps - start)
        table = block.table(worker, attempt, first_step + start, steps, shape.every, ticket)
        last = int(table.column("step")[-1].as_py())
        records = steps
        summary = IndexSummary(
            rows=len(table), records=records, last_step=last, last_mode_steps={"TRAIN": last},
            whole_step=last, run_id=_RUN_ID,
        )  # fmt: skip
        place = FileRange(worker, attempt, ticket, ticket + records - 1)
        writer = IndexWriter(summary)
        writer.write(table)
        path = folder / place.index_key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(writer.finish())
        ticket += records
    end = {
        "format": 1, "run_id": _RUN_ID, "worker": worker, "attempt": attempt, "clean": True,
        "reason": "closed",
        "ended_ns": _EPOCH_NS + 10**15, "last_step": last, "last_mode_steps": {"TRAIN": last}, "totals": {},
        "drops": {}, "gaps": [], "torn_records": 0, "flusher_restarts": 0,
    }  # fmt: skip
    _put(folder / "end" / worker / f"{attempt:04d}.json", end)


class _Block:
    """Random rows of some steps; `table` sets the columns that identify them."""

    def __init__(self, names: list[str], steps: int, seed: int) -> None:
        self._names = names
        rows = steps * len(names)
        self._random = np.random.default_rng(seed)
        self._codes = np.tile(np.arange(len(names), dtype=np.int32), steps)
        kinds = ["loss", "weight", "gradient", "output"]
        kind = np.array([0, *(1 + at % 3 for at in range(len(names) - 1))], dtype=np.int32)
        spread = np.exp2(self._random.integers(-9, 0, rows).astype(np.float64))
        spread *= 1 + 0.1 * self._random.random(rows)
        mean = self._random.standard_normal(rows) * spread / 10
        n = float(_ELEMENTS)
        ints = {
            "count": np.full(rows, _ELEMENTS), "nan_count": np.zeros(rows), "pos_inf_count": np.zeros(rows),
            "neg_inf_count": np.zeros(rows), "zero_count": self._random.integers(0, 9, rows),
            "subnormal_count": np.zeros(rows),
        }  # fmt: skip
        floats = {
            "min": mean - 4 * spread, "max": mean + 4 * spread, "mean": mean, "m2": n * spread**2,
            "abs_sum": n * (0.8 * spread), "square_sum": n * (spread**2 + mean**2),
            "abs_min": spread * 1e-4, "abs_max": np.abs(mean) + 4 * spread,
        }  # fmt: skip
        self._fixed: dict[str, Any] = {name: pa.array(v.astype(np.int64)) for name, v in ints.items()}
        self._fixed |= {name: pa.array(values) for name, values in floats.items()}
        self._fixed["kind"] = _words(np.tile(kind, steps), kinds)
        bins = self._random.multinomial(_ELEMENTS, np.full(8, 1 / 8), rows).astype(np.int64)
        self._fixed["log2_counts"] = pa.ListArray.from_arrays(
            pa.array(np.arange(0, 8 * rows + 1, 8, dtype=np.int32)), pa.array(bins.ravel())
        )
        self._fixed["log2_first"] = pa.array(np.full(rows, -12, dtype=np.int8))

    def table(self, worker: str, attempt: int, first: int, steps: int, every: int, ticket: int) -> pa.Table:
        """Rows of `steps` saved steps from number `first` on. Each step is one record."""
        tensors = len(self._names)
        rows = steps * tensors
        at = np.repeat(np.arange(steps, dtype=np.int64), tensors)
        step = (first + at) * every
        seq = np.tile(np.arange(tensors, dtype=np.int32), steps)
        zeros = np.zeros(rows, dtype=np.int32)
        columns: dict[str, Any] = {
            "attempt": np.full(rows, attempt, dtype=np.int32), "worker": _words(zeros, [worker]),
            "ticket": ticket + at, "mode": _words(zeros, ["TRAIN"]), "mode_step": step, "step": step,
            "seq": seq,
            "name": _words(self._codes[:rows], self._names), "origin": _words(zeros - 1, []), "call": zeros,
            "dtype": _words(zeros, ["F32"]), "part": zeros, "parts": zeros + 1,
            "element_offset": np.zeros(rows, dtype=np.int64), "elements": np.full(rows, _ELEMENTS),
            "time_ns": _EPOCH_NS + step * 10**6 + seq, "status": _words(zeros, ["ok"]),
            "reason": _words(zeros - 1, []), "segment": _words(zeros - 1, []),
            "shape": pa.ListArray.from_arrays(
                pa.array(np.arange(0, 2 * rows + 1, 2, dtype=np.int32)), pa.array(np.full(2 * rows, 64))
            ),
        }  # fmt: skip
        columns |= {name: array.slice(0, rows) for name, array in self._fixed.items()}
        for name in ("shard", "offset", "nbytes", "crc32c"):
            columns[name] = pa.nulls(rows, INDEX_SCHEMA.field(name).type)
        arrays = [
            each if isinstance(each, pa.Array) else pa.array(each, INDEX_SCHEMA.field(name).type)
            for name, each in ((name, columns[name]) for name in INDEX_SCHEMA.names)
        ]
        return pa.Table.from_arrays(arrays, schema=INDEX_SCHEMA)


def _words(codes: npt.NDArray[np.int32], words: list[str]) -> pa.Array:
    indices = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))
