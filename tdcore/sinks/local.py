"""LocalSink: a run in a local folder.

A put writes a file whose name starts with ".tmp-" in the folder of the object, flushes it to the disk,
renames it, and flushes the folder. A put is therefore durable and atomic, even after a power failure. Large
aligned parts are written with direct I/O (`tdcore._core.write_file`), so that they do not evict the
training's data from the page cache.

The folder may come from another user. Below the folder the sink follows no link, waits for no FIFO and opens
no device (run_folder.py). Documents that exceed the size limit of their kind are not read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence

from tdcore.format.layout import size_limit
from tdcore.sinks.base import Buffer, SinkError, SinkErrorKind, SinkKeyError, check_key, check_prefix, is_key
from tdcore.sinks.run_folder import RunFolder, folder_path, path_below, sync_folder

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
    "full": "free space there, or raise the quota; tdcore then continues to write",
    "gone": "the folder was removed or is no longer mounted; tdcore creates it again when possible",
    "denied": "check the folder's owner, mode and mount options",
    "transient": "tdcore tries again; if the error stays, check the disk or mount",
}


class LocalSink:
    """A run in the folder `root`, which the first put creates.

    Threads and processes: any number, but one writer at a time for each key.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._folder = RunFolder(root)
        self.root = self._folder.root
        self._made: set[str] = set()  # folders known to exist, to detect a removed folder
        self._lock = threading.Lock()  # guards _made

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """See Sink.put."""
        self._put(key, parts, _rename)

    def put_new(self, key: str, parts: Sequence[Buffer]) -> bool:
        """See Sink.put_new."""
        return not self._exists(key) and self._put(key, parts, _link)

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
        try:
            found = list(self._folder.keys(folder, prefix))
        except OSError as error:
            raise self._mapped(error, f"list {prefix!r}") from error
        return sorted(key for key in found if key > after and is_key(key))

    def delete(self, key: str) -> None:
        """See Sink.delete."""
        above, name = _split(check_key(key))
        try:
            with self._folder.folder(above) as folder:
                os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._mapped(error, f"delete {key!r}") from error

    def clean(self, prefix: str) -> None:
        """See Sink.clean."""
        check_prefix(prefix)
        try:
            with self._folder.folder(prefix.rpartition("/")[0]) as folder:
                for name in os.listdir(folder):
                    if name.startswith(_TEMPORARY):
                        os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._mapped(error, f"clean {prefix!r}") from error

    def close(self) -> None:
        """Do nothing: no file is open between calls."""

    def _exists(self, key: str) -> bool:
        above, name = _split(check_key(key))
        try:
            with self._folder.folder(above) as folder:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._mapped(error, f"look for {key!r}") from error
        return True

    def _put(self, key: str, parts: Sequence[Buffer], place: Callable[[int, str, str], object]) -> bool:
        above, name = _split(check_key(key))
        try:
            self._make_root(above)
            with self._folder.folder(above, make=True) as folder:
                self._write(folder, above, name, parts, place)
        except FileExistsError:
            return False
        except OSError as error:
            size = sum(memoryview(part).nbytes for part in parts)
            raise self._mapped(error, f"write {key!r} ({size} bytes)") from error
        with self._lock:
            self._made.update([self.root, above])
        return True

    def _read(self, key: str, length: int | None) -> bytes:
        with self._opened(key, size_limit(key) if length is None else None) as descriptor:
            size = os.fstat(descriptor).st_size
            offset = 0 if length is None else max(0, size - length)
            return _read_exactly(descriptor, offset, size - offset)

    @contextlib.contextmanager
    def _opened(self, key: str, limit: int | None = None) -> Iterator[int]:
        """A descriptor of the object's file."""
        try:
            with self._folder.file(check_key(key), limit=limit) as descriptor:
                yield descriptor
            with self._lock:
                self._made.add(self.root)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise SinkKeyError(f"nothing under {key!r} in {self.root!r}", errno=error.errno) from error
        except OSError as error:
            raise self._mapped(error, f"read {key!r}") from error

    def _write(
        self,
        folder: int,
        above: str,
        name: str,
        parts: Sequence[Buffer],
        place: Callable[[int, str, str], object],
    ) -> None:
        from tdcore import _core

        temporary = f"{_TEMPORARY}{os.urandom(8).hex()}-{name}"[:255]
        try:
            _core.write_file(path_below(folder, folder_path(self.root, above), temporary), parts)
            place(folder, temporary, name)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise
        sync_folder(folder)

    def _make_root(self, above: str) -> None:
        """Create the root and its parents, durably.

        Raises an OSError with ENOENT, once, if a folder that existed has been removed.

        above: key of the folder that will be written to.
        """
        folder = folder_path(self.root, above)
        with self._lock:
            if self._made and not (
                os.path.isdir(self.root) and (above not in self._made or os.path.isdir(folder))
            ):
                self._made.clear()
                raise FileNotFoundError(errno.ENOENT, "the run's folder was removed", self.root)
            if self.root in self._made:
                return
            missing: list[str] = []
            folder = self.root
            while not os.path.isdir(folder):
                missing.append(folder)
                folder = os.path.dirname(folder)
            for each in reversed(missing):
                try:
                    os.mkdir(each)
                except FileExistsError:
                    if not os.path.isdir(each):
                        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), each) from None
                _sync_path(os.path.dirname(each))

    def _mapped(self, error: OSError, action: str) -> SinkError:
        if isinstance(error, SinkError):
            return error
        kind = _KINDS.get(error.errno or 0, "transient")
        reason = error.strerror or str(error)
        return SinkError(
            f"cannot {action} in {self.root!r}: {reason}; {_ADVICE[kind]}", kind=kind, errno=error.errno
        )


def _split(key: str) -> tuple[str, str]:
    """Folder and name of a key."""
    above, _, name = key.rpartition("/")
    return above, name


def _rename(folder: int, temporary: str, name: str) -> None:
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _link(folder: int, temporary: str, name: str) -> None:
    """Rename `temporary` to `name`. Raises FileExistsError if the name exists."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        # Without hard links: create the file first, then fill it.
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        os.close(os.open(name, flags, 0o666, dir_fd=folder))
        _rename(folder, temporary, name)
    else:
        os.unlink(temporary, dir_fd=folder)


def _read_exactly(descriptor: int, offset: int, length: int) -> bytes:
    """`length` bytes from `offset` on; fewer only if the file ends earlier."""
    pieces = []
    while length > 0 and (piece := os.pread(descriptor, min(length, _MAX_READ), offset)):
        pieces.append(piece)
        offset, length = offset + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _sync_path(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_folder(handle)
    finally:
        os.close(handle)
