"""Spool: a queue of objects on the local disk that could not be uploaded to their bucket yet.

    <folder>/spool.json           the place, the worker and the attempt
    <folder>/objects/<number>     one object: a header of 4096 bytes (JSON: key, size, crc32c), then its bytes
    <folder>/damaged/<number>     an object whose bytes do not match their checksum
    <folder>/lock                 locked by the process that uses the spool; no other process changes it
    <folder>/journal              the journal of the flushers (tdcore.flusher.upload_journal)

An object is written to a temporary file, flushed to the disk and renamed, so that the object is complete or
missing after a crash. Its checksum is computed from the memory before the write, and compared before the
upload.

Threads: any; one process at a time (`lock`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tdcore.errors import RunCorrupt, RunNotFound, UnsupportedFormat
from tdcore.sinks.base import Buffer, SinkError, SinkKeyError, check_key
from tdcore.sinks.local import LocalSink

__all__ = ["Spool", "SpoolEntry", "SpoolInUseError", "count_objects", "crc32c_of", "find_spools"]

_FORMAT = 1
_ABOUT = "spool.json"
_OBJECTS = "objects"
_DAMAGED = "damaged"
_HEADER_BYTES = 4096  # a page, so that the bytes after it can be written by direct I/O
_LOCK_ROUNDS = 100


class SpoolInUseError(SinkError):
    """Another process uses the spool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolEntry:
    """One object in the spool. number: its position in the queue. size: in bytes."""

    number: int
    key: str
    size: int
    crc32c: int


class Spool:
    """The spool in `folder`, which need not exist. It is neither read nor changed before lock().

    Args:
        folder: The folder.
        url: Place of the run. None: read from the folder, which must be a spool.
        limit_bytes: Maximum size of the spool; append() raises SinkError above this size.
        about: Further fields of spool.json (worker, attempt, run_id); None if unknown.

    `found_damaged` lists objects that lock() moved aside because their header is unreadable.

    Raises:
        RunNotFound: The folder is not a spool.
        RunCorrupt: spool.json cannot be read.
        UnsupportedFormat: The spool is of another version of the format.
    """

    def __init__(
        self, folder: Path, *, url: str | None = None, limit_bytes: int | None = None, **about: Any
    ) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._files = LocalSink(folder)
        self._mutex = threading.Lock()  # guards _entries, _next and bytes
        self._lock_fd = -1
        self.bytes = 0
        self.found_damaged: list[Path] = []
        self._entries: dict[int, SpoolEntry] = {}
        known = {name: value for name, value in about.items() if value is not None}
        self.about: dict[str, Any] = {"format": _FORMAT, "url": url, **known} if url else self._read_about()
        self._about_written = False
        self._next = 0

    @property
    def url(self) -> str:
        """Place of the run."""
        return str(self.about["url"])

    @property
    def run_id(self) -> str:
        """Id of the run of the objects; "" if it is unknown."""
        return str(self.about.get("run_id") or "")

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[SpoolEntry]:
        """The waiting objects, oldest first."""
        with self._mutex:
            return [self._entries[number] for number in sorted(self._entries)]

    def lock(self) -> None:
        """Lock the spool for this process until close(), and read its entries. Later calls have no effect.

        Raises SpoolInUseError, SinkError.
        """
        if self._lock_fd >= 0:
            return
        try:
            self._lock_fd = self._take_lock()
        except BlockingIOError as error:
            raise SpoolInUseError(
                f"the spool {self.folder} is in use by another process, which uploads the spool; try again "
                "when the process has ended"
            ) from error
        except OSError as error:
            raise SinkError(
                f"cannot use the spool {self.folder}: {error.strerror}; name another with ?spool=FOLDER",
                kind="denied",
                errno=error.errno,
            ) from error
        try:
            self._load()
        except BaseException:
            self._release()
            raise

    def _take_lock(self) -> int:
        """A descriptor of the locked lock file. A lock on a file that was removed is not used."""
        path = self.folder / "lock"
        for _ in range(_LOCK_ROUNDS):
            with contextlib.suppress(FileNotFoundError):  # the last user of the folder has just removed it
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.fstat(descriptor), path.stat()):
                        return descriptor
                except FileNotFoundError:
                    pass
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)
        raise BlockingIOError(errno.EAGAIN, "another process removes the lock file each time")

    def _release(self) -> None:
        os.close(self._lock_fd)
        self._lock_fd = -1

    def append(self, key: str, parts: Sequence[Buffer]) -> SpoolEntry:
        """Store an object after all other objects, durably. Call lock() first.

        Raises SinkError: "full" if the limit or the disk is full, "denied" or "transient".
        """
        if self._lock_fd < 0:
            raise SinkError(f"the spool {self.folder} is closed: call lock() before an object is added")
        size = sum(memoryview(part).nbytes for part in parts)
        with self._mutex:
            if self._limit is not None and self.bytes + size > self._limit:
                raise SinkError(
                    f"the spool {self.folder} is full: its limit is {self._limit} bytes; raise spool_gib, or "
                    "wait until the bucket has caught up",
                    kind="full",
                )
            number, self._next = self._next, self._next + 1
            self.bytes += size
        entry = SpoolEntry(number=number, key=check_key(key), size=size, crc32c=crc32c_of(parts))
        try:
            self._write_about()
            self._files.put(f"{_OBJECTS}/{number:012d}", [_header(entry), *parts])
        except SinkError as error:
            with self._mutex:
                self.bytes -= size
            kind = "transient" if error.kind == "gone" else error.kind  # "gone" would refer to the run
            raise SinkError(f"the spool: {error}", kind=kind, errno=error.errno) from error
        with self._mutex:
            self._entries[number] = entry
        return entry

    def read(self, entry: SpoolEntry) -> memoryview:
        """The bytes of an object.

        The bytes are read and not mapped, because a failing disk kills a process that uses a mapping.

        Raises:
            RunCorrupt: The bytes do not match their checksum.
            SinkError: The bytes cannot be read now.
        """
        path = self._path(entry)
        try:
            data = memoryview(path.read_bytes())[_HEADER_BYTES:]
        except FileNotFoundError as error:
            raise RunCorrupt(f"{path} ({entry.key}) was removed by another process") from error
        except OSError as error:
            raise SinkError(
                f"cannot read {path} of the spool: {error.strerror}", errno=error.errno
            ) from error
        if len(data) != entry.size or crc32c_of([data]) != entry.crc32c:
            raise RunCorrupt(f"{path} ({entry.key}) is damaged: its checksum does not match")
        return data

    def remove(self, entry: SpoolEntry) -> None:
        """Remove an object that was uploaded."""
        self._path(entry).unlink(missing_ok=True)
        self._forget(entry)

    def set_aside(self, entry: SpoolEntry) -> Path:
        """Move a damaged object to another folder, and return its path. Raises SinkError."""
        place = self._move_away(self._path(entry))
        self._forget(entry)
        return place

    def _move_away(self, path: Path) -> Path:
        place = self.folder / _DAMAGED / path.name
        try:
            place.parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.rename(place)
        except OSError as error:
            raise SinkError(
                f"cannot move the damaged file {path} of the spool: {error.strerror}", errno=error.errno
            ) from error
        return place

    def close(self) -> None:
        """Release the lock. The folder of an empty spool is removed."""
        if self._lock_fd < 0:
            return
        if not self._entries and not self.damaged:
            self._remove_folder()
        self._release()

    def _remove_folder(self) -> None:
        """Remove the folder unless it has unknown files: first the objects, last the lock."""
        with contextlib.suppress(OSError):
            for folder in (_OBJECTS, _DAMAGED):
                with contextlib.suppress(FileNotFoundError):
                    (self.folder / folder).rmdir()
            for file in (_ABOUT, "lock"):
                (self.folder / file).unlink(missing_ok=True)
            for folder_above in [self.folder, *self.folder.parents[:2]]:
                folder_above.rmdir()  # also the folders of worker and run, if they are empty

    def _forget(self, entry: SpoolEntry) -> None:
        with self._mutex:
            if self._entries.pop(entry.number, None) is not None:
                self.bytes -= entry.size

    def _path(self, entry: SpoolEntry) -> Path:
        return self.folder / _OBJECTS / f"{entry.number:012d}"

    def _read_about(self) -> dict[str, Any]:
        path = self.folder / _ABOUT
        try:
            about = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise RunNotFound(f"{self.folder} is not a spool: it has no {_ABOUT}") from error
        except (OSError, ValueError) as error:
            raise RunCorrupt(f"{path} cannot be read: {error}") from error
        if not isinstance(about, dict) or not isinstance(about.get("url"), str):
            raise RunCorrupt(f"{path} does not describe a spool that this version supports")
        if about.get("format") != _FORMAT:
            raise UnsupportedFormat(
                f"{path} is of format {about.get('format')!s:.80}, this version of tdcore reads format "
                f"{_FORMAT}; upload the spool with the version that wrote it"
            )
        return about

    def _write_about(self) -> None:
        if not self._about_written:
            known = {"host": socket.gethostname(), "pid": os.getpid(), "created_ns": time.time_ns()}
            self._files.put(_ABOUT, [json.dumps({**known, **self.about}, indent=1).encode()])
            self._about_written = True

    def _load(self) -> None:
        """Remove temporary files and read the entries."""
        self._files.clean(f"{_OBJECTS}/")
        entries, found_damaged = {}, []
        for key in self._files.list(f"{_OBJECTS}/"):
            name = key.rpartition("/")[2]
            if not name.isdecimal():
                continue
            try:
                header = self._files.get_ranges(key, [(0, _HEADER_BYTES)])[0]
            except SinkKeyError:  # a user removed it
                continue
            entry = _parse_header(int(name), header)
            if entry is None:
                found_damaged.append(self._move_away(self.folder / key))
            else:
                entries[entry.number] = entry
        aside = [int(path.name) for path in self.damaged if path.name.isdecimal()]
        with self._mutex:
            self._entries = entries
            self.found_damaged = found_damaged
            self.bytes = sum(entry.size for entry in entries.values())
            self._next = max([*entries, *aside], default=-1) + 1

    @property
    def damaged(self) -> list[Path]:
        """Damaged objects that were moved aside."""
        return sorted((self.folder / _DAMAGED).glob("*"))


def find_spools(place: Path) -> list[Path]:
    """All spools among `place` and the folders below it, sorted. Folders may change at the same time."""
    found = []
    for folder, below, files in os.walk(place):
        if _ABOUT in files:
            found.append(Path(folder))
            below.clear()
    return sorted(found)


def count_objects(folder: Path) -> tuple[int, int]:
    """Numbers of waiting and damaged objects of the spool in `folder`, counted without its lock."""

    def count(name: str) -> int:
        try:
            return sum(each.isdecimal() for each in os.listdir(folder / name))
        except OSError:
            return 0

    return count(_OBJECTS), count(_DAMAGED)


def crc32c_of(parts: Sequence[Buffer]) -> int:
    """CRC32C of the parts as one sequence of bytes."""
    import tdcore._core as _core

    checksum = 0
    for part in parts:
        checksum = _core.crc32c(part, checksum)
    return checksum


def _header(entry: SpoolEntry) -> bytes:
    text = json.dumps(
        {"format": _FORMAT, "key": entry.key, "size": entry.size, "crc32c": entry.crc32c}
    ).encode()
    if len(text) >= _HEADER_BYTES:
        raise ValueError(f"the key {entry.key!r} is too long")
    return text.ljust(_HEADER_BYTES - 1) + b"\n"


def _parse_header(number: int, header: Buffer) -> SpoolEntry | None:
    try:
        raw = json.loads(bytes(header))
        if raw["format"] != _FORMAT:
            return None
        key = check_key(raw["key"])
        return SpoolEntry(number=number, key=key, size=int(raw["size"]), crc32c=int(raw["crc32c"]))
    except (ValueError, KeyError, TypeError):
        return None
