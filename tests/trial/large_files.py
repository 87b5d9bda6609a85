"""Runs with large files, which readers read lazily, for tests."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tdcore.flusher import index_writer
from tdcore.format.catalogue import CATALOGUE_KEY, CatalogueBuilder
from tdcore.format.layout import INDEX_SCHEMA
from tdcore.trial import index_file, merge_blocks, parquet_file, view
from tests.trial.writer import RunWriter

EVERY_FILE, NO_FILE = 1, 1 << 40


@contextmanager
def large_files(rows: int, piece: int = 3) -> Iterator[None]:
    """Within the block, files with at least this number of rows are large; chunks have `piece` rows.

    The rows of two tensors are searched, and those of further tensors are sorted. Blocks of whole steps of
    runs with large files have about 5 rows.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "LAZY_ROWS", rows)
        patch.setattr(parquet_file, "_PIECE_ROWS", piece)
        patch.setattr(view, "_SEARCHES", 2)
        if rows == EVERY_FILE:
            patch.setattr(merge_blocks, "_BLOCK_ROWS", 5)
        yield


def rewrite(
    path: Path, change: Callable[[pa.Table], pa.Table] = lambda table: table, *, groups: int = 3
) -> None:
    """Write an index file again with other rows, the catalogue of the rows before, and small row groups."""
    table = pq.read_table(path)
    builder = CatalogueBuilder()
    for start in range(0, table.num_rows, 7):
        builder.add(table.slice(start, 7))
    metadata = {**table.schema.metadata, CATALOGUE_KEY: builder.finish().encode()}
    changed = change(table).replace_schema_metadata(metadata)
    temporary = path.with_name(f".tmp-{path.name}")
    pq.write_table(changed, temporary, row_group_size=groups)
    temporary.rename(path)


def merged_file(root: Path) -> tuple[Path, pa.Table]:
    """A run of one file with a catalogue; returns the file and its rows."""
    run = RunWriter(root)
    for step in range(20):
        for name in "abc":
            run.add(name, np.ones(3, dtype=np.float32), step=step, mode="EVAL" if step % 5 == 4 else "TRAIN")
    run.flush()
    run.end()
    (path,) = run.index_files()
    table = pq.read_table(path)
    rewrite(path, groups=10)
    return path, table


def seal(path: Path, *, groups: int = 6) -> None:
    """Write an index file again as a merge does, with a sealed catalogue and small row groups."""
    table = pq.read_table(path)
    metadata = {key: text for key, text in table.schema.metadata.items() if key != CATALOGUE_KEY}
    summary: Any = SimpleNamespace(to_metadata=lambda: metadata)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_writer, "ROWS_PER_GROUP", groups)
        writer = index_writer.IndexWriter(summary, catalogue=True)
        writer.write(table.select(INDEX_SCHEMA.names).replace_schema_metadata().cast(INDEX_SCHEMA))
        path.write_bytes(writer.finish())


def change_catalogue(
    path: Path, part: str, change: Callable[[dict[str, Any]], None], row_group_size: int
) -> None:
    """Write a file again with a changed part of its catalogue, which has the right checksum."""
    table, metadata = pq.read_table(path), pq.read_metadata(path).metadata
    document = json.loads(metadata[CATALOGUE_KEY][8:])
    change(document[part])
    text = json.dumps(document).encode()
    metadata = {**metadata, CATALOGUE_KEY: b"%08x" % zlib.crc32(text) + text}
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=row_group_size)
