"""Rows of the index for the tensors of a recording of smdebug, with statistics computed from their values.

| in the recording | in the index |
|---|---|
| a tensor with values | a row with statistics, and the place of its values |
| a tensor of texts, or of more than 16 dimensions | a row with status "skipped" and a reason |
| `smdebug/reductions/<reduction>/<name>` | the row `<name>/<reduction>` of kind "reduction" |
| a tensor whose reductions or shape were saved without values | a row without values and statistics |

If a name occurs several times in a step, the last value is call 0, because smdebug's reader returns it. The
value before is call 1, and so on. Threads: one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore import _core
from tdcore.compat.recording import Record, StepIndex
from tdcore.flusher.index_table import NameTable, Rows
from tdcore.format.layout import STATUSES, TensorKind
from tdcore.trial.payload import numpy_dtype

__all__ = ["RecordedNames", "StepRows"]

_FORMAT: Any = _core.ROW_DTYPE
_ROW_DTYPE: np.dtype[np.void] = np.dtype(_FORMAT)
_STATS_FORMAT: Any = _core.STATS_DTYPE
_STATS_DTYPE: np.dtype[np.void] = np.dtype(_STATS_FORMAT)
_CODES = {name: code for code, name in _core.DTYPES.items()}
_REASONS = {name: code for code, name in _core.DROP_REASONS.items()}
_OK, _SKIPPED = STATUSES.index("ok"), STATUSES.index("skipped")
_MAX_DIMENSIONS = _ROW_DTYPE["shape"].shape[0]
_REDUCTION = re.compile(
    r"smdebug/reductions/(?P<reduction>(abs_)?(min|max|mean|std|variance|sum|prod|l1|l2))/(?P<tensor>.+)",
    re.S,
)
# Kinds by collection, and by the documented patterns of smdebug's names; the first match decides.
_BY_COLLECTION = (
    ("gradients", TensorKind.GRADIENT), ("losses", TensorKind.LOSS), ("biases", TensorKind.BIAS),
    ("weights", TensorKind.WEIGHT), ("metrics", TensorKind.METRIC),
    ("hyperparameters", TensorKind.HYPERPARAMETER), ("optimizer_variables", TensorKind.OPTIMIZER_STATE),
    ("inputs", TensorKind.INPUT), ("outputs", TensorKind.OUTPUT),
)  # fmt: skip
_BY_NAME = (
    (re.compile(r"gradients?/"), TensorKind.GRADIENT), (re.compile(r"scalar/"), TensorKind.SCALAR),
    (re.compile(r"hyperparameters/"), TensorKind.HYPERPARAMETER),
    (re.compile(r"(val_)?loss$|.*[Ll]oss_(?!input).*output"), TensorKind.LOSS),
    (re.compile(r".*_input(_|s?$)|.*/inputs$"), TensorKind.INPUT),
    (re.compile(r".*_output(_|s?$)|.*/outputs$"), TensorKind.OUTPUT),
    (re.compile(r".*bias(:0)?$"), TensorKind.BIAS),
    (re.compile(r".*(weight|kernel)(:0)?$"), TensorKind.WEIGHT),
)  # fmt: skip


class RecordedNames(NameTable):
    """Names and kinds of the tensors of a recording. members: names of tensors by collection."""

    def __init__(self, members: Mapping[str, Iterable[str]]) -> None:
        super().__init__()
        self._ids: dict[tuple[str, str], int] = {}
        self._members = {name: frozenset(names) for name, names in members.items()}

    def number(self, name: str, kind: TensorKind | None = None) -> int:
        """The id of a tensor. kind: None for the kind of its collections or name."""
        label = (kind or self._kind(name)).label
        found = self._ids.get((name, label))
        if found is None:
            found = self._ids[name, label] = len(self.names)
            self.names.append(name)
            self.kinds.append(label)
            self.origins.append(None)
            self.shards.append(None)
        return found

    def _kind(self, name: str) -> TensorKind:
        for pattern, kind in _BY_NAME[:3]:  # a prefix of smdebug itself
            if pattern.match(name):
                return kind
        for collection, kind in _BY_COLLECTION:
            if name in self._members.get(collection, ()):
                return kind
        return next((kind for pattern, kind in _BY_NAME if pattern.match(name)), TensorKind.CUSTOM)


class StepRows:
    """The rows of one step of a worker. ticket: number of the step among the worker's steps."""

    def __init__(self, names: RecordedNames, index: StepIndex, ticket: int) -> None:
        self._names = names
        self._index = index
        self._ticket = ticket
        self._calls: Counter[str] = Counter()
        self._without_values: dict[str, int] = {}  # name -> time
        self._time_ns = 0
        self._rows: list[npt.NDArray[np.void]] = []

    def add(self, record: Record, offset: Callable[[Record], int]) -> None:
        """Add a tensor. offset: stores its values, and returns their place in the segment."""
        tensor = record.tensor
        self._time_ns = tensor.time_ns
        reduction = _REDUCTION.fullmatch(tensor.name)
        if reduction is None:
            row = self._row(tensor.name, None, tensor.time_ns)
        else:
            self._without_values.setdefault(reduction["tensor"], tensor.time_ns)
            row = self._row(
                f"{reduction['tensor']}/{reduction['reduction']}", TensorKind.REDUCTION, tensor.time_ns
            )
        if not tensor.dtype or len(tensor.shape) > _MAX_DIMENSIONS:
            row["status"] = _SKIPPED
            row["reason"] = _REASONS["too_large" if tensor.dtype else "unsupported_dtype"]
            return
        row["dtype"] = _CODES[tensor.dtype]
        row["ndim"] = len(tensor.shape)
        row["shape"][0, : len(tensor.shape)] = tensor.shape
        values = _values(record)
        row["elements"] = len(values)
        if values.dtype.kind != "c":
            row["stats"] = np.frombuffer(_core.stats([values]), _STATS_DTYPE)[0]
            row["has_stats"] = 1
        row["segment_offset"] = offset(record)
        row["payload_offset"] = 0  # any place: the values are not in a ring
        row["payload_bytes"] = len(record.content)
        row["crc32c"] = _core.crc32c(record.content)

    def finish(self) -> Rows:
        """All rows of the step, with those of tensors without values."""
        own = {self._names.names[int(row["name"][0])] for row in self._rows}
        for name, time_ns in self._without_values.items():
            if name not in own and name not in self._index.shapes:
                self._row(name, None, time_ns)
        for name, shape in self._index.shapes.items():
            if name in own:
                continue
            row = self._row(name, None, self._time_ns)
            row["elements"] = math.prod(shape)
            if len(shape) <= _MAX_DIMENSIONS:
                row["ndim"] = len(shape)
                row["shape"][0, : len(shape)] = shape
        for row in self._rows:
            name = self._names.names[int(row["name"][0])]
            row["call"] = self._calls[name] - 1 - row["call"]
        return np.concatenate(self._rows) if self._rows else np.zeros(0, _ROW_DTYPE)

    def _row(self, name: str, kind: TensorKind | None, time_ns: int) -> npt.NDArray[np.void]:
        """Append a row without values; return it as an array of one element, which may be changed."""
        row = np.zeros(1, _ROW_DTYPE)
        row["name"] = self._names.number(name, kind)
        row["call"], row["seq"] = self._calls[name], len(self._rows)
        self._calls[name] += 1
        row["parts"] = row["elements"] = 1
        row["payload_offset"] = np.uint64(_core.NO_PAYLOAD)
        row["ticket"], row["time_ns"] = self._ticket, time_ns
        row["step"], row["mode_step"], row["mode"] = (
            self._index.step,
            self._index.mode_step,
            self._index.mode.value,
        )
        self._rows.append(row)
        return row


def _values(record: Record) -> npt.NDArray[Any]:
    """The values as one aligned, flat array."""
    kind = numpy_dtype(record.tensor.dtype, f"tensor {record.tensor.name!r}")
    return np.frombuffer(bytes(record.content), dtype=kind)
