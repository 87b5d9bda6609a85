"""Tensor: one name of a run, and its values at all steps.

Names and meanings are those of smdebug's Tensor. Steps are global unless a mode is given. A global step has
the number that the first worker by rank uses; rows of the other workers are found by mode and mode step. A
tensor that is sharded over workers is one tensor unless a worker is given. Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.errors import TensorUnavailableForStep
from tdcore.modes import ModeKeys
from tdcore.text.short_repr import how_many
from tdcore.trial.cupy_arrays import checked_device, to_cupy
from tdcore.trial.global_tensor import GlobalTensor
from tdcore.trial.index import Rows
from tdcore.trial.merge_stats import checked_columns
from tdcore.trial.notebook import tensor_html
from tdcore.trial.reductions import REDUCTIONS, checked_name, from_statistics, from_values
from tdcore.trial.shard_boxes import Shard
from tdcore.trial.tensor_history import TensorHistory
from tdcore.trial.values import read_singles
from tdcore.trial.worker_order import worker_order

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader

__all__ = ["Tensor"]

_ONLY_NO_VALUES = frozenset({"not_saved", "absent", "skipped", "lost", "stats_only", "incomplete"})


class Tensor:
    """A tensor of a run. Created by Trial.tensor(). Every method first reads new data of the run."""

    __slots__ = ("_history", "_reader", "name")

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._history = TensorHistory(reader, name)
        self.name = name

    def __repr__(self) -> str:
        reader, rows = self._reader, self._history.rows()
        if not len(rows):
            return f"<Tensor {self.name!r}: nothing saved>"
        last, index = int(rows[-1]), reader.index
        steps = index.column("step")[rows]
        words = [index.text(name, last) for name in ("kind", "dtype")]
        shape = index.wide("shape", rows[-1:])[0].as_py()
        what = " ".join([*filter(None, words), *([str(shape)] if shape is not None else [])])
        saved = how_many(len(np.unique(steps)), "step")
        return f"<Tensor {self.name!r}: {what}, {saved}, global {steps.min()}..{steps.max()}>"

    def _repr_html_(self) -> str:
        return tensor_html(self)

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Steps at which the tensor was saved, sorted. Absent values do not count.

        Args:
            mode: GLOBAL: global steps. Otherwise the steps of this mode.
            show_incomplete_steps: Also return steps to which a worker may still add tensors.
        """
        reader = self._reader
        reader.auto_refresh()
        rows = self._reader.saved(self._history.rows())
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
        """The values at a step, with the dtype and shape of the tensor.

        Args:
            step_num: Step of the mode; a global step with ModeKeys.GLOBAL.
            mode: Mode of the step.
            worker: Values of this worker, which may be its part of a sharded tensor. None: the whole tensor
                if it is sharded or replicated (global_value), else the values of the first worker.
            call: Number of the call, for a module that runs several times in a step; None: the first call.
            device: None: NumPy. "cuda" or "cuda:1": CuPy on this device.

        Returns:
            A read-only NumPy array, if possible a view of the file (with create_trial(compat=True) a writable
            copy); or a new, writable CuPy array. CuPy has no 8-bit floats, and no bfloat16 before version 14.

        Raises:
            TensorUnavailableForStep: The tensor has no value at the step. The error has the reason.
            StepUnavailable, StepNotYetAvailable: No tensor was saved at the step, or not yet.
            InvalidWorker: There is no such worker.
            RunCorrupt: The bytes are damaged.
            ConfigError: The device cannot be used.
        """
        number = checked_device(device)
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            values = self._value(step_num, mode, worker, call)
        if number is not None:
            return to_cupy(values, number, self._history.at(step_num))
        return self._in_compat_form(values)

    def global_value(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, *, call: int | None = None
    ) -> npt.NDArray[Any]:
        """The values of the whole tensor at a step, assembled from the parts of all workers; read-only.

        Equal parts of several workers are copies and count once. If the tensor is a reduction of the parts
        ("sum"), the parts are reduced.

        Args:
            step_num: Step of the mode; a global step with ModeKeys.GLOBAL.
            mode: Mode of the step.
            call: Number of the call, see value().

        Raises:
            TensorUnavailableForStep: As value(); also if parts are missing ("incomplete"), if copies differ
                ("copies_differ"), or if the values of workers are not parts of one tensor ("disagree").
        """
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            return self._in_compat_form(GlobalTensor(self._history, step_num, mode, call).value())

    def shards(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, *, call: int | None = None
    ) -> list[Shard]:
        """The workers' parts at a step, sorted by rank; empty unless the tensor is sharded or replicated.

        Raises the errors of value().
        """
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            return GlobalTensor(self._history, step_num, mode, call).shards

    def values(
        self, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[int, npt.NDArray[Any]]:
        """step -> values, see value(), for all steps (of the mode) that have values.

        Raises TensorUnavailableForStep if the values of several workers are not parts of one tensor.
        """
        reader, found = self._reader, dict[int, npt.NDArray[Any]]()
        steps = self.steps(mode)
        if not steps:
            return found
        index, rows = reader.index, self._history.rows()
        if worker is not None:
            self._history.check_worker(worker)
            rows = rows[index.column("worker")[rows] == index.dictionaries["worker"].code(worker)]
        if mode is not ModeKeys.GLOBAL:
            rows = rows[index.column("mode")[rows] == index.dictionaries["mode"].code(mode.name)]
        else:
            rows = reader.view.meant(rows)
        of_row = index.column("step" if mode is ModeKeys.GLOBAL else "mode_step")[rows]
        order = np.argsort(of_row, kind="stable")
        rows, of_row = rows[order], of_row[order]
        starts = np.flatnonzero(np.diff(of_row, prepend=of_row[:1] - 1))
        alone = np.diff(np.append(starts, len(rows))) == 1
        alone &= index.column("parts")[rows[starts]] == 1
        if worker is None:  # a shard is not the value of the whole tensor
            alone &= index.wide("shard", rows[starts]).is_null().to_numpy()
        wanted = np.isin(of_row[starts], steps)
        singles = read_singles(index, reader.payloads, rows[starts[alone & wanted]], self._history.at)
        for start, is_alone in zip(starts[wanted].tolist(), alone[wanted].tolist(), strict=True):
            step = int(of_row[start])
            values = self._several(step, mode, worker) if not is_alone else next(singles)
            if values is not None:
                found[step] = self._in_compat_form(values)
        return found

    def workers(self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[str]:
        """Workers that saved the tensor at a step."""
        self._reader.auto_refresh()
        rows = self._reader.saved(self._history.rows_at(step_num, mode))
        texts = self._reader.index.texts("worker")
        codes = np.unique(self._reader.index.column("worker")[rows]).tolist()
        return sorted((texts[code] for code in codes), key=worker_order)

    def prev_steps(self, step: int, n: int | None = None, mode: ModeKeys = ModeKeys.GLOBAL) -> list[int]:
        """The last n steps (None: all) up to and including `step` at which the tensor was saved, sorted."""
        steps = [each for each in self.steps(mode) if each <= step]
        return steps if n is None else steps[max(0, len(steps) - n) :]

    def shape(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> tuple[int, ...]:
        """Shape of value() at a step, also if only statistics were saved."""
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            rows = self._history.capture(step_num, mode, worker, None)
            shape = self._reader.index.wide("shape", rows[:1])[0].as_py()
            if shape is None:
                raise self._history.unavailable(rows, step_num)
        if worker is None and self._history.is_part(rows):
            return tuple(self._reader.index.wide("shard", rows[:1])[0].as_py()["global_shape"])
        return (1,) if self._reader.compat and not shape and self._history.is_scalar() else tuple(shape)

    def reduction_value(
        self,
        step_num: int,
        reduction_name: str,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
        abs: bool = False,  # noqa: A002 -- smdebug's name
        *,
        call: int | None = None,
    ) -> float:
        """A reduction of the values at a step, with NaN and Inf as in NumPy.

        The result is computed from the saved reduction or statistics if they exist, else from the saved
        values.

        Args:
            step_num: Step of the mode; a global step with ModeKeys.GLOBAL.
            reduction_name: min, max, mean, std, variance, sum, prod, l1 or l2.
            mode: Mode of the step.
            worker: See value().
            abs: Reduce the magnitudes of the values.
            call: See value().

        Raises:
            ConfigError: The name is unknown. Other errors are those of value().
        """
        checked_name(reduction_name)
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            rows, statistics = self._one(step_num, mode, worker, call)
            found = from_statistics(reduction_name, abs, statistics) if statistics is not None else None
            if found is None and rows is not None:
                found = self._history.saved_reduction(rows, step_num, reduction_name, abs)
            if found is not None:
                return found
            return from_values(reduction_name, abs, self._value(step_num, mode, worker, call))

    def reduction_values(
        self, step_num: int, mode: ModeKeys = ModeKeys.GLOBAL, worker: str | None = None
    ) -> dict[tuple[str, bool], float]:
        """(name, abs) -> value, for all reductions saved at a step; empty if only values were saved."""
        self._reader.auto_refresh()
        with self._history.annotate_errors(step_num, mode):
            rows, statistics = self._one(step_num, mode, worker, None)
        found: dict[tuple[str, bool], float] = {}
        for name in REDUCTIONS:
            for absolute in (False, True):
                value = from_statistics(name, absolute, statistics) if statistics is not None else None
                if value is None and rows is not None:
                    value = self._history.saved_reduction(rows, step_num, name, absolute)
                if value is not None:
                    found[name, absolute] = value
        return found

    def stats(self, *, steps: Any = None, mode: ModeKeys | None = None) -> pa.Table:
        """Statistics of this tensor at all steps; see Trial.stats."""
        self._reader.auto_refresh()
        code = self._reader.index.dictionaries["name"].code(self.name)
        return self._reader.stats(self._reader.select(self._reader.selection([code], steps, mode)))

    def global_stats(
        self, *, steps: Any = None, mode: ModeKeys | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Statistics of the whole tensor at all steps; see Trial.stats(merged=True).

        Raises TensorUnavailableForStep if the tensor is a reduction over workers, because the statistics of a
        sum cannot be computed from the statistics of the summands.
        """
        self._reader.auto_refresh()
        code = self._reader.index.dictionaries["name"].code(self.name)
        table = self._reader.merged(self._reader.select(self._reader.selection([code], steps, mode)))
        for step, reason in zip(
            *(table.column(each).to_pylist() for each in ("step", "reason")), strict=True
        ):
            if reason == "partial":
                raise TensorUnavailableForStep(
                    f"{self._history.at(step)} was saved as contributions of workers to a sum: statistics "
                    "cannot be computed from those of the contributions; global_value(step) returns saved "
                    "values, and stats() the statistics of each contribution",
                    reason="partial",
                )
        return table if columns is None else table.select(checked_columns(columns))

    # ----------------------------------------------------------------------------------------------

    def _in_compat_form(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values in the form that create_trial(compat=True) requires."""
        if not self._reader.compat:
            return values
        own: npt.NDArray[Any] = values.copy()
        if own.ndim == 0 and self._history.is_scalar():
            own.shape = (1,)
        return own

    def _value(self, step: int, mode: ModeKeys, worker: str | None, call: int | None) -> npt.NDArray[Any]:
        rows = self._history.capture(step, mode, worker, call)
        if worker is None and self._history.is_part(rows):
            return GlobalTensor(self._history, step, mode, call).value()
        return self._history.value(rows, step)

    def _several(self, step: int, mode: ModeKeys, worker: str | None) -> npt.NDArray[Any] | None:
        """The values at a step with several parts, workers or calls; None if there are none."""
        try:
            return self._value(step, mode, worker, None)
        except TensorUnavailableForStep as error:
            if error.reason not in _ONLY_NO_VALUES:
                raise
            return None

    def _one(
        self, step: int, mode: ModeKeys, worker: str | None, call: int | None
    ) -> tuple[Rows | None, dict[str, Any] | None]:
        """Rows of value() (of one worker; None for a whole tensor), and its statistics if there are any."""
        rows = self._history.capture(step, mode, worker, call)
        if worker is None and self._history.is_part(rows):
            return None, self._history.merged_statistics(GlobalTensor(self._history, step, mode, call).rows)
        return rows, self._history.statistics(rows)
