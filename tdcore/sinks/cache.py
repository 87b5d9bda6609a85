"""CachedSink: a sink with a local cache of index files that were read.

An index file never changes, so a copy of it is always valid. Copies are stored in $TDCORE_CACHE, else
$XDG_CACHE_HOME/tdcore, else ~/.cache/tdcore, in a folder for the place and id of the run, so a new run at the
same place has another folder. If the cache cannot be read or written, or a copy is damaged, the object is
read from the sink, without a log message.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tdcore.format.layout import INDEX_PREFIX
from tdcore.sinks.base import Buffer, ReadAheadSink, Sink, check_key

__all__ = ["CACHE_BYTES", "CachedSink", "DiskCache", "cache_folder"]

CACHE_BYTES = 1 << 30
_TRAILER = b"tdcache1"  # followed by 4 bytes: crc32c of all bytes before the trailer
_TRAILER_BYTES = len(_TRAILER) + 4
_LARGEST_SHARE = 4  # an object of more than a fourth of the cache is not stored
_LOOKS = 32  # the size of the cache is measured each time limit / 32 bytes were written
_ROOM = 0.9  # share of the limit that is used after old files were removed


def cache_folder() -> Path:
    """Folder of this user's copies, which need not exist."""
    chosen = os.environ.get("TDCORE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "tdcore"


class DiskCache:
    """Objects in files below `folder`, of at most about `limit` bytes.

    The least recently used files are removed first. Any number of threads and processes may share a folder.
    Errors of the disk are not raised.
    """

    def __init__(self, folder: Path, limit: int = CACHE_BYTES) -> None:
        self._folder = folder
        self._limit = limit
        self._unseen = limit  # bytes written since the size was last measured; unknown at first
        self._lock = threading.Lock()  # guards _unseen

    def get(self, name: str) -> bytes | None:
        """The object of this name; None if it is missing or damaged."""
        path = self._folder / name
        try:
            data = path.read_bytes()
        except OSError:
            return None
        body = memoryview(data)[:-_TRAILER_BYTES]
        if data[len(body) :] != _trailer(body):
            _remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # mark as used now
        return bytes(body)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, valid or not."""
        return (self._folder / name).is_file()

    def put(self, name: str, data: bytes) -> None:
        """Store an object, if possible."""
        if len(data) * _LARGEST_SHARE > self._limit:
            return
        path = self._folder / name
        temporary = path.with_name(f".tmp-{os.urandom(8).hex()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with temporary.open("xb") as file:
                file.write(data)
                file.write(_trailer(data))
            temporary.replace(path)
        except OSError:
            _remove(temporary)
            return
        with self._lock:
            self._unseen += len(data)
            due = self._unseen * _LOOKS >= self._limit
            if due:
                self._unseen = 0
        if due:
            self._shrink()

    def _shrink(self) -> None:
        """Remove the least recently used files if the cache is too large."""
        files = sorted(_files(self._folder))
        total = sum(size for _, size, _ in files)
        if total <= self._limit:
            return
        for _, size, path in files:
            if total <= self._limit * _ROOM:
                return
            _remove(Path(path))
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))  # fails unless the folder is empty
            total -= size


class CachedSink:
    """The sink `inner` with a cache of index files. Threads: see `inner`.

    Nothing is cached before `use` has set the id of the run.

    Args:
        inner: The sink.
        cache: The cache.
        place: Place of the run, so that runs of different places are not mixed.
    """

    def __init__(self, inner: Sink, place: str, cache: DiskCache | None = None) -> None:
        self.inner = inner
        self._place = place
        self._cache = cache if cache is not None else DiskCache(cache_folder())
        self._home = ""  # folder of this run's copies; "" while its id is unknown

    def use(self, run_id: str) -> None:
        """Set the id of the run from which objects are read."""
        self._home = hashlib.sha256(f"{self._place}\n{run_id}".encode(errors="replace")).hexdigest()[:32]

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        name = self._name(check_key(key))
        if name is None:
            return self.inner.get(key)
        data = self._cache.get(name)
        if data is None:
            data = self.inner.get(key)
            self._cache.put(name, data)
        return data

    def prefetch(self, keys: Sequence[str]) -> None:
        """See ReadAheadSink.prefetch."""
        if isinstance(self.inner, ReadAheadSink):
            named = [(key, self._name(key)) for key in keys]
            self.inner.prefetch([key for key, name in named if name is None or not self._cache.has(name)])

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        self.inner.put(key, parts)

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new."""
        return self.inner.put_new(key, parts)

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        return self.inner.tail(key, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        return self.inner.get_ranges(key, ranges)

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        return self.inner.list(prefix, after)

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        self.inner.delete(key)

    def clean(self, prefix: str) -> None:
        """See Sink.clean."""
        self.inner.clean(prefix)

    def close(self) -> None:
        """See Sink.close."""
        self.inner.close()

    def _name(self, key: str) -> str | None:
        """Name of an object in the cache; None if it is not cached."""
        if not self._home or not key.startswith(INDEX_PREFIX):
            return None
        return f"{self._home}/{key[len(INDEX_PREFIX) :]}"


def _trailer(body: bytes | memoryview) -> bytes:
    from tdcore import _core

    return _TRAILER + int(_core.crc32c(body)).to_bytes(4, "little")


def _files(folder: Path) -> Iterator[tuple[float, int, str]]:
    """(time of last use, bytes, path) of every file below a folder, as far as it can be read."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            with contextlib.suppress(OSError):
                status = os.stat(path, follow_symlinks=False)
                yield status.st_mtime, status.st_size, path


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
