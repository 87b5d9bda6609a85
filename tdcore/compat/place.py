"""Places that have a run or a recording of smdebug.

create_trial and `tdcore rules run` open a place that has a recording and no run.json as a RecordedRun. The
computed index files are kept in the cache of index files (tdcore/sinks/cache.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tdcore.compat.recorded_run import RecordedRun
from tdcore.compat.recording import is_recording
from tdcore.errors import RunNotFound, SinkKeyError
from tdcore.format.layout import RUN_KEY
from tdcore.sinks import open_sink, place_text, shown_place
from tdcore.sinks.base import Buffer, Sink, announce

__all__ = ["RunOrRecording", "recorded_run"]


def recorded_run(path: str | os.PathLike[str]) -> RecordedRun:
    """The recording at a place, as the files of a run. Raises RunNotFound if there is none."""
    url = place_text(path)
    sink = open_sink(url)
    if not is_recording(sink):
        sink.close()
        raise RunNotFound(
            f"{shown_place(url)} is not a recording of smdebug: it has no file such as "
            "collections/000000000/worker_0_collections.json; tdcore.create_trial opens runs of tdcore"
        )
    return RecordedRun(sink)


class RunOrRecording:
    """A sink of a run, or of a recording of smdebug as a run. Threads: see `inner`.

    Readers read run.json first. If it is missing and there are files of a recording, all later calls read the
    recording.
    """

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self._recorded: RecordedRun | None = None

    def get(self, key: str) -> bytes:
        """See Sink.get. Without a run.json the place may have a recording, which is then used."""
        try:
            return self._sink.get(key)
        except SinkKeyError:
            if key != RUN_KEY or self._recorded is not None or not is_recording(self._inner):
                raise
        self._recorded = RecordedRun(self._inner)
        return self._recorded.get(key)

    def prefetch(self, keys: Sequence[str]) -> None:
        """See ReadAheadSink.prefetch."""
        announce(self._sink, keys)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        self._sink.put(key, parts)

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new."""
        return self._sink.put_new(key, parts)

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        return self._sink.tail(key, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        return self._sink.get_ranges(key, ranges)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        return self._sink.list(prefix, after)

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        self._sink.delete(key)

    def clean(self, prefix: str) -> None:
        """See Sink.clean."""
        self._sink.clean(prefix)

    def close(self) -> None:
        """See Sink.close."""
        self._inner.close()

    @property
    def _sink(self) -> Sink:
        return self._inner if self._recorded is None else self._recorded
