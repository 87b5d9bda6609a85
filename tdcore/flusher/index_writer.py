"""IndexWriter: index files from Arrow tables, optionally with a sealed catalogue.

The module imports pyarrow, so the flusher imports it only after its first heartbeat. Threads: one per writer.
"""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from tdcore.flusher.index_summary import IndexSummary
from tdcore.format.catalogue import CATALOGUE_KEY, CatalogueBuilder
from tdcore.format.layout import INDEX_SCHEMA
from tdcore.format.seal import SealBuilder

__all__ = ["ROWS_PER_GROUP", "IndexWriter"]

ROWS_PER_GROUP = 32768
_MAGIC = b"PAR1"  # first and last bytes of a Parquet file
_TAIL_BYTES = 4 + len(_MAGIC)  # length of the footer, and the last bytes
_DICTIONARY_COLUMNS = [
    *("attempt", "worker", "ticket", "mode", "mode_step", "step", "name", "kind", "origin", "call", "dtype"),
    *(
        "part",
        "parts",
        "element_offset",
        "elements",
        "time_ns",
        "status",
        "reason",
        "segment",
        "shape.list.element",
        "shard.global_shape.list.element",
        "shard.offset.list.element",
        "shard.partial",
    ),
    *("count", "nan_count", "pos_inf_count", "neg_inf_count", "zero_count", "subnormal_count", "log2_first"),
]
_STATISTICS_COLUMNS = ["step", "name", "ticket"]
# Encodings for columns that zstd alone compresses badly. Increasing numbers are stored as differences, small
# counts need a few bits instead of eight bytes, and the bytes of floats are grouped by position, so that
# zeros and exponents are adjacent. Compared with plain pages: 0.92 x the bytes, 0.65 x the CPU to write and
# to read.
_ENCODINGS = {
    **dict.fromkeys(("seq", "offset", "log2_counts.list.element"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(
        ("min", "max", "mean", "m2", "abs_sum", "square_sum", "abs_min", "abs_max"), "BYTE_STREAM_SPLIT"
    ),
}


class IndexWriter:
    """Writer of one index file in memory: call write() for each table, then finish().

    catalogue: whether the file gets a sealed catalogue, so that readers need not read its columns to list its
    steps and names.
    """

    def __init__(self, summary: IndexSummary, *, catalogue: bool = False) -> None:
        self._catalogue = CatalogueBuilder() if catalogue else None
        self._seal = SealBuilder()
        self._stream = io.BytesIO() if catalogue else pa.BufferOutputStream()
        self._schema = INDEX_SCHEMA.with_metadata(summary.to_metadata())
        self._writer = pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=_DICTIONARY_COLUMNS,
            column_encoding=_ENCODINGS,
            write_statistics=_STATISTICS_COLUMNS,
            write_page_checksum=True,  # readers verify the checksum, so a damaged page raises an error
        )

    def write(self, table: pa.Table) -> None:
        """Append a table as one row group, or as several if it is large."""
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        if self._catalogue is not None:
            self._catalogue.add(table)
            for start in range(0, table.num_rows, ROWS_PER_GROUP):
                self._seal.add(table.slice(start, ROWS_PER_GROUP))

    def finish(self) -> pa.Buffer:
        """Return the bytes of the file."""
        self._writer.close()
        if isinstance(self._stream, io.BytesIO):
            self._add_catalogue(self._stream)
            return pa.py_buffer(self._stream.getbuffer())
        return self._stream.getvalue()

    def _add_catalogue(self, stream: io.BytesIO) -> None:
        """Write the footer again, with the catalogue, whose seal needs the places of the columns."""
        assert self._catalogue is not None
        end = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        rows = pq.read_metadata(stream)
        with stream.getbuffer() as data:
            catalogue = replace(self._catalogue.finish(), seal=self._seal.finish(rows, data))
        with io.BytesIO() as footer:
            with pq.ParquetWriter(footer, self._schema) as writer:
                if not hasattr(writer, "add_key_value_metadata"):  # pyarrow 14 and 15
                    return
                writer.add_key_value_metadata({CATALOGUE_KEY: catalogue.encode()})
            metadata = pq.read_metadata(footer)
            metadata.append_row_groups(rows)
            footer.seek(0)
            metadata.write_metadata_file(footer)
            stream.seek(end - _TAIL_BYTES - rows.serialized_size)
            stream.truncate()
            stream.write(footer.getvalue()[len(_MAGIC) :])
