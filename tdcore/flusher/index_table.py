"""Conversion of rows of the ring to Arrow tables and index files, and reading of index summaries.

All functions work on columns of NumPy structs of `_core.ROW_DTYPE`, without a Python loop over rows. The
module imports numpy and pyarrow, so the flusher imports it only after its first heartbeat. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tdcore import _core
from tdcore.flusher.index_summary import IndexGap, IndexSummary
from tdcore.flusher.index_writer import ROWS_PER_GROUP, IndexWriter
from tdcore.format.layout import INDEX_SCHEMA, LOG2_MIN, STATUSES, TensorKind
from tdcore.format.shard import ShardPosition
from tdcore.modes import ModeKeys

__all__ = [
    "IO_ERROR",
    "NameTable",
    "RingNameTable",
    "Rows",
    "build_table",
    "encode_empty",
    "encode_index",
    "gap_of",
    "given_up",
    "read_footer",
    "rows_of",
    "summarise",
]

Rows = np.ndarray[Any, np.dtype[np.void]]

_ROW_FORMAT: Any = _core.ROW_DTYPE  # NumPy's dict form
_ROW_DTYPE: np.dtype[np.void] = np.dtype(_ROW_FORMAT)
_NO_PAYLOAD = np.uint64(2**64 - 1)
_OK = 0
_ABSENT, _LOST = STATUSES.index("absent"), STATUSES.index("lost")
IO_ERROR = next(code for code, name in _core.DROP_REASONS.items() if name == "io_error")
_OF_ABSENT = 256  # added to the codes of ABSENT_REASONS, so that one column has both kinds of reasons
_REASONS = {**_core.DROP_REASONS, **{_OF_ABSENT + code: name for code, name in _core.ABSENT_REASONS.items()}}
_UNKNOWN_DTYPE = 0
_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count")
_FLOATS = ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max")


class NameTable:
    """Names by id, with the kind, origin and shard of each. Threads: one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.kinds: list[str] = []
        self.origins: list[str | None] = []
        self.shards: list[ShardPosition | None] = []


class RingNameTable(NameTable):
    """Names by id, read from the ring when the trainer adds them. Threads: one."""

    def __init__(self, consumer: _core.Consumer) -> None:
        super().__init__()
        self._consumer = consumer

    def refresh(self) -> None:
        """Read the names that the trainer has added since the last call."""
        for name, kind, origin, shard in self._consumer.names(len(self.names)):
            self.names.append(name)
            self.kinds.append(TensorKind(kind).label if kind in _KNOWN_KINDS else "custom")
            self.origins.append(origin or None)
            self.shards.append(ShardPosition.from_text(shard))


_KNOWN_KINDS = frozenset(int(kind) for kind in TensorKind)


def rows_of(drained: _core.Drained) -> Rows:
    """The rows of a batch; a view, not a copy."""
    rows: Rows = np.frombuffer(drained.rows, dtype=_ROW_DTYPE)
    return rows


def has_payload(rows: Rows) -> npt.NDArray[np.bool_]:
    """Mask of the rows with a payload in the ring."""
    mask: npt.NDArray[np.bool_] = (rows["payload_offset"] != _NO_PAYLOAD) & (rows["status"] == _OK)
    return mask


def payload_bytes(rows: Rows) -> int:
    """Bytes of all payloads."""
    return int(rows["payload_bytes"][has_payload(rows)].sum())


def given_up(rows: Rows, *, statistics_kept: bool) -> npt.NDArray[np.bool_]:
    """Mask of the rows in a gap: rows with a payload, or all rows if their statistics are not kept."""
    return has_payload(rows) if statistics_kept else np.ones(len(rows), dtype=np.bool_)


def gap_of(rows: Rows, *, tensors: int, reason: str, statistics_kept: bool) -> IndexGap:
    """The gap for the payloads of `rows`, or for all rows if their statistics are not kept."""
    concerned = rows[given_up(rows, statistics_kept=statistics_kept)]
    return IndexGap(
        first_step=int(concerned["step"].min()) if len(concerned) else None,
        last_step=int(concerned["step"].max()) if len(concerned) else None,
        tensors=tensors,
        bytes=payload_bytes(rows),
        reason=reason,
        statistics_kept=statistics_kept,
    )


def summarise(
    rows: Rows,
    *,
    records: int,
    segment: tuple[str, int] | None,
    gaps: Sequence[IndexGap] = (),
    whole_step: int | None = None,
    run_id: str = "",
) -> IndexSummary:
    """Totals of `rows`. segment: (file name, size) if their payloads were saved. run_id: id of their run."""
    mode_steps: dict[str, int] = {}
    for mode in np.unique(rows["mode"]):
        mode_steps[_mode_name(int(mode))] = int(rows["mode_step"][rows["mode"] == mode].max())
    return IndexSummary(
        rows=len(rows),
        records=records,
        payload_bytes=payload_bytes(rows) if segment else 0,
        last_step=int(rows["step"].max()) if len(rows) else -1,
        last_mode_steps=mode_steps,
        gaps=tuple(gaps),
        segments=dict([segment] if segment else []),
        whole_step=whole_step,
        run_id=run_id,
    )


def build_table(
    rows: Rows, names: NameTable, *, worker: str, attempt: int, segment: str | None, lost: bool = False
) -> pa.Table:
    """The rows of the index for `rows`. segment: file with their payloads; None if payloads are not saved.

    lost: the payloads were lost; rows with a payload get status "lost" and reason "io_error".
    """
    count = len(rows)
    payload = has_payload(rows)
    status, reason = rows["status"].astype(np.int32), rows["reason"].astype(np.int32)
    reason[(status == _ABSENT) & (reason != 0)] += _OF_ABSENT
    if lost:
        status, reason = np.where(payload, _LOST, status), np.where(payload, IO_ERROR, reason)
    saved = payload if segment is not None else np.zeros(count, dtype=bool)
    columns = {
        "attempt": np.full(count, attempt, dtype=np.int32),
        "worker": _words(np.zeros(count, dtype=np.int32), [worker]),
        "mode": _coded(rows["mode"], _mode_name),
        "call": rows["call"].astype(np.int32),
        "dtype": _coded(
            rows["dtype"], lambda code: _core.DTYPES.get(code, f"unknown_{code}"), null=_UNKNOWN_DTYPE
        ),
        "shape": _shapes(rows),
        "status": _coded(status, lambda code: STATUSES[code]),
        "reason": _coded(reason, lambda code: _REASONS.get(code, f"unknown_{code}"), null=0),
        "segment": _words(np.where(saved, 0, -1).astype(np.int32), [segment] if segment else []),
        "offset": _nullable(rows["segment_offset"], saved, np.int64),
        "nbytes": _nullable(rows["payload_bytes"], saved, np.int64),
        "crc32c": _nullable(rows["crc32c"], saved, np.uint32),
        **_name_columns(rows, names),
        **_statistics_columns(rows),
    }
    for name in ("ticket", "mode_step", "step", "element_offset", "elements", "time_ns"):
        columns[name] = rows[name].astype(np.int64)
    for name in ("seq", "part", "parts"):
        columns[name] = rows[name].astype(np.int32)
    arrays = [_as_array(columns[field.name], field.type) for field in INDEX_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=INDEX_SCHEMA)


def encode_index(
    rows: Rows,
    names: NameTable,
    summary: IndexSummary,
    *,
    worker: str,
    attempt: int,
    segment: str | None,
    lost: bool = False,
) -> pa.Buffer:
    """An index file of `rows`, which may be empty. One row group is built at a time to limit the memory."""
    writer = IndexWriter(summary)
    for start in range(0, len(rows), ROWS_PER_GROUP):
        piece = rows[start : start + ROWS_PER_GROUP]
        writer.write(build_table(piece, names, worker=worker, attempt=attempt, segment=segment, lost=lost))
    return writer.finish()


def encode_empty(summary: IndexSummary) -> pa.Buffer:
    """An index file without rows, for tickets whose rows were lost."""
    return IndexWriter(summary).finish()


def read_footer(tail: bytes) -> tuple[IndexSummary, int]:
    """Summary and size in bytes of an index file. tail: its last bytes; too few bytes raise ValueError."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not the end of an index file: {error}") from error
    groups = sum(_group_bytes(metadata.row_group(at)) for at in range(metadata.num_row_groups))
    return IndexSummary.from_metadata(metadata.metadata), groups + metadata.serialized_size


def _group_bytes(group: Any) -> int:
    return sum(group.column(at).total_compressed_size for at in range(group.num_columns))


def _as_array(column: Any, kind: pa.DataType) -> pa.Array:
    return column if isinstance(column, pa.Array) else pa.array(column, type=kind)


def _mode_name(code: int) -> str:
    try:
        return ModeKeys(code).name
    except ValueError:
        return ModeKeys.GLOBAL.name


def _words(indices: npt.NDArray[np.int32], words: Sequence[str | None]) -> pa.Array:
    """Dictionary column: word of each index, null where the index is negative."""
    index = pa.array(indices, mask=indices < 0, type=pa.int32())
    return pa.DictionaryArray.from_arrays(index, pa.array(words, type=pa.string()))


def _coded(codes: npt.NDArray[Any], word: Any, null: int | None = None) -> pa.Array:
    """Dictionary column: word(code) of each code, null where the code is `null`."""
    used, inverse = np.unique(codes, return_inverse=True)
    indices = np.arange(len(used), dtype=np.int32)
    words = [word(int(code)) for code in used]
    if null is not None and null in used:
        at = int(np.flatnonzero(used == null)[0])
        del words[at]
        indices[at], indices[at + 1 :] = -1, indices[at + 1 :] - 1
    return _words(indices[inverse], words)


def _nullable(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_], kind: Any) -> pa.Array:
    return pa.array(values.astype(kind), mask=~valid)


def _lists(
    values: npt.NDArray[np.int64], lengths: npt.NDArray[Any], valid: npt.NDArray[np.bool_]
) -> pa.Array:
    """List column of `lengths` pieces of `values`, null where not valid (length 0 there)."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, type=pa.int64()), mask=pa.array(~valid)
    )


def _shapes(rows: Rows) -> pa.Array:
    """Shapes of the rows; null for an absent value, whose dtype is unknown."""
    ndim = rows["ndim"].astype(np.int32)
    shape = rows["shape"]
    inside = np.arange(shape.shape[1], dtype=np.int32) < ndim[:, None]
    return _lists(shape[inside], ndim, (rows["dtype"] != _UNKNOWN_DTYPE) | (ndim > 0))


def _name_columns(rows: Rows, names: NameTable) -> dict[str, pa.Array]:
    used, inverse = np.unique(rows["name"], return_inverse=True)
    known = [int(code) if code < len(names.names) else None for code in used]
    indices = inverse.astype(np.int32)
    columns: dict[str, pa.Array] = {
        "name": _words(
            indices,
            [
                f"unnamed_{code}" if at is None else names.names[at]
                for at, code in zip(known, used, strict=True)
            ],
        )
    }
    for column, words, unknown in (("kind", names.kinds, "custom"), ("origin", names.origins, None)):
        each = [unknown if at is None else words[at] for at in known]
        distinct = sorted({word for word in each if word is not None})
        place = {word: at for at, word in enumerate(distinct)}
        codes = np.array([-1 if word is None else place[word] for word in each], dtype=np.int32)
        columns[column] = _words(codes[indices], distinct)
    columns["shard"] = _shards([None if at is None else names.shards[at] for at in known], indices)
    return columns


def _shards(each: Sequence[ShardPosition | None], indices: npt.NDArray[np.int32]) -> pa.Array:
    """Shard positions as a column: each[i] for the rows whose index is i."""
    kind = INDEX_SCHEMA.field("shard").type
    if not any(each):
        return pa.nulls(len(indices), kind)
    return pa.array([shard and shard._asdict() for shard in each], type=kind).take(pa.array(indices))


def _statistics_columns(rows: Rows) -> dict[str, pa.Array]:
    stats = rows["stats"]
    valid = rows["has_stats"] != 0
    columns = {name: _nullable(stats[name], valid, np.int64) for name in _COUNTS}
    columns.update({name: _nullable(stats[name], valid, np.float64) for name in _FLOATS})
    counts = stats["log2_counts"]
    bins = counts.shape[1]
    filled = (counts != 0) & valid[:, None]
    some = filled.any(axis=1)
    first = np.where(some, filled.argmax(axis=1), 0)
    end = np.where(some, bins - filled[:, ::-1].argmax(axis=1), 0)
    column = np.arange(bins)
    inside = (column >= first[:, None]) & (column < end[:, None])
    columns["log2_first"] = _nullable(first + LOG2_MIN, some, np.int8)
    columns["log2_counts"] = _lists(counts[inside].astype(np.int64), end - first, valid)
    return columns
