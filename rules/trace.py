"""Trace: a small run in memory, built row by row, for the cases of rules, their documentation and tests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.format import layout
from tdcore.format.step_times import COUNTS, PHASES, step_time_schema
from tdcore.format.system import system_schema
from tdcore.rules.table_source import TableSource
from tdcore.rules.window import Members

__all__ = ["Trace"]

# Smallest normal numbers of the types that have subnormal numbers.
_SMALLEST_NORMAL = {
    "F64": 2.0**-1022, "F32": 2.0**-126, "BF16": 2.0**-126, "F16": 2.0**-14, "F8_E4M3": 2.0**-6,
    "F8_E5M2": 2.0**-14,
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Trace:
    """Rows in the form of the index, with statistics that are computed from the given values.

    Call `add` for captured tensors one after the other, in order of execution.

    Attributes:
        collections: Name -> names of its tensors.
        rows: The rows.
        payloads: Row number -> values.
        notes: Notes of the hook, see Trial.notes().
        samples: System samples, see `add_sample`.
        step_times: Times of steps, by attempt and worker, see `add_step_time`.
    """

    collections: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    payloads: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    step_times: dict[tuple[int, str], list[dict[str, Any]]] = field(default_factory=dict)
    _taken: Counter[tuple[int, str]] = field(default_factory=Counter)  # number of rows, by step and worker
    _sampled: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # number of samples, by origin

    def add(
        self,
        step: int,
        name: str,
        kind: str,
        values: Any,
        *,
        mode: str = "TRAIN",
        mode_step: int | None = None,
        worker: str = "worker_0",
        attempt: int = 0,
        origin: str | None = None,
        call: int = 0,
        payload: bool = False,
        statistics: bool = True,
        status: str = "ok",
        reason: str | None = None,
        dtype: str = "F32",
        shard: dict[str, Any] | None = None,
    ) -> Trace:
        """Add one row, and return the trace.

        Most arguments are columns of the index; see docs/format.md.

        Args:
            step: Global step.
            name: Name of the tensor.
            kind: Kind of tensor, such as "gradient".
            values: The values; None for a tensor without a value (absent or skipped).
            mode_step: Step of the mode; None: equal to `step`.
            payload: Whether the values are saved.
            statistics: Whether the statistics are saved.
            dtype: Name of the type in the index.
            shard: Position of the part in a sharded tensor, in the form of the index.
        """
        row: dict[str, Any] = {
            "attempt": attempt,
            "worker": worker,
            "ticket": len(self.rows),
            "mode": mode,
            "mode_step": step if mode_step is None else mode_step,
            "step": step,
            "seq": self._taken[step, worker],
            "name": name,
            "kind": kind,
            "origin": origin,
            "call": call,
            "part": 0,
            "parts": 1,
            "element_offset": 0,
            "elements": 0,
            "time_ns": 1_000_000_000 * (step + 1),
            "shard": shard,
            "status": status,
            "reason": reason,
        }
        if values is not None:
            array = np.asarray(values)
            row |= {"dtype": dtype, "shape": list(array.shape), "elements": array.size}
            if statistics:
                row |= _statistics(array, _SMALLEST_NORMAL.get(dtype, 0.0))
            if payload:
                self.payloads[len(self.rows)] = array
                row |= {
                    "segment": "0000-000000000000-000000000000.safetensors",
                    "offset": 0,
                    "nbytes": 0,
                    "crc32c": 0,
                }
        self.rows.append(row)
        self._taken[step, worker] += 1
        return self

    def add_sample(
        self,
        *,
        worker: str = "worker_0",
        attempt: int = 0,
        host: str = "node-1",
        interval_ms: int = 500,
        **values: Any,
    ) -> Trace:
        """Add one system sample, and return the trace.

        Args:
            worker, attempt, host: Origin of the sample. Samples of an origin are numbered from 0.
            interval_ms: Milliseconds between two samples of an origin.
            values: Further columns, see docs/system.md.
        """
        number = self._sampled[attempt, worker, host]
        self._sampled[attempt, worker, host] += 1
        time_ns = 1_000_000 * interval_ms * number + 1_700_000_000_000_000_000
        origin = {"attempt": attempt, "worker": worker, "host": host, "sample": number, "time_ns": time_ns}
        self.samples.append({**origin, "lost": 0, **values})
        return self

    def sample_table(self) -> pa.Table:
        """The system samples."""
        return pa.Table.from_pylist(self.samples, schema=system_schema())

    def add_step_time(
        self,
        step: int,
        *,
        worker: str = "worker_0",
        attempt: int = 0,
        mode: str = "TRAIN",
        mode_step: int | None = None,
        time_ns: int | None = None,
        gpu_ns: int | None = None,
        **milliseconds: float,
    ) -> Trace:
        """Add the times of one step, and return the trace.

        Args:
            step: Global step.
            worker, attempt, mode: Origin of the step.
            mode_step: Step within the mode; None: `step`.
            time_ns: Start of the step; None: the end of the worker's previous step.
            gpu_ns: Time of the GPU.
            milliseconds: Milliseconds of each phase (`data`, `forward`, ..., see docs/system.md) and of
                `capture`; counts of `data_waits`, `checkpoints` and `compiles`. All others are 0.
        """
        rows = self.step_times.setdefault((attempt, worker), [])
        if time_ns is None:
            time_ns = rows[-1]["time_ns"] + rows[-1]["duration_ns"] if rows else 1_700_000_000_000_000_000
        phases = {f"{phase}_ns": round(1e6 * milliseconds.pop(phase, 0)) for phase in PHASES}
        counts = {count: int(milliseconds.pop(count, 0)) for count in COUNTS}
        capture_ns = round(1e6 * milliseconds.pop("capture", 0))
        if milliseconds:
            raise TypeError(f"unknown phases {sorted(milliseconds)}; use {', '.join(PHASES)}")
        origin = {"attempt": attempt, "worker": worker, "row": len(rows), "mode": mode, "step": step}
        origin |= {"mode_step": step if mode_step is None else mode_step, "time_ns": time_ns}
        times = {"duration_ns": sum(phases.values()), "capture_ns": capture_ns, "gpu_ns": gpu_ns}
        rows.append({**origin, **times, **phases, **counts})
        return self

    def step_time_table(self) -> pa.Table:
        """The times of steps, in order of time."""
        rows = sorted((row for rows in self.step_times.values() for row in rows), key=itemgetter("time_ns"))
        return pa.Table.from_pylist(rows, schema=step_time_schema())

    def table(self) -> pa.Table:
        """All columns of the index."""
        return pa.Table.from_pylist(self.rows, schema=layout.index_schema())

    def source(self) -> TableSource:
        """The trace as a source for an engine."""
        members = {name: Members(tensor_names=frozenset(names)) for name, names in self.collections.items()}
        return TableSource(
            self.table(),
            payloads=self.payloads,
            collections=members,
            notes=self.notes,
            samples=self.sample_table() if self.samples else None,
            step_times=self.step_time_table() if self.step_times else None,
        )


def _statistics(values: npt.NDArray[Any], tiny: float) -> dict[str, Any]:
    flat = values.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    magnitude = np.abs(finite)
    some = finite.size > 0
    with np.errstate(over="ignore"):
        m2 = float(((finite - finite.mean()) ** 2).sum()) if some else 0.0
        abs_sum, square_sum = float(magnitude.sum()), float((finite**2).sum())
    return {
        "count": flat.size,
        "nan_count": int(np.isnan(flat).sum()),
        "pos_inf_count": int(np.isposinf(flat).sum()),
        "neg_inf_count": int(np.isneginf(flat).sum()),
        "zero_count": int((finite == 0).sum()),
        "subnormal_count": int(((magnitude > 0) & (magnitude < tiny)).sum()),
        "min": float(finite.min()) if some else np.nan,
        "max": float(finite.max()) if some else np.nan,
        "mean": float(finite.mean()) if some else np.nan,
        "m2": m2,
        "abs_sum": abs_sum,
        "square_sum": square_sum,
        "abs_min": float(magnitude.min()) if some else np.nan,
        "abs_max": float(magnitude.max()) if some else np.nan,
        **_histogram(magnitude[magnitude > 0]),
    }


def _histogram(magnitude: npt.NDArray[np.float64]) -> dict[str, Any]:
    if not magnitude.size:
        return {"log2_first": None, "log2_counts": []}
    bins = np.bincount(np.clip(np.frexp(magnitude)[1] - 1 - layout.LOG2_MIN, 0, 63))
    first = int(np.flatnonzero(bins)[0])
    return {"log2_first": first + layout.LOG2_MIN, "log2_counts": bins[first:].tolist()}
