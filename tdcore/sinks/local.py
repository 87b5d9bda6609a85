"""LocalSink: a run in a local folder.

A put writes a file whose name starts with ".tmp-" beside its place, flushes it to the disk, renames it, and
flushes the folder: durable and all or nothing, also across a power failure. Large aligned parts go by direct
I/O (`tdcore._core.write_file`), so that they do not evict the training's data from the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence

from tdcore.sinks.base import Buffer, SinkError, SinkErrorKind, SinkKeyError, check_key, check_prefix

__all__ = ["LocalSink"]

_TEMPORARY = ".tmp-"
_MAX_READ = 1 << 30  # the kernel reads at most 2 GiB at once
_KINDS: dict[int, SinkErrorKind] = {
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENOENT: "gone",
    errno.ENOTDIR: "gone",
    errno.ESTALE: "gone",
    errno.ENODEV: "gone",
    errno.ENXIO: "gone",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
}
_ADVICE: dict[SinkErrorKind, str] = {
    "full": "free space there, or raise the quota; writing goes on by itself",
    "gone": "the folder was removed or its mount is away; it is made again when possible",
    "denied": "check the folder's owner, mode and mount options",
    "transient": "will be tried again; if it stays, look at the disk or mount",
}


class LocalSink:
    """Folder `root`; made by the first put.

    Threads and processes: any number of them, each key with one writer at a time.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._made: set[str] = set()  # folders known to exist, so that one that vanished is noticed
        self._lock = threading.Lock()  # guards _made

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        self._put(key, parts, os.rename)

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new."""
        return not os.path.exists(self._path(key)) and self._put(key, parts, _link)

    def get(self, key: str) -> bytes:
        """See Sink.get."""
        return self._read(key, None)

    def tail(self, key: str, length: int) -> bytes:
        """See Sink.tail."""
        return self._read(key, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[Buffer]:
        """See Sink.get_ranges."""
        with self._opened(key) as descriptor:
            return [_read_exactly(descriptor, offset, length) for offset, length in ranges]

    def list(self, prefix: str, after: str = "") -> list[str]:
        """See Sink.list."""
        check_prefix(prefix)
        folder, _, _ = prefix.rpartition("/")
        found: list[str] = []
        try:
            _walk(self.root, folder, prefix, found)
        except OSError as error:
            raise self._mapped(error, f"list {prefix!r}") from error
        return sorted(key for key in found if key > after)

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._mapped(error, f"delete {key!r}") from error

    def clean(self, prefix: str) -> None:
        """See Sink.clean."""
        check_prefix(prefix)
        folder = os.path.join(self.root, *prefix.split("/")[:-1])
        try:
            for name in os.listdir(folder):
                if name.startswith(_TEMPORARY):
                    os.unlink(os.path.join(folder, name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._mapped(error, f"clean {prefix!r}") from error

    def close(self) -> None:
        """Nothing is held open between calls."""

    def _path(self, key: str) -> str:
        return os.path.join(self.root, *check_key(key).split("/"))

    def _put(self, key: str, parts: Sequence[Buffer], place: Callable[[str, str], object]) -> bool:
        path = self._path(key)
        try:
            self._make_folder(os.path.dirname(path))
            self._write(path, parts, place)
        except FileExistsError:
            return False
        except OSError as error:
            size = sum(memoryview(part).nbytes for part in parts)
            raise self._mapped(error, f"write {key!r} ({size} bytes)") from error
        return True

    def _read(self, key: str, length: int | None) -> bytes:
        with self._opened(key) as descriptor:
            size = os.fstat(descriptor).st_size
            offset = 0 if length is None else max(0, size - length)
            return _read_exactly(descriptor, offset, size - offset)

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        """A descriptor of the object's file."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                yield descriptor
            finally:
                os.close(descriptor)
            with self._lock:
                self._made.add(self.root)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise SinkKeyError(f"nothing under {key!r} in {self.root!r}", errno=error.errno) from error
        except OSError as error:
            raise self._mapped(error, f"read {key!r}") from error

    def _write(self, path: str, parts: Sequence[Buffer], place: Callable[[str, str], object]) -> None:
        from tdcore import _core

        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f"{_TEMPORARY}{os.urandom(8).hex()}-{name}"[:255])
        try:
            _core.write_file(temporary, parts)
            place(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    def _make_folder(self, folder: str) -> None:
        """Make `folder` and its parents, durably. ENOENT, once, when one that was there has been removed."""
        with self._lock:
            if self._made and not (
                os.path.isdir(self.root) and (folder not in self._made or os.path.isdir(folder))
            ):
                self._made.clear()
                raise FileNotFoundError(errno.ENOENT, "the run's folder was removed", self.root)
            if folder in self._made:
                return
            missing: list[str] = []
            while not os.path.isdir(folder):
                missing.append(folder)
                folder = os.path.dirname(folder)
            for each in reversed(missing):
                try:
                    os.mkdir(each)
                except FileExistsError:
                    if not os.path.isdir(each):
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), each) from None
                _sync_folder(os.path.dirname(each))
            self._made.update([self.root, folder, *missing])

    def _mapped(self, error: OSError, action: str) -> SinkError:
        kind = _KINDS.get(error.errno or 0, "transient")
        reason = error.strerror or str(error)
        return SinkError(
            f"cannot {action} in {self.root!r}: {reason}; {_ADVICE[kind]}", kind=kind, errno=error.errno
        )


def _walk(root: str, folder: str, prefix: str, found: list[str]) -> None:
    """Append to `found` the keys under `folder` that start with `prefix`."""
    path = os.path.join(root, *folder.split("/")) if folder else root
    try:
        entries = list(os.scandir(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name.startswith(_TEMPORARY):
            continue
        if entry.is_dir(follow_symlinks=False):
            if key.startswith(prefix) or prefix.startswith(key + "/"):
                _walk(root, key, prefix, found)
        elif key.startswith(prefix):
            found.append(key)


def _link(temporary: str, path: str) -> None:
    """Give `temporary` the name `path`; FileExistsError when that is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        # No hard links here: take the name first, then fill it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        os.rename(temporary, path)
    else:
        os.unlink(temporary)


def _read_exactly(descriptor: int, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on, fewer only where the file ends."""
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, min(length, _MAX_READ), offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder
            raise
    finally:
        os.close(handle)
