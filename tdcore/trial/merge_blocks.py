"""Merged statistics of the rows of a selection, in blocks: memory for the result and for one block.

If a step is plain (Catalogue.plain) and of one worker, each row of it is a merged row, so the columns are
taken as they are. Threads: see Trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tdcore.trial.chunk import Codes
from tdcore.trial.held import Held
from tdcore.trial.index_file import NARROW
from tdcore.trial.merge_stats import MERGED_COLUMNS, checked_columns, plain_sources, plain_table
from tdcore.trial.statistics import DERIVED
from tdcore.trial.step_blocks import step_blocks
from tdcore.trial.stretches import IN_STRETCH

if TYPE_CHECKING:
    from tdcore.trial.reader import Reader, Selection

__all__ = ["merged_statistics", "plain_rows", "plain_stretches"]

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_BLOCK_ROWS = 1 << 20


def merged_statistics(
    reader: Reader, selection: Selection, columns: Sequence[str] | None, *, incomplete: bool
) -> pa.Table:
    """One row per tensor, step and call of a selection, see merge_stats.merged_table.

    incomplete: also the rows of steps that are not complete.
    """
    names = checked_columns([*MERGED_COLUMNS, *DERIVED] if columns is None else columns)
    tables = list(_tables(reader, selection, names, incomplete=incomplete))
    if not tables:
        return reader.merged(np.empty(0, dtype=np.int64), names)
    return pa.concat_tables(tables, promote_options="default").unify_dictionaries()


def plain_stretches(reader: Reader, chosen: Mask) -> Mask:
    """Mask of the chosen stretches of plain files, without steps that have several chosen stretches."""
    stretches = reader.index.stretches
    found = chosen & reader.index.plain_stretches
    at = np.flatnonzero(chosen)
    _, number, count = np.unique(stretches.column("step")[at], return_inverse=True, return_counts=True)
    found[at[count[number] > 1]] = False
    return found


def plain_rows(
    reader: Reader, selection: Selection, stretches: Mask, names: Sequence[str], narrow: Sequence[str] = ()
) -> Iterator[tuple[Ints, Codes, pa.Table]]:
    """The rows of plain stretches, in the order of the files, with columns of merged statistics.

    Yields:
        Rows, the narrow columns `narrow`, and the columns `names` of merge_stats.merged_table.
    """
    index, needed = reader.index, plain_sources(names)
    coded = [name for name in needed if name in NARROW and name not in IN_STRETCH]
    wide = [name for name in needed if name not in NARROW]
    for rows, codes, found in index.scan(
        selection.tests, stretches, [*dict.fromkeys([*narrow, *coded])], wide
    ):
        with index.holding(Held(rows, codes, found)):
            table = index.table(rows, needed)
        yield rows, codes, plain_table(table, names)


def _tables(
    reader: Reader, selection: Selection, names: Sequence[str], *, incomplete: bool
) -> Iterator[pa.Table]:
    """The merged rows in blocks, by step."""
    plain = _plain_begin(reader, selection.stretches)
    if plain.any():
        for rows, _, table in plain_rows(reader, selection, plain, names):
            kept = _kept(reader, reader.meant(rows, selection), incomplete=incomplete)
            yield table if len(kept) == len(rows) else table.take(pa.array(np.searchsorted(rows, kept)))
    for rows in step_blocks(reader, selection, selection.stretches & ~plain, _BLOCK_ROWS):
        kept = _kept(reader, rows, incomplete=incomplete)
        if len(kept):
            yield reader.merged(kept, names)


def _plain_begin(reader: Reader, chosen: Mask) -> Mask:
    """Mask of the first chosen stretches by step, as long as they are plain and in the order of the files."""
    found, plain = np.zeros(len(chosen), dtype=np.bool_), plain_stretches(reader, chosen)
    at = np.flatnonzero(chosen)
    at = at[np.argsort(reader.index.stretches.column("step")[at], kind="stable")]
    follows = plain[at] & (np.diff(at, prepend=-1) > 0)
    found[at[np.logical_and.accumulate(follows)]] = True
    return found


def _kept(reader: Reader, rows: Ints, *, incomplete: bool) -> Ints:
    return rows if incomplete else rows[reader.complete(rows)]
