"""Columns of Arrow tables as NumPy arrays. Pure functions, any thread."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["coded", "is_in", "numbers", "valid", "whole_numbers"]

Ints = npt.NDArray[np.int64]


def coded(table: pa.Table, name: str) -> tuple[Ints, list[str]]:
    """A column of texts as codes, and the text of each code. A null is the text ""."""
    column = table.column(name)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    if not len(column):
        return np.empty(0, dtype=np.int64), [""]
    texts: list[str] = column.chunk(0).dictionary.to_pylist()
    codes = np.concatenate(
        [
            np.asarray(chunk.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False), dtype=np.int64)
            for chunk in column.chunks
        ]
    )
    return codes, [*texts, ""]


def is_in(codes: Ints, texts: list[str], wanted: Iterable[str]) -> npt.NDArray[np.bool_]:
    """For each code, whether its text is one of the wanted texts."""
    chosen = set(wanted)
    found: npt.NDArray[np.bool_] = np.array([text in chosen for text in texts], dtype=np.bool_)[codes]
    return found


def numbers(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """A column of numbers; NaN for null."""
    column = table.column(name).cast(pa.float64(), safe=False)
    return np.asarray(column.fill_null(np.nan).to_numpy(), dtype=np.float64)


def whole_numbers(table: pa.Table, name: str) -> Ints:
    """A column of whole numbers without nulls."""
    return np.asarray(table.column(name).to_numpy(), dtype=np.int64)


def valid(table: pa.Table, name: str) -> npt.NDArray[np.bool_]:
    """For each row, whether the column is not null."""
    return np.asarray(table.column(name).is_valid().to_numpy(), dtype=np.bool_)
