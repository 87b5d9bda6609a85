"""Tensor: one name of a run, and its values at all steps.

Names and meanings are those of the older library's Tensor. Steps are global unless a mode is given.
Threads: as Trial.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from tdcore.trial.on_device import checked_device, on_device
from tdcore.trial.reductions import REDUCTIONS, checked_name, from_statistics, from_values
from tdcore.trial.statistics import stats_table
from tdcore.trial.steps import StepState
from tdcore.trial.values import read_singles, read_values
from tdcore.trial.view import worker_order

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["Tensor"]


class Tensor:
    """Made by Trial.tensor(). Looks at the run anew with every question, unless the trial is frozen."""

    __slots__ = ("_reader", "name")

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self.name = name

    def __repr__(self) -> str:
        return f"Tensor({self.name!r})"

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Steps at which it was saved, sorted: global ones, or those of the mode. Absent values do not count.

        show_incomplete_steps: also those that some worker may still add to.
        """
        reader = self._reader
        reader.auto_refresh()
        rows = self._reader.saved(self._rows())
        if not show_incomplete_steps:
            rows = rows[reader.complete(rows)]
        return reader.steps_of(rows, mode)

    @overload
    def value(
        self,
        step_num: int,
        mode: ModeKeys = ...,
        worker: str | None = ...,
        *,
        call: int | None = ...,
        device: None = ...,
    ) -> npt.NDArray[Any]: ...

    @overload
    def value(
        self,
        step_num: int,
        mode: ModeKeys = ...,
        worker: str | None = ...,
        *,
        call: int | None = ...,
        device: str,
    ) -> Any: ...

    def value(
        self,
        step_num: int,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        *,
        call: int | None = None,
        device: str | None = None,
    ) -> Any:
        """The values at a step: read-only, of the tensor's own dtype and shape; a view of the file where it
        can be.

        worker: None is the first that has it. call: which call of a module that runs several times in a
        step; None is the first. device: None gives a NumPy array, "cuda" or "cuda:1" a CuPy array of its own
        on that device, not read-only (needs CuPy; 8-bit floats, and bfloat16 before CuPy 14, are refused).
        Raises TensorUnavailableForStep with the reason, StepUnavailable or StepNotYetAvailable when the step
        has nothing (yet), InvalidWorker, RunCorrupt when the bytes are damaged, ConfigError when the device
        cannot be used.
        """
        number = checked_device(device)
        self._reader.auto_refresh()
        values = self._value(self._capture(step_num, mode, worker, call), step_num)
        return values if number is None else on_device(values, number, self._at(step_num))

    def values(
        self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, npt.NDArray[Any]]:
        """step -> values, for all steps (of the mode) that have values. Those without are left out."""
        reader, found = self._reader, dict[int, npt.NDArray[Any]]()
        steps = self.steps(mode)
        if not steps:
            return found
        index, rows = reader.index, self._rows()
        if worker is not None:
            self._check_worker(worker)
            rows = rows[index.column("worker")[rows] == index.vocabularies["worker"].code(worker)]
        if mode is not ModeKeys.GLOBAL:
            rows = rows[index.column("mode")[rows] == index.vocabularies["mode"].code(mode.name)]
        of_row = index.column("step" if mode is ModeKeys.GLOBAL else "mode_step")[rows]
        order = np.argsort(of_row, kind="stable")
        rows, of_row = rows[order], of_row[order]
        starts = np.flatnonzero(np.diff(of_row, prepend=of_row[:1] - 1))
        alone = np.diff(np.append(starts, len(rows))) == 1
        alone &= index.column("parts")[rows[starts]] == 1
        wanted = np.isin(of_row[starts], steps)
        singles = read_singles(index, reader.payloads, rows[starts[alone & wanted]], self._at)
        for start, is_alone in zip(starts[wanted].tolist(), alone[wanted].tolist(), strict=True):
            step = int(of_row[start])
            with suppress(TensorUnavailableForStep):
                if not is_alone:  # several parts, workers or calls
                    found[step] = self._value(self._capture(step, mode, worker, None), step)
                elif (values := next(singles)) is not None:
                    found[step] = values
        return found

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Workers that saved it at a step."""
        self._reader.auto_refresh()
        rows = self._reader.saved(self._reader.view.at_step(self._rows(), step_num, mode.name))
        texts = self._reader.index.texts("worker")
        codes = np.unique(self._reader.index.column("worker")[rows]).tolist()
        return sorted((texts[code] for code in codes), key=worker_order)

    def prev_steps(self, step: int, n: int | None, mode: ModeKeys = ModeKeys.GLOBAL) -> list[int]:
        """The last n steps before `step` at which it was saved, sorted. n None: all of them."""
        steps = [each for each in self.steps(mode) if each < step]
        return steps if n is None else steps[max(0, len(steps) - n) :]

    def shape(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> tuple[int, ...]:
        """Shape at a step, also where only statistics were saved."""
        self._reader.auto_refresh()
        rows = self._capture(step_num, mode, worker, None)
        shape = self._reader.index.wide("shape", rows[:1])[0].as_py()
        if shape is None:
            raise self._unavailable(rows, step_num)
        return tuple(shape)

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 -- the older library's name
        *,
        call: int | None = None,
    ) -> float:
        """min, max, mean, std, variance, sum, prod, l1 or l2 of the values, or of their magnitudes with
        abs=True.

        From the saved reduction or statistics where there are some, else from the saved values. NaN and Inf
        as in NumPy. Raises as value().
        """
        checked_name(reduction_name)
        self._reader.auto_refresh()
        rows = self._capture(step_num, mode, worker, call)
        statistics = self._statistics(rows)
        found = from_statistics(reduction_name, abs, statistics) if statistics is not None else None
        if found is None:
            found = self._saved_reduction(rows, step_num, reduction_name, abs)
        return found if found is not None else from_values(reduction_name, abs, self._value(rows, step_num))

    def reduction_values(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[tuple[str, bool], float]:
        """(name, abs) -> value of all reductions that were saved at a step; none where only the values
        were.
        """
        self._reader.auto_refresh()
        rows = self._capture(step_num, mode, worker, None)
        statistics = self._statistics(rows)
        found: dict[tuple[str, bool], float] = {}
        for name in REDUCTIONS:
            for absolute in (False, True):
                value = from_statistics(name, absolute, statistics) if statistics is not None else None
                if value is None:
                    value = self._saved_reduction(rows, step_num, name, absolute)
                if value is not None:
                    found[name, absolute] = value
        return found

    def stats(self, *, steps: Any = None, mode: ModeKeys | None = None) -> pa.Table:
        """Statistics at all steps: Trial.stats for this tensor alone."""
        self._reader.auto_refresh()
        code = self._reader.index.vocabularies["name"].code(self.name)
        return self._reader.stats(self._reader.select([code], steps, mode))

    # ----------------------------------------------------------------------------------------------

    def _rows(self) -> Rows:
        reader = self._reader
        return reader.view.rows_of(reader.index.vocabularies["name"].code(self.name))

    def _capture(self, step: int, mode: ModeKeys, worker: str | None, call: int | None) -> Rows:
        """The rows of one capture, in order of its parts."""
        reader = self._reader
        index = reader.index
        rows = reader.view.at_step(self._rows(), step, mode.name)
        if worker is not None:
            self._check_worker(worker)
            rows = rows[index.column("worker")[rows] == index.vocabularies["worker"].code(worker)]
        if len(rows) == 0:
            raise self._nothing(step, mode, worker)
        if worker is None:
            texts = index.texts("worker")
            saved = self._reader.saved(rows)
            codes = np.unique(index.column("worker")[saved if len(saved) else rows]).tolist()
            first = min(codes, key=lambda code: worker_order(texts[code]))
            rows = rows[index.column("worker")[rows] == first]
        calls = index.column("call")[rows]
        wanted = int(calls.min()) if call is None else call
        if not (calls == wanted).any():
            there = ", ".join(map(str, np.unique(calls).tolist()[:20]))
            raise TensorUnavailableForStep(f"{self._at(step)} has no call {wanted}; it has {there}")
        captures = resolve(index, rows[calls == wanted])
        return captures.parts(len(captures) - 1)

    def _check_worker(self, worker: str) -> None:
        known = self._reader.workers()
        if worker not in known:
            raise InvalidWorker(f"{worker!r} is not a worker of this run; it has {', '.join(known)}")

    def _nothing(self, step: int, mode: ModeKeys, worker: str | None) -> Exception:
        where = f"step {step}" + ("" if mode is ModeKeys.GLOBAL else f" of mode {mode.name}")
        state = self._reader.state(step, mode)
        if state is StepState.NOT_YET_AVAILABLE:
            return StepNotYetAvailable(
                f"{where} of this run is not there yet (last: {self._reader.last_step(mode)}); "
                "wait_for_steps() waits for it"
            )
        if state is StepState.UNAVAILABLE:
            return StepUnavailable(f"nothing was saved at {where} of this run; steps() lists what was")
        by = f" by {worker}" if worker else ""
        return TensorUnavailableForStep(
            f"{self.name!r} was not saved{by} at {where}; tensor(...).steps() lists where it was"
        )

    def _value(self, rows: Rows, step: int) -> npt.NDArray[Any]:
        self._check_present(rows, step)
        index = self._reader.index
        try:
            return read_values(index, self._reader.payloads, rows, self._at(step))
        except SinkKeyError as error:
            segment = index.text("segment", int(rows[0]))
            raise TensorUnavailableForStep(
                f"{self._at(step)}: its segment {segment} is gone from the run; restore it from a copy",
                reason="lost",
                has_statistics=self._statistics(rows) is not None,
            ) from error

    def _check_present(self, rows: Rows, step: int) -> None:
        """Raises TensorUnavailableForStep unless every part of the values was saved."""
        index = self._reader.index
        parts = int(index.column("parts")[rows[0]])
        statuses = {index.text("status", row) for row in rows.tolist()}
        payload = index.column("segment")[rows] >= 0
        empty = np.array(index.wide("elements", rows).to_pylist()) == 0
        if len(rows) != parts or statuses != {"ok"} or not bool((payload | empty).all()):
            raise self._unavailable(rows, step)

    def _unavailable(self, rows: Rows, step: int) -> TensorUnavailableForStep:
        """Why the values of a capture are not there, in words."""
        index = self._reader.index
        there = [int(part) for part in index.column("part")[rows]]
        parts = int(index.column("parts")[rows[0]])
        reasons = [reason for reason in index.wide("reason", rows).to_pylist() if reason]
        because = f" ({reasons[0]})" if reasons else ""
        statuses = [index.text("status", row) for row in rows.tolist()]
        has_statistics = self._statistics(rows) is not None
        hint = "; its statistics were saved: use reduction_value() or stats()" if has_statistics else ""
        if len(rows) != parts:
            kind, text = "incomplete", f"has {len(there)} of {parts} parts ({str(there[:10])[1:-1]})"
        elif "skipped" in statuses:
            kind, text = "skipped", f"was not captured{because}"
        elif "absent" in statuses:
            kind, text = (
                "absent",
                f"had no value at this step{because}: a parameter without gradient, for example",
            )
        elif "lost" in statuses:
            kind, text = "lost", f"was captured, but its values were lost{because}"
        else:
            kind, text = "stats_only", f"was saved without its values{because}"
        return TensorUnavailableForStep(
            f"{self._at(step)} {text}{hint}", reason=kind, has_statistics=has_statistics
        )

    def _statistics(self, rows: Rows) -> dict[str, Any] | None:
        """The statistics of a capture, None where there are none."""
        captures = resolve(self._reader.index, rows)
        if len(captures) != 1 or not captures.complete[0]:
            return None
        row: dict[str, Any] = stats_table(self._reader.index, captures, _NEEDED).to_pylist()[0]
        return None if any(row[name] is None for name in _NEEDED) else row

    def _saved_reduction(self, rows: Rows, step: int, name: str, absolute: bool) -> float | None:
        """A reduction that the hook computed and saved under a name of its own beside the tensor."""
        reader, index = self._reader, self._reader.index
        code = index.vocabularies["name"].code(reduction_row_name(self.name, name, absolute))
        if code < 0:
            return None
        found = reader.view.rows_of(code)
        found = found[index.column("kind")[found] == index.vocabularies["kind"].code("reduction")]
        for column in ("step", "worker", "call", "attempt"):
            found = found[index.column(column)[found] == index.column(column)[rows[0]]]
        if len(found) == 0:
            return None
        captures = resolve(index, found)
        capture = captures.parts(len(captures) - 1)
        try:
            return float(np.ravel(self._value(capture, step))[0])
        except TensorUnavailableForStep:
            statistics = self._statistics(capture)
            return None if statistics is None else from_statistics("sum", False, statistics)

    def _at(self, step: int) -> str:
        return f"tensor {self.name!r} at step {step}"


_NEEDED = (
    "count", "nan_count", "pos_inf_count", "neg_inf_count", "min", "max", "mean", "m2", "abs_sum",
    "square_sum", "abs_min", "abs_max",
)  # fmt: skip


def reduction_row_name(tensor: str, reduction: str, absolute: bool) -> str:
    """Name of the row (kind "reduction") that holds a reduction which statistics do not give."""
    return f"{tensor}/{'abs_' if absolute else ''}{reduction}"
