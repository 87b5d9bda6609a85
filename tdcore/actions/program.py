"""Program: a program of the user in its own session, with default signals, which can be killed.

In the program every signal has its default, even if this process ignores or blocks signals. A runner that was
started in the background (`tdcore rules run ... &`, nohup, cron) ignores SIGINT or SIGHUP. A program that
inherited ignored signals could not be ended by them, and a shell script cannot restore them.

Threads: one at a time. `os.posix_spawn` runs no Python code between fork and exec, so locks that other
threads hold cannot block it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Program"]

_FIRST_FREE = 3  # the first descriptor after stdin, stdout and stderr
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Program:
    """Start `argv` immediately, in its own session and process group. Standard output is discarded.

    Args:
        argv: The program, which is searched in PATH, and its arguments.
        stdin, stderr: Descriptors for the program; both stay open here.
        env: The whole environment of the program.

    Raises:
        OSError: The program cannot be started.
        ValueError: The arguments or the environment contain a NUL byte.
    """

    def __init__(self, argv: Sequence[str], *, stdin: int, stderr: int, env: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as stack:
            devnull = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            stack.callback(os.close, devnull)
            sources = [stack.enter_context(_above_standard(each)) for each in (stdin, devnull, stderr)]
            self.pid = os.posix_spawnp(
                argv[0],
                list(argv),
                dict(env),
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(sources)),
                    *((os.POSIX_SPAWN_CLOSE, each) for each in _inheritable()),
                ],
                setsid=True,
                setsigdef=_SIGNALS,
                setsigmask=[],
            )
        self._status: int | None = None

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs; 0 if other code has collected it."""
        if self._status is None:
            self._collect(os.WNOHANG)
        return self._status

    def wait(self) -> int:
        """Wait for the end of the program; see poll()."""
        while self._status is None:
            self._collect(0)
        return self._status

    def kill(self) -> None:
        """Kill the program and its process group. Call wait() afterwards."""
        if self._status is None:  # not collected yet, so the process id was not reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _collect(self, options: int) -> None:
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # SIGCHLD is ignored, or the script collects all children
            self._status = 0
            return
        if pid:
            self._status = os.waitstatus_to_exitcode(status)


@contextlib.contextmanager
def _above_standard(descriptor: int) -> Iterator[int]:
    """A duplicate of a descriptor with a number that no dup2 to a standard descriptor overwrites."""
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    try:
        yield copy
    finally:
        os.close(copy)


def _inheritable() -> Iterator[int]:
    """Descriptors of this process that a program would inherit, except stdin, stdout and stderr."""
    try:
        listed = os.listdir("/proc/self/fd")
    except OSError:  # this sandbox has no /proc
        return
    for descriptor in map(int, listed):
        if descriptor >= _FIRST_FREE:
            with contextlib.suppress(OSError):  # closed in the meantime
                if os.get_inheritable(descriptor):
                    yield descriptor
