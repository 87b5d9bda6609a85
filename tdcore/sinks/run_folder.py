"""RunFolder: the files below a folder, opened without following a link and without waiting.

A run may come from another user. Readers, rules and writers open all files below its folder with this class:
one path component after the other, each relative to the descriptor of the folder above it. Therefore no link
leads out of the run, even if the link is created at the same time. Only regular files up to the caller's size
limit are opened: a FIFO would wait for a writer, a device may have any effect, and a sparse file of some
terabytes uses no disk space. The folder itself may be a link, because the user has specified it.

The class needs functions that accept a descriptor of a folder, which Linux, macOS and the BSDs have.
Threads and processes: any number.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tdcore.errors import UnsafeFile, UnsupportedFeature

__all__ = ["RunFolder", "folder_path", "path_below", "sync_folder"]

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_MAX_DEPTH = 32  # depth of a listing; the keys of a run have at most four parts


class RunFolder:
    """The folder `root` and all files below it.

    Keys are relative to `root`, with "/" between their parts, and checked (tdcore.sinks.base.check_key).
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        if os.open not in os.supports_dir_fd:
            raise UnsupportedFeature(
                "this platform cannot open files relative to a folder; read runs elsewhere"
            )
        self.root = os.path.abspath(os.fspath(root))

    @contextmanager
    def folder(self, key: str, *, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder `key` ("" is the root), until the end of the block.

        Args:
            key: The folder.
            make: Create the folder and the folders above it, durably, except the root.

        Raises:
            FileNotFoundError: The folder does not exist.
            NotADirectoryError: The path is a file.
            UnsafeFile: The path is a link, or neither a file nor a folder.
            OSError: Another error of the system.
        """
        descriptor = os.open(self.root, _FOLDER)
        try:
            parts = key.split("/") if key else []
            for at, part in enumerate(parts, 1):
                inner = self._inner(descriptor, part, "/".join(parts[:at]), make)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def _inner(self, parent: int, name: str, key: str, make: bool) -> int:
        if make:
            try:
                os.mkdir(name, dir_fd=parent)
                sync_folder(parent)
            except FileExistsError:
                pass
        try:
            return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            self._refuse_odd(parent, name, key)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), key) from error

    @contextmanager
    def file(self, key: str, *, limit: int | None = None) -> Iterator[int]:
        """A descriptor of the regular file `key`, for reading, until the end of the block.

        Args:
            key: The file.
            limit: Maximum size in bytes.

        Raises:
            FileNotFoundError, NotADirectoryError, IsADirectoryError: There is no such file.
            UnsafeFile: The file is not a regular file, or is too large.
            OSError: Another error of the system.
        """
        above, _, name = key.rpartition("/")
        with self.folder(above) as parent:
            # Checked before the file is opened, because opening a device can have side effects.
            self._refuse_odd(parent, name, key)
            try:
                descriptor = os.open(name, _FILE, dir_fd=parent)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    self._refuse_odd(parent, name, key)  # the file was replaced in the meantime
                raise
        try:
            status = os.fstat(descriptor)
            self._refuse(status.st_mode, key)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), key)
            if limit is not None and status.st_size > limit:
                raise UnsafeFile(
                    f"{key} in {self.root!r} has {status.st_size:,} bytes; at most {limit:,} are read of "
                    "such a file: it is damaged, or not from tdcore"
                )
            yield descriptor
        finally:
            os.close(descriptor)

    def keys(self, folder: str, prefix: str) -> Iterator[str]:
        """Keys below `folder` that start with `prefix`, unordered; none if there is no such folder.

        Raises UnsafeFile for a link, FIFO or device in a folder of the run, and OSError.
        """
        try:
            with self.folder(folder) as descriptor:
                yield from self._keys(descriptor, folder, prefix)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _keys(self, descriptor: int, folder: str, prefix: str) -> Iterator[str]:
        if folder.count("/") >= _MAX_DEPTH:
            raise UnsafeFile(f"{folder[:200]} in {self.root!r} is deeper than any folder of a run; remove it")
        with os.scandir(descriptor) as entries:
            listed = list(entries)
        for entry in listed:
            key = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                if key.startswith(prefix) or prefix.startswith(key + "/"):
                    yield from self._keys_in(descriptor, entry.name, key, prefix)
            elif key.startswith(prefix):
                if folder and not entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        self._refuse_odd(descriptor, entry.name, key)
                yield key

    def _keys_in(self, parent: int, name: str, key: str, prefix: str) -> Iterator[str]:
        try:
            descriptor = self._inner(parent, name, key, make=False)
        except (FileNotFoundError, NotADirectoryError):  # removed in the meantime
            return
        try:
            yield from self._keys(descriptor, key, prefix)
        finally:
            os.close(descriptor)

    def _refuse_odd(self, parent: int, name: str, key: str) -> None:
        """Raise UnsafeFile unless `name` is a file or a folder, FileNotFoundError if it does not exist."""
        self._refuse(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode, key)

    def _refuse(self, mode: int, key: str) -> None:
        kind = next((text for test, text in _KINDS if test(mode)), None)
        if kind is not None:
            raise UnsafeFile(
                f"{key} in {self.root!r} is {kind}, not a file or folder; below a run no link is followed "
                "and nothing else is opened, so that nothing outside the run is read or written: replace it "
                "by the file, or remove it"
            )


def path_below(descriptor: int, folder: str, name: str) -> str:
    """A path to `name` in an open folder, for functions that need a path. folder: the folder's path.

    On Linux the path contains the descriptor, so that it is valid even if the folder is moved.
    """
    through = f"/proc/self/fd/{descriptor}"
    return os.path.join(through if os.path.isdir(through) else folder, name)


def folder_path(root: str, key: str) -> str:
    """The path of the folder `key` below `root`."""
    return os.path.join(root, *key.split("/")) if key else root


def sync_folder(descriptor: int) -> None:
    """Make the entries of an open folder durable."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that cannot sync a folder
            raise
