"""read_values: the values of one capture, wherever its segment is by now.

Threads: as the Index and the Payloads that are given.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy.typing as npt

from tdcore.errors import SinkKeyError
from tdcore.trial.index import Index, Rows
from tdcore.trial.payload import Payloads, Piece

__all__ = ["read_values"]

_MOVES = 20  # so often may the segment be merged away between looking and opening


def read_values(index: Index, payloads: Payloads, rows: Rows, what: str) -> npt.NDArray[Any]:
    """The values of the capture that these rows are the parts of, in order. Read-only.

    Small segments are merged while the run is written: where one is gone, the index tells where its bytes
    went. what: names the tensor and step in messages. Raises SinkKeyError when the bytes are nowhere,
    RunCorrupt when anything does not fit. Rows without a payload must not be given.
    """
    shape = index.wide("shape", rows[:1])[0].as_py()
    dtype = index.text("dtype", int(rows[0])) or "none"
    for _ in range(_MOVES):
        with suppress(SinkKeyError):
            return payloads.read(_pieces(index, rows), dtype, shape, what)
        if not index.relocate(rows):
            break
    return payloads.read(_pieces(index, rows), dtype, shape, what)


def _pieces(index: Index, rows: Rows) -> list[Piece]:
    elements, starts = (index.wide(name, rows).to_pylist() for name in ("elements", "element_offset"))
    offset, nbytes, crc32c = (index.column(name)[rows].tolist() for name in ("offset", "nbytes", "crc32c"))
    return [
        Piece(
            worker=index.text("worker", row) or "",
            segment=index.text("segment", row) or "",
            offset=offset[at],
            nbytes=nbytes[at],
            crc32c=crc32c[at],
            elements=elements[at],
            element_offset=starts[at],
        )
        for at, row in enumerate(rows.tolist())
    ]
