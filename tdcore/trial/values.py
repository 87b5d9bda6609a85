"""read_values: read the values of one capture, even if its segment was merged in the meantime.

Threads: see Index and Payloads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.errors import SinkKeyError
from tdcore.trial.index import Index, Rows
from tdcore.trial.payload import PayloadPart, Payloads

__all__ = ["expect_values", "read_singles", "read_values"]

_BESIDE = 10_000  # number of rows that are searched for neighbours
_MOVES = 20  # maximum number of merges of the segment between the search and the opening


def read_values(index: Index, payloads: Payloads, rows: Rows, what: str) -> npt.NDArray[Any]:
    """The values of one capture. Read-only.

    Small segments are merged while the run is written. If a segment was deleted, the new place of its bytes
    is read from the index.

    Args:
        index: The index of the run.
        payloads: The payloads of the run.
        rows: The parts of the capture, in order; only rows with a payload.
        what: Tensor and step, for messages.

    Raises:
        SinkKeyError: The bytes are lost.
        RunCorrupt: The rows or the bytes are invalid.
    """
    shape = index.wide("shape", rows[:1])[0].as_py()
    dtype = index.text("dtype", int(rows[0])) or "none"
    for _ in range(_MOVES):
        with suppress(SinkKeyError):
            return payloads.read(_pieces(index, rows), dtype, shape, what)
        if not index.relocate(rows):
            break
    return payloads.read(_pieces(index, rows), dtype, shape, what)


def read_singles(
    index: Index, payloads: Payloads, rows: Rows, what: Callable[[int], str]
) -> Iterator[npt.NDArray[Any] | None]:
    """The values of captures of one row each; None if they were not saved or are lost. Read-only.

    The index is read once for all captures. what: returns the tensor and step of a row, for messages. Raises
    RunCorrupt.
    """
    ok = index.column("status")[rows] == index.dictionaries["status"].code("ok")
    saved = ok & (index.column("segment")[rows] >= 0)
    steps = index.column("step")[rows].tolist()
    shapes = index.wide("shape", rows).to_pylist()
    pieces = _pieces(index, rows)
    expected = 0  # payloads before this position were announced
    for at, row in enumerate(rows.tolist()):
        if at == expected:
            expected += payloads.expect(pieces[at:])
        if not (saved[at] or (ok[at] and pieces[at].elements == 0)):
            yield None
            continue
        dtype = index.text("dtype", row) or "none"
        try:
            values = payloads.read([pieces[at]], dtype, shapes[at], what(steps[at]))
        except SinkKeyError:  # its segment was merged or is lost
            values = None
            with suppress(SinkKeyError):
                values = read_values(index, payloads, rows[at : at + 1], what(steps[at]))
            if values is not None:  # most likely the others have moved too
                pieces[at + 1 :] = _pieces(index, rows[at + 1 :])
                expected = at + 1
        yield values


def expect_values(index: Index, payloads: Payloads, row: int, rows: Rows) -> None:
    """Announce the neighbours of `row` before read_values() reads it: they are likely to be read too.

    Neighbours are the rows among `rows` of the same kind and segment: a reader of one output of a step
    usually reads all outputs.
    """
    if payloads.holds(_pieces(index, np.array([row]))[0]):
        return
    rows = rows[:_BESIDE]
    alike = np.ones(len(rows), dtype=np.bool_)
    for name in ("worker", "segment", "kind"):
        column = index.column(name)
        alike &= column[rows] == column[row]
    payloads.expect(_pieces(index, rows[alike]))


def _pieces(index: Index, rows: Rows) -> list[PayloadPart]:
    elements, starts = (index.wide(name, rows).to_pylist() for name in ("elements", "element_offset"))
    offset, nbytes, crc32c = (index.column(name)[rows].tolist() for name in ("offset", "nbytes", "crc32c"))
    return [
        PayloadPart(
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
