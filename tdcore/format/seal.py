"""Seal of a catalogue: a checksum of the encoded columns that the catalogue describes, for each row group.

The catalogue of a file is correct for a row group whose bytes have the checksum of the seal, so a reader does
not decode these columns to compare them with the catalogue. The seal also has the columns of counts whose
values are all equal in a row group, which a reader does not decode either. Plain values, any thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.format.packed import Ints, packed, unpacked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CONSTANT_COLUMNS", "SEALED_COLUMNS", "Seal", "SealBuilder", "sealed_places"]

# Columns that describe the place of a row; the catalogue and the name of the file have their values.
SEALED_COLUMNS = ("attempt", "worker", "mode", "mode_step", "step", "name", "kind", "status")
_COUNTS = ("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count")
CONSTANT_COLUMNS = ("call", "part", "parts", "element_offset", "elements", *_COUNTS)
_COLUMNS = frozenset((*SEALED_COLUMNS, *CONSTANT_COLUMNS))
_MAX_COUNT = 1 << 53
_MAX_INT32 = (1 << 31) - 1
_MAX_CRC = (1 << 32) - 1
_MAX_GROUPS = 1 << 16  # row groups of a file that a reader accepts
_LIMITS = dict.fromkeys(("call", "part", "parts"), _MAX_INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """Checksums of the row groups of a file.

    Attributes:
        worker, attempt: Those of all rows.
        crcs: For each row group, the CRC-32 of the bytes of SEALED_COLUMNS and of its constant columns, as
            they are in the file, one column chunk after the other.
        values: For each of CONSTANT_COLUMNS, the value of all rows of each row group; -1 if the rows have
            different values or nulls.
    """

    worker: str
    attempt: int
    crcs: Ints
    values: Mapping[str, Ints]

    def to_document(self) -> dict[str, Any]:
        """The seal as JSON values."""
        values = {name: packed(self.values[name]) for name in CONSTANT_COLUMNS}
        return {"worker": self.worker, "attempt": self.attempt, "crcs": packed(self.crcs), "values": values}

    @classmethod
    def of_document(cls, document: Mapping[str, Any], rows: int) -> Seal:
        """The seal of a document. rows: number of rows of the file. Raises ValueError if it is impossible."""
        most = min(rows, _MAX_GROUPS)
        crcs = unpacked(document["crcs"], most)
        if len(crcs) and (crcs.min() < 0 or crcs.max() > _MAX_CRC):
            raise ValueError("its catalogue has an impossible checksum in the seal")
        values = {name: unpacked(document["values"][name], most) for name in CONSTANT_COLUMNS}
        for name, column in values.items():
            if len(column) != len(crcs) or (column < -1).any() or (column > _limit(name)).any():
                raise ValueError(f"its catalogue has an impossible value in the seal of {name!r}")
        return cls(worker=str(document["worker"]), attempt=int(document["attempt"]), crcs=crcs, values=values)

    def constants(self, group: int) -> dict[str, int]:
        """The constant columns of a row group, with their values."""
        return {name: int(column[group]) for name, column in self.values.items() if column[group] >= 0}

    def matches(
        self,
        metadata: Any,
        groups: Sequence[int],
        data: memoryview,
        places: Mapping[str, int] | None = None,
    ) -> bool:
        """Whether the bytes of row groups are those that were sealed.

        Args:
            metadata: The pyarrow metadata of the file.
            groups: The row groups.
            data: The bytes of the file.
            places: The result of `sealed_places`, for several calls; None: it is computed.
        """
        if metadata.num_row_groups != len(self.crcs):
            return False
        places, left = sealed_places(metadata.schema) if places is None else places, len(data)
        for group in groups:
            constants = self.constants(group)
            chunks = _chunks(metadata.row_group(group), places, constants)
            left -= sum(end - first for first, end in chunks)
            if left < 0:  # chunks that overlap would be read many times
                return False
            if _crc(chunks, data) != int(self.crcs[group]):
                return False
        return True


class SealBuilder:
    """Computes a seal: call add() with the rows of each row group, in order, then finish()."""

    def __init__(self) -> None:
        self._workers: set[str | None] = set()
        self._values: dict[str, list[int]] = {name: [] for name in ("attempt", *CONSTANT_COLUMNS)}

    def add(self, table: pa.Table) -> None:
        """Add a row group."""
        import pyarrow.compute as pc

        for name, values in self._values.items():
            column = table.column(name)
            extremes = pc.min_max(column)
            low, high = extremes["min"].as_py(), extremes["max"].as_py()
            same = not column.null_count and low is not None and 0 <= low == high <= _limit(name)
            values.append(low if same else -1)
        self._workers.update(pc.unique(table.column("worker")).to_pylist())

    def finish(self, metadata: Any, data: memoryview) -> Seal | None:
        """The seal of the written file; None if the rows are of several workers or attempts.

        Args:
            metadata: The pyarrow metadata of the file.
            data: The bytes of the file.
        """
        attempts = self._values["attempt"]
        (*workers,) = self._workers
        if metadata.num_row_groups != len(attempts) or len(workers) != 1 or len(set(attempts)) != 1:
            return None
        if attempts[0] < 0 or workers[0] is None:
            return None
        values = {name: np.array(self._values[name], dtype=np.int64) for name in CONSTANT_COLUMNS}
        places, crcs = sealed_places(metadata.schema), []
        for group in range(metadata.num_row_groups):
            constants = [name for name in CONSTANT_COLUMNS if values[name][group] >= 0]
            crcs.append(_crc(_chunks(metadata.row_group(group), places, constants), data))
        return Seal(
            worker=workers[0], attempt=attempts[0], crcs=np.array(crcs, dtype=np.int64), values=values
        )


def _limit(name: str) -> int:
    return _LIMITS.get(name, _MAX_COUNT)


def sealed_places(schema: Any) -> dict[str, int]:
    """Position of each column of a Parquet schema that is not nested, and that a seal can have."""
    places = {name: at for at, name in enumerate(schema.names) if name in _COLUMNS}
    return {name: at for name, at in places.items() if schema.column(at).path == name}


def _chunks(group: Any, places: Mapping[str, int], constants: Container[str]) -> list[tuple[int, int]]:
    """First byte and end of the column chunks of SEALED_COLUMNS and `constants`, in the order of the seal.

    Neighbouring chunks are joined. Empty if the file lacks one of the columns.
    """
    found: list[tuple[int, int]] = []
    for name in (*SEALED_COLUMNS, *(name for name in CONSTANT_COLUMNS if name in constants)):
        if name not in places:
            return []
        chunk = group.column(places[name])
        first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        end = first + chunk.total_compressed_size
        if found and found[-1][1] == first <= end:
            found[-1] = (found[-1][0], end)
        else:
            found.append((first, end))
    return found


def _crc(chunks: Sequence[tuple[int, int]], data: memoryview) -> int:
    """The CRC-32 of the bytes of chunks; -1 if there is none, or if one is outside the file."""
    crc = 0 if chunks else -1
    for first, end in chunks:
        if not 0 <= first <= end <= len(data):
            return -1
        crc = zlib.crc32(data[first:end], crc)
    return crc
