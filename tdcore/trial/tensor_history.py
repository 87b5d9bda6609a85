"""TensorHistory: the rows of one tensor at all steps, with its values and statistics on one worker.

The class also creates the errors for steps at which the tensor has no value. Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import (
    InvalidWorker,
    SinkKeyError,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailableForStep,
)
from tdcore.modes import ModeKeys
from tdcore.trial.captures import resolve
from tdcore.trial.index import Rows
from tdcore.trial.merge_stats import merged_table
from tdcore.trial.reductions import from_statistics
from tdcore.trial.run_notes import absent_text
from tdcore.trial.statistics import stats_table
from tdcore.trial.step_state import StepState, with_step
from tdcore.trial.values import read_values
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["TensorHistory"]


class TensorHistory:
    """All saved rows of the tensor `name`, as of the last refresh of the reader."""

    __slots__ = ("name", "reader")

    def __init__(self, reader: Reader, name: str) -> None:
        self.reader = reader
        self.name = name

    def rows(self) -> Rows:
        """All rows of the tensor that the view shows."""
        reader = self.reader
        return reader.view.rows_of(reader.index.dictionaries["name"].code(self.name))

    def rows_at(self, step: int, mode: ModeKeys) -> Rows:
        """The rows of the tensor at a step, in the order in which they were read."""
        reader = self.reader
        code = reader.index.dictionaries["name"].code(self.name)
        rows = reader.view.rows_at(step, mode.name)
        found: Rows = rows[reader.index.column("name")[rows] == code]
        return found if code >= 0 else found[:0]

    def capture(self, step: int, mode: ModeKeys, worker: str | None, call: int | None) -> Rows:
        """The rows of one capture, in order of its parts."""
        reader = self.reader
        index = reader.index
        rows = self.rows_at(step, mode)
        if worker is not None:
            self.check_worker(worker)
            rows = rows[index.column("worker")[rows] == index.dictionaries["worker"].code(worker)]
        if len(rows) == 0:
            raise self.nothing(step, mode, worker)
        if worker is None:
            texts = index.texts("worker")
            saved = self.reader.saved(rows)
            codes = np.unique(index.column("worker")[saved if len(saved) else rows]).tolist()
            first = min(codes, key=lambda code: worker_order(texts[code]))
            rows = rows[index.column("worker")[rows] == first]
        calls = index.column("call")[rows]
        wanted = int(calls.min()) if call is None else call
        if not (calls == wanted).any():
            raise self.no_call(step, wanted, calls)
        captures = resolve(index, rows[calls == wanted])
        return captures.parts(len(captures) - 1)

    @contextmanager
    def annotate_errors(self, step: int, mode: ModeKeys) -> Iterator[None]:
        """Within the block, errors about the step get the tensor, the step and the mode as attributes."""
        try:
            yield
        except TensorUnavailableForStep as error:
            error.tname = self.name
            with_step(error, step, mode)
            raise
        except (StepUnavailable, StepNotYetAvailable) as error:
            with_step(error, step, mode)
            raise

    def no_call(self, step: int, call: int, calls: npt.NDArray[Any]) -> TensorUnavailableForStep:
        """The error for a call that the step does not have."""
        there = ", ".join(map(str, np.unique(calls).tolist()[:20]))
        return TensorUnavailableForStep(f"{self.at(step)} has no call {call}; it has {there}")

    def is_scalar(self) -> bool:
        """Whether the tensor is a number that the script saved with save_scalar()."""
        rows = self.rows()
        return len(rows) > 0 and self.reader.index.text("kind", int(rows[0])) == "scalar"

    def is_part(self, rows: Rows) -> bool:
        """Whether a capture is a shard of a larger tensor."""
        return bool(self.reader.index.wide("shard", rows[:1]).null_count == 0)

    def check_worker(self, worker: str) -> None:
        """Raise InvalidWorker if the worker has saved no tensor."""
        known = self.reader.workers()
        if worker not in known:
            error = InvalidWorker(f"{worker!r} is not a worker of this run; it has {', '.join(known)}")
            error.worker = worker
            raise error

    def nothing(self, step: int, mode: ModeKeys, worker: str | None) -> Exception:
        """The error for a step at which the tensor was not saved."""
        where = f"step {step}" + ("" if mode is ModeKeys.GLOBAL else f" of mode {mode.name}")
        state = self.reader.state(step, mode)
        if state is StepState.NOT_YET_AVAILABLE:
            return StepNotYetAvailable(
                f"{where} of this run does not exist yet (last: {self.reader.last_step(mode)}); "
                "wait_for_steps() waits for it"
            )
        if state is StepState.UNAVAILABLE:
            return StepUnavailable(f"nothing was saved at {where} of this run; steps() lists the saved steps")
        by = f" by {worker}" if worker else ""
        return TensorUnavailableForStep(
            f"{self.name!r} was not saved{by} at {where}; tensor(...).steps() lists its saved steps"
        )

    def value(self, rows: Rows, step: int) -> npt.NDArray[Any]:
        """The values of a capture. Raises TensorUnavailableForStep, with the reason, if there are none."""
        self.check_present(rows, step)
        index = self.reader.index
        try:
            return read_values(index, self.reader.payloads, rows, self.at(step))
        except SinkKeyError as error:
            segment = index.text("segment", int(rows[0]))
            raise TensorUnavailableForStep(
                f"{self.at(step)}: its segment {segment} is missing from the run; restore it from a copy",
                reason="lost",
                has_statistics=self.statistics(rows) is not None,
            ) from error

    def check_present(self, rows: Rows, step: int) -> None:
        """Raise TensorUnavailableForStep unless the values of all parts were saved."""
        index = self.reader.index
        parts = int(index.column("parts")[rows[0]])
        statuses = {index.text("status", row) for row in rows.tolist()}
        payload = index.column("segment")[rows] >= 0
        empty = np.array(index.wide("elements", rows).to_pylist()) == 0
        if len(rows) != parts or statuses != {"ok"} or not bool((payload | empty).all()):
            raise self.unavailable(rows, step)

    def unavailable(self, rows: Rows, step: int) -> TensorUnavailableForStep:
        """The error for a capture without values."""
        kind, text = self.why_unavailable(rows)
        has_statistics = self.statistics(rows) is not None
        hint = "; its statistics were saved: use reduction_value() or stats()" if has_statistics else ""
        return TensorUnavailableForStep(
            f"{self.at(step)} {text}{hint}", reason=kind, has_statistics=has_statistics
        )

    def why_unavailable(self, rows: Rows) -> tuple[str, str]:
        """Why a capture has no values: a word for programs, and a clause about the tensor."""
        index = self.reader.index
        there = [int(part) for part in index.column("part")[rows]]
        parts = int(index.column("parts")[rows[0]])
        reasons = [reason for reason in index.wide("reason", rows).to_pylist() if reason]
        because = f" ({reasons[0]})" if reasons else ""
        statuses = [index.text("status", row) for row in rows.tolist()]
        if len(rows) != parts:
            return "incomplete", f"has {len(there)} of {parts} parts ({str(there[:10])[1:-1]})"
        if "skipped" in statuses:
            return "skipped", f"was not captured{because}"
        if "absent" in statuses:
            return "absent", f"had no value at this step: {absent_text(reasons[0] if reasons else None)}"
        if "lost" in statuses:
            return "lost", f"was captured, but its values were lost{because}"
        return "stats_only", f"was saved without its values{because}"

    def statistics(self, rows: Rows) -> dict[str, Any] | None:
        """The statistics of a capture; None if it has none."""
        captures = resolve(self.reader.index, rows)
        if len(captures) != 1 or not captures.complete[0]:
            return None
        row: dict[str, Any] = stats_table(self.reader.index, captures, _NEEDED).to_pylist()[0]
        return None if any(row[name] is None for name in _NEEDED) else row

    def merged_statistics(self, rows: Rows) -> dict[str, Any] | None:
        """Statistics of the whole tensor. rows: its parts on all workers. None if they cannot be computed.

        Raises TensorUnavailableForStep if copies of a part differ.
        """
        index = self.reader.index
        (row,) = merged_table(index, resolve(index, rows), ("step", "reason", *_NEEDED)).to_pylist()
        if row["reason"] == "copies_differ":
            raise TensorUnavailableForStep(
                f"{self.at(row['step'])}: the copies of the workers differ; set worker=",
                reason="copies_differ",
            )
        return None if any(row[name] is None for name in _NEEDED) else row

    def saved_reduction(self, rows: Rows, step: int, name: str, absolute: bool) -> float | None:
        """A reduction that the hook computed and saved as a separate row."""
        reader, index = self.reader, self.reader.index
        code = index.dictionaries["name"].code(reduction_row_name(self.name, name, absolute))
        if code < 0:
            return None
        found = reader.view.rows_of(code)
        found = found[index.column("kind")[found] == index.dictionaries["kind"].code("reduction")]
        for column in ("step", "mode", "worker", "call", "attempt"):
            found = found[index.column(column)[found] == index.column(column)[rows[0]]]
        if len(found) == 0:
            return None
        captures = resolve(index, found)
        capture = captures.parts(len(captures) - 1)
        try:
            return float(np.ravel(self.value(capture, step))[0])
        except TensorUnavailableForStep:
            statistics = self.statistics(capture)
            return None if statistics is None else from_statistics("sum", False, statistics)

    def at(self, step: int) -> str:
        """Tensor and step, for messages."""
        return f"tensor {self.name!r} at step {step}"


_NEEDED = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "mean", "m2", "abs_sum",
    "square_sum", "abs_min", "abs_max",
)  # fmt: skip


def reduction_row_name(tensor: str, reduction: str, absolute: bool) -> str:
    """Name of the row (kind "reduction") of a reduction that cannot be computed from statistics."""
    return f"{tensor}/{'abs_' if absolute else ''}{reduction}"
