"""NewSamples: reads the system samples of a run that were written since the last call.

A run that is still written has many small files, which the flusher merges meanwhile. For each worker and
attempt of a host, the reader keeps the number of the last sample that it has returned, so its memory is
small. Large files are returned in parts. Threads: belongs to one source of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from tdcore.errors import RunCorrupt, SinkError, SinkKeyError
from tdcore.format.layout import FileRange, live_ranges
from tdcore.format.system import SYSTEM_PREFIX, parse_system_key, system_key, system_schema
from tdcore.sinks.base import Sink
from tdcore.trial.index_file import reading
from tdcore.trial.system import open_samples

__all__ = ["NewSamples"]

_TRIES = 5  # files are merged while they are read
_ROWS = 8192  # of one table
_MAX_REMARKS = 20
Home = tuple[str, str, int]  # host, worker and attempt


class NewSamples:
    """Reads the samples of one run. sink: the run."""

    def __init__(self, sink: Sink) -> None:
        self.remarks: list[str] = []  # sentences about files that cannot be read
        self._sink = sink
        self._next: dict[Home, int] = {}  # number of the first sample that was not returned

    def position(self) -> dict[Home, int]:
        """State that a later reader of the same run needs; see `resume`."""
        return dict(self._next)

    def resume(self, position: Mapping[Home, int]) -> None:
        """Continue at the `position` of another reader."""
        self._next = dict(position)

    def read(self, run_id: str, wanted: Callable[[int], bool]) -> Iterator[pa.Table]:
        """The new samples as tables of a limited size, those of each worker in order.

        A file that cannot be read adds a sentence to `remarks`. A damaged file is left out; after another
        error the next call continues at this file.

        Args:
            run_id: Id of the run.
            wanted: Whether the samples of an attempt are read.
        """
        try:
            for _ in range(_TRIES):
                with suppress(SinkKeyError):  # a file was merged meanwhile
                    for host, place in self._files(wanted):
                        yield from self._file(host, place, run_id)
                    return
            self._remark("system samples could not be read: their files changed during each attempt")
        except SinkError as error:
            self._remark(f"system samples could not be read: {error}")

    def _files(self, wanted: Callable[[int], bool]) -> list[tuple[str, FileRange]]:
        """The files with new samples, in order of samples for each worker."""
        hosts: dict[str, list[FileRange]] = {}
        for key in self._sink.list(SYSTEM_PREFIX):
            parsed = parse_system_key(key)
            if parsed is not None and wanted(parsed[1].attempt):
                hosts.setdefault(parsed[0], []).append(parsed[1])
        return [
            (host, place)
            for host, places in sorted(hosts.items())
            for place in live_ranges(places)
            if place.last >= self._next.get((host, place.worker, place.attempt), 0)
        ]

    def _file(self, host: str, place: FileRange, run_id: str) -> Iterator[pa.Table]:
        key, home = system_key(host, place), (host, place.worker, place.attempt)
        data = self._sink.get(key)
        names = system_schema().names
        try:
            parquet = open_samples(data, key, place, run_id)
            with reading(key, "reading"):
                batches = parquet.iter_batches(_ROWS, columns=names)
            while True:
                with reading(key, "reading"):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    table = pa.Table.from_batches([batch]).select(names).cast(system_schema())
                    new = table.filter(pc.greater_equal(table["sample"], self._next.get(home, 0)))
                if new.num_rows:
                    self._next[home] = new["sample"][-1].as_py() + 1
                    yield new
        except RunCorrupt as error:
            self._remark(f"samples are left out: {error}")
        self._next[home] = place.last + 1

    def _remark(self, text: str) -> None:
        if text not in self.remarks and len(self.remarks) < _MAX_REMARKS:
            self.remarks.append(text)
