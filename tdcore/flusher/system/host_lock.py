"""Lock of the one flusher of a host that samples the machine: the holder of a name in the kernel.

The name is an abstract Unix socket, so it is free as soon as its holder ends, also after a crash, and no file
is left. Containers with networks of their own count as hosts of their own. Threads: the flusher's only.
"""

from __future__ import annotations

import errno
import socket

__all__ = ["HostLock"]

_RETRY_SECONDS = 2.0


class HostLock:
    """The lock of the host for one run. run_id: of the run; attempt: of the run."""

    def __init__(self, run_id: str, attempt: int) -> None:
        self._name = f"\0tdcore-system-{attempt}-{run_id}"[:100]
        self._socket: socket.socket | None = None
        self._always = False
        self._next_try = 0.0

    def held(self, now: float) -> bool:
        """Whether this process holds the lock. Tries again every two seconds. now: monotonic seconds.

        True without a lock where the system has no abstract sockets: two samples are better than none.
        """
        if self._socket is not None or self._always:
            return True
        if now < self._next_try:
            return False
        self._next_try = now + _RETRY_SECONDS
        try:
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            self._always = True
            return True
        try:
            lock.bind(self._name)
        except OSError as error:
            lock.close()
            self._always = error.errno != errno.EADDRINUSE
            return self._always
        self._socket = lock
        return True

    def release(self) -> None:
        """Release the lock for the other flushers of the host."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
