"""Writes runs from the description of the format alone: NumPy, pyarrow and safetensors, without tdcore.

An independent check of the reader, and a way for other tests to make a run without training. See RunWriter.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

Array = npt.NDArray[Any]

_WORD = pa.dictionary(pa.int32(), pa.string())
_INT = pa.int64()
_SHARD = pa.struct([("global_shape", pa.list_(_INT)), ("offset", pa.list_(_INT)), ("partial", pa.string())])
SCHEMA = pa.schema(
    [
        pa.field("attempt", pa.int32(), False),
        pa.field("worker", _WORD, False),
        pa.field("ticket", _INT, False),
        pa.field("mode", _WORD, False),
        pa.field("mode_step", _INT, False),
        pa.field("step", _INT, False),
        pa.field("seq", pa.int32(), False),
        pa.field("name", _WORD, False),
        pa.field("kind", _WORD, False),
        pa.field("origin", _WORD),
        pa.field("call", pa.int32(), False),
        pa.field("dtype", _WORD),
        pa.field("shape", pa.list_(_INT)),
        pa.field("part", pa.int32(), False),
        pa.field("parts", pa.int32(), False),
        pa.field("element_offset", _INT, False),
        pa.field("elements", _INT, False),
        pa.field("shard", _SHARD),
        pa.field("time_ns", _INT, False),
        pa.field("status", _WORD, False),
        pa.field("reason", _WORD),
        pa.field("segment", _WORD),
        pa.field("offset", _INT),
        pa.field("nbytes", _INT),
        pa.field("crc32c", pa.uint32()),
        *(pa.field(name, _INT) for name in ("count", "nan_count", "pos_inf_count", "neg_inf_count")),
        *(pa.field(name, _INT) for name in ("zero_count", "subnormal_count")),
        *(pa.field(name, pa.float64()) for name in ("min", "max", "mean", "m2", "abs_sum", "square_sum")),
        *(pa.field(name, pa.float64()) for name in ("abs_min", "abs_max")),
        pa.field("log2_first", pa.int8()),
        pa.field("log2_counts", pa.list_(_INT)),
    ]
)
STATISTICS = SCHEMA.names[SCHEMA.names.index("count") :]

DTYPES: dict[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16",
    "float32": "F32", "float64": "F64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "complex64": "C64", "complex128": "C128",
}  # fmt: skip
EPOCH_NS = 1_700_000_000_000_000_000  # long ago


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli), as in RFC 3720, computed one byte at a time."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def statistics(values: Array) -> dict[str, Any]:
    """Return the statistics columns of an array, computed in float64."""
    if values.dtype.kind == "c":
        return dict.fromkeys(STATISTICS)
    x = np.ravel(values).astype(np.float64)
    finite = x[np.isfinite(x)]
    magnitude = np.abs(finite)
    mean = float(finite.mean()) if len(finite) else float("nan")
    subnormal = 0
    if values.dtype.kind == "f" or values.dtype == ml_dtypes.bfloat16:
        info: Any = ml_dtypes.finfo(values.dtype)  # type: ignore[no-untyped-call]
        subnormal = int(((magnitude > 0) & (magnitude < float(info.smallest_normal))).sum())
    bins = np.zeros(64, dtype=np.int64)
    used = magnitude[magnitude > 0]
    if len(used):
        np.add.at(bins, np.clip(np.frexp(used)[1] - 1 + 40, 0, 63), 1)
    hit = np.flatnonzero(bins)
    low, high = (int(hit[0]), int(hit[-1]) + 1) if len(hit) else (0, 0)
    none = float("nan")
    return {
        "count": x.size,
        "nan_count": int(np.isnan(x).sum()),
        "pos_inf_count": int(np.isposinf(x).sum()),
        "neg_inf_count": int(np.isneginf(x).sum()),
        "zero_count": int((x == 0).sum()),
        "subnormal_count": subnormal,
        "min": float(finite.min()) if len(finite) else none,
        "max": float(finite.max()) if len(finite) else none,
        "mean": mean,
        "m2": float(np.square(finite - mean).sum()) if len(finite) else 0.0,
        "abs_sum": float(magnitude.sum()),
        "square_sum": float(np.square(magnitude).sum()),
        "abs_min": float(magnitude.min()) if len(finite) else none,
        "abs_max": float(magnitude.max()) if len(finite) else none,
        "log2_first": low - 40,
        "log2_counts": bins[low:high].tolist(),
    }


def place(whole: Sequence[int], offset: Sequence[int], partial: str | None = None) -> dict[str, Any]:
    """Return the `shard` of a part at `offset` in a tensor of this shape: run.add(..., shard=place(...))."""
    return {"global_shape": list(whole), "offset": list(offset), "partial": partial}


def dtype_name(values: Array) -> str:
    """Return the index's name of a NumPy dtype."""
    return DTYPES[values.dtype.name]


def raw(values: Array) -> bytes:
    """Return the bytes of an array in C order."""
    return np.ascontiguousarray(values).tobytes()


def segment_bytes(tensors: Sequence[tuple[str, str, Sequence[int], bytes]]) -> tuple[bytes, list[int]]:
    """Return a safetensors file of (key, dtype, shape, bytes), and the offset of each tensor's bytes.

    Data begins at 4096 (or a multiple); tensors are aligned to 64 bytes, and gaps are declared as padding.
    """
    header: dict[str, Any] = {"__metadata__": {"writer": "tests"}}
    pieces: list[bytes] = []
    offsets: list[int] = []
    position = pads = 0
    for key, dtype, shape, data in tensors:
        if position % 64:
            gap = 64 - position % 64
            place = [position, position + gap]
            header[f"__pad__{pads}"] = {"dtype": "U8", "shape": [gap], "data_offsets": place}
            pieces.append(bytes(gap))
            position, pads = position + gap, pads + 1
        if dtype == "C128":
            dtype, shape = "F64", [*shape, 2]
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        offsets.append(position)
        pieces.append(data)
        position += len(data)
    text = json.dumps(header).encode()
    start = -(-(8 + len(text)) // 4096) * 4096
    text = text.ljust(start - 8)
    return len(text).to_bytes(8, "little") + text + b"".join(pieces), [start + offset for offset in offsets]


@dataclass
class _Pending:
    row: dict[str, Any]
    data: bytes | None


class RunWriter:
    """One worker's attempt, written as by a flusher.

        run = RunWriter(tmp_path / "run")
        run.add("fc.weight", np.zeros((2, 3), np.float32), step=0)
        run.flush()           # one segment and one index file; `add`s of one flush may be many records
        run.end()

    Each row is its own record (ticket).

    root: the run's folder.
    epoch_ns: time at which the attempt started and its first row was captured; None is the current time.
    workers: workers that are to save tensors, according to run.json.
    """

    def __init__(
        self,
        root: Path,
        *,
        worker: str = "worker_0",
        attempt: int = 0,
        world_size: int = 1,
        claim: bool = True,
        host: str = "test",
        pid: int = 0,
        workers: Sequence[str] | None = None,
        epoch_ns: int | None = None,
    ) -> None:
        self.root = root
        self.worker = worker
        self.attempt = attempt
        self.epoch_ns = time.time_ns() if epoch_ns is None else epoch_ns
        self.ticket = 0
        self._first = 0
        self._pending: list[_Pending] = []
        self._seq: dict[int, int] = {}
        self._whole: int | None = None
        entry = {
            "attempt": attempt, "started_ns": self.epoch_ns, "world_size": world_size, "framework": "tests",
            "framework_version": "1", "tdcore_version": "0", "host": host, "pid": pid, "configuration": {},
        }  # fmt: skip
        if workers is not None:
            entry["workers"] = list(workers)
        document: dict[str, Any] = {"format": 1, "run_id": "0123", "attempts": []}
        if (root / "run.json").exists():
            document = json.loads((root / "run.json").read_text())
        others = [each for each in document["attempts"] if each["attempt"] != attempt]
        self.put("run.json", {**document, "attempts": [*others, entry]})
        if claim:
            self.put(f"attempts/{attempt:04d}-{worker}.json", entry)

    def put(self, key: str, document: Any) -> None:
        """Write a JSON document."""
        self.write(key, json.dumps(document).encode())

    def write(self, key: str, data: bytes) -> None:
        """Write a file, completely or not at all."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{path.name}")
        temporary.write_bytes(data)
        temporary.rename(path)

    def add(
        self,
        name: str,
        values: Array | float | None = None,
        *,
        step: int,
        mode: str = "TRAIN",
        mode_step: int | None = None,
        kind: str = "weight",
        origin: str | None = None,
        call: int = 0,
        parts: int = 1,
        payload: bool = True,
        stats: bool = True,
        status: str = "ok",
        reason: str | None = None,
        **columns: Any,
    ) -> None:
        """Add one tensor, in one row or `parts` rows. values None: a row without a value (absent, skipped).

        columns: values of index columns that replace the computed ones, in every row (for hostile rows).
        """
        array = None if values is None else np.asarray(values)
        flat = None if array is None else np.ravel(array)
        cuts = [0] if flat is None else [len(flat) * part // parts for part in range(parts)]
        for part, begin in enumerate(cuts):
            end = 0 if flat is None else (cuts[part + 1] if part + 1 < len(cuts) else len(flat))
            piece = None if flat is None else flat[begin:end]
            row: dict[str, Any] = dict.fromkeys(SCHEMA.names)
            row |= {
                "attempt": self.attempt, "worker": self.worker, "ticket": self.ticket, "mode": mode,
                "kind": kind, "mode_step": step if mode_step is None else mode_step, "step": step,
                "name": name, "origin": origin, "seq": self._seq.get(step, 0), "call": call, "part": part,
                "parts": len(cuts),
                "dtype": None if array is None else dtype_name(array),
                "shape": None if array is None else list(array.shape),
                "element_offset": begin, "elements": end - begin, "time_ns": self.epoch_ns + self.ticket,
                "status": status, "reason": reason,
            }  # fmt: skip
            if piece is not None and stats:
                row |= statistics(piece)
            keep = payload and piece is not None
            self._pending.append(_Pending(row | columns, raw(piece) if keep and piece is not None else None))
            self._seq[step] = self._seq.get(step, 0) + 1
            self.ticket += 1

    def mark_step_end(self, step: int) -> None:
        """Add a record without rows: the step and all steps before it are over; -1: steps will be marked."""
        self._whole = step
        self.ticket += 1

    def skip_tickets(self, number: int) -> None:
        """Add records without rows."""
        self.ticket += number

    def flush(self, **columns: Any) -> str | None:
        """Write what was added: a segment, then an index file; return its key.

        Returns None if there are no tickets.
        """
        if self.ticket == self._first:
            return None
        stem = f"{self.attempt:04d}-{self._first:012d}-{self.ticket - 1:012d}"
        with_data = [each for each in self._pending if each.data is not None]
        if with_data:
            tensors = []
            used: set[str] = set()
            for each in with_data:
                key = _key(each.row, used)
                count = each.row["elements"]
                tensors.append((key, str(each.row["dtype"]), [count], each.data or b""))
            data, offsets = segment_bytes(tensors)
            self.write(f"data/{self.worker}/{stem}.safetensors", data)
            for each, offset in zip(with_data, offsets, strict=True):
                place = {
                    "segment": f"{stem}.safetensors", "offset": offset, "nbytes": len(each.data or b""),
                    "crc32c": crc32c(each.data or b""),
                }  # fmt: skip
                each.row |= {name: value for name, value in place.items() if each.row[name] is None}
        key = f"index/{self.worker}/{stem}.parquet"
        self.write(key, index_bytes([each.row | columns for each in self._pending], whole_step=self._whole))
        self._pending = []
        self._whole = None
        self._first = self.ticket
        return key

    def end(self, *, clean: bool = True, **fields: Any) -> None:
        """Write the end file."""
        document = {"format": 1, "worker": self.worker, "attempt": self.attempt, "clean": clean}
        document |= {"drops": {}, "gaps": []}
        self.put(f"end/{self.worker}/{self.attempt:04d}.json", document | fields)

    def index_files(self) -> list[Path]:
        """Return the index files of this worker and attempt, in order."""
        return sorted((self.root / "index" / self.worker).glob(f"{self.attempt:04d}-*.parquet"))

    def merge(self, *, segments: bool = False, delete: bool = True) -> str:
        """Merge all index files (and segments) into one, then delete the small ones, as a merger does."""
        files = self.index_files()
        ranges = [re.findall(r"-(\d{12})", file.name) for file in files]
        stem = f"{self.attempt:04d}-{ranges[0][0]}-{ranges[-1][1]}"
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        told = [json.loads(pq.read_schema(file).metadata[b"tdcore"])["whole_step"] for file in files]
        old = {row["segment"] for row in rows if row["segment"]}
        if segments and old:
            folder = self.root / "data" / self.worker
            tensors = []
            used: set[str] = set()
            for row in rows:
                if row["segment"]:
                    whole = (folder / row["segment"]).read_bytes()
                    data = whole[row["offset"] : row["offset"] + row["nbytes"]]
                    tensors.append((_key(row, used), row["dtype"], [row["elements"]], data))
            blob, offsets = segment_bytes(tensors)
            self.write(f"data/{self.worker}/{stem}.safetensors", blob)
            places = iter(offsets)
            for row in rows:
                if row["segment"]:
                    row |= {"segment": f"{stem}.safetensors", "offset": next(places)}
        key = f"index/{self.worker}/{stem}.parquet"
        whole = max((step for step in told if step is not None), default=None)
        self.write(key, index_bytes(rows, whole_step=whole))
        if delete:
            for file in files:
                if file.name != f"{stem}.parquet":
                    file.unlink()
            if segments:
                for segment in old - {f"{stem}.safetensors"}:
                    (self.root / "data" / self.worker / str(segment)).unlink()
        return key


def _key(row: dict[str, Any], used: set[str]) -> str:
    key = f"{row['name']}@{row['step']}"
    key += f":{row['call']}" if row["call"] else ""
    key += f"+{row['part']}" if row["parts"] > 1 else ""
    unique, number = key, 2
    while unique in used:
        unique, number = f"{key}~{number}", number + 1
    used.add(unique)
    return unique


def index_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows as a table of the index."""
    columns = []
    for field in SCHEMA:
        values = [row[field.name] for row in rows]
        if pa.types.is_dictionary(field.type):
            columns.append(pa.array(values, pa.string()).dictionary_encode())
        else:
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def index_bytes(
    rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA, *, whole_step: int | None = None
) -> bytes:
    """Return an index file of these rows. whole_step: the last step that is marked as over."""
    told = {b"tdcore": json.dumps({"whole_step": whole_step}).encode()}
    return parquet_bytes(index_table(rows).select(schema.names).replace_schema_metadata(told))


def parquet_bytes(table: pa.Table) -> bytes:
    """Return a table as Parquet, with checksums of its pages."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())
