"""The lock of the writer of one worker's files in one attempt: its flusher, or `tdcore merge`.

The lock is an advisory lock (flock) on the worker's claim, `attempts/<attempt>-<worker>.json`, in a local
run. The kernel releases the lock when the holding process ends, even after a crash. Threads: any; a lock
belongs to its caller.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["Held", "NotLocked", "hold_writer_lock", "wait_for_writer_lock"]

_LONGEST_WAIT_SECONDS = 600.0
_POLL_SECONDS = 0.05
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


class Held(Exception):  # noqa: N818 -- a state, for which the caller writes a message
    """Another process holds the lock."""


class NotLocked(Exception):  # noqa: N818 -- likewise
    """No lock was taken: there is no claim, or the file system does not support flock."""


@contextlib.contextmanager
def hold_writer_lock(root: Path, worker: str, attempt: int) -> Iterator[None]:
    """Hold the lock of a worker in the run `root`. Raises Held or NotLocked without waiting."""
    fd = _locked(root / "attempts" / f"{attempt:04d}-{worker}.json")
    try:
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    """A locked descriptor of the file, read-only if possible, so that a disk can become read-only."""
    for access in (os.O_RDONLY, os.O_RDWR):  # NFS locks only files that are open for writing
        try:
            fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise NotLocked(str(error)) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError as error:
            os.close(fd)
            if error.errno in _BUSY:
                raise Held(str(error)) from error
            if error.errno != errno.EBADF or access == os.O_RDWR:
                raise NotLocked(str(error)) from error
    raise AssertionError


@contextlib.contextmanager
def wait_for_writer_lock(root: Path, worker: str, attempt: int, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock for the flusher as soon as it is free; continue without it where flock is not supported.

    Another process holds the lock only while it merges the files of a trainer that seemed to have ended. say:
    prints a message that the flusher waits.
    """
    deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
    with contextlib.ExitStack() as held:
        told = False
        while True:
            try:
                held.enter_context(hold_writer_lock(root, worker, attempt))
            except NotLocked:
                pass
            except Held:
                if not told:
                    say(f"the files of {worker} are being merged by another process; waiting until it ends")
                    told = True
                if time.monotonic() < deadline:
                    time.sleep(_POLL_SECONDS)
                    continue
            break
        yield
