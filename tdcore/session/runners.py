"""Runners of the flusher: as another process (the default), or as a thread of this process.

A runner starts one flusher at a time and waits for its end; supervisor.py decides whether to start another
flusher.
Threads: one thread at a time calls start() and wait(). wait() blocks in the kernel without the GIL and never
polls. Runners do not read the ring's records.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tdcore.errors import FlusherError
from tdcore.session.spawning import command, environment

if TYPE_CHECKING:
    from tdcore._core import Consumer, Ring

_log = logging.getLogger("tdcore")
_THREAD_INSTEAD = 'use flusher="thread" where another process cannot be started'
_MAX_LAST_WORDS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FlusherEnd:
    """The end of a flusher.

    "done": it ended normally, and no other is needed. "unknown": the training script has collected its exit
    status. "died": it crashed; `why` is the cause.
    """

    kind: Literal["done", "unknown", "died"]
    why: str = ""


class Runner(Protocol):
    """Runs one flusher at a time."""

    def start(self) -> None:
        """Start the flusher without waiting for it. Raises FlusherError if it cannot start."""

    def wait(self) -> FlusherEnd:
        """Wait for the end of the flusher that start() started."""
        ...

    def forget(self) -> None:
        """Release the flusher silently, in a forked child or at exit while the flusher continues alone."""


class ProcessRunner:
    """The flusher as a spawned process (never forked), independent of Ctrl-C and the trainer's GIL."""

    def __init__(self, ring: Ring, job: Mapping[str, Any]) -> None:
        self._ring = ring
        self._job = dict(job)
        self._process: subprocess.Popen[bytes] | None = None
        self._words = -1  # the reading end of a pipe that is the flusher's stderr

    def start(self) -> None:
        """See Runner.start. The call takes about 0.5 ms, because the flusher starts in parallel."""
        executable = sys.executable
        if not executable or not os.access(executable, os.X_OK):
            raise FlusherError(
                f"cannot start the flusher: sys.executable is not a program: {executable!r}; "
                f"{_THREAD_INSTEAD}"
            )
        self._words = mouth = pidfd = -1
        try:
            # Neither side ever blocks on the pipe.
            self._words, mouth = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            pidfd = _pidfd_open(os.getpid())
            rings = self._ring.fds
            job = {**self._job, "fds": rings, "pidfd": pidfd, "trainer_pid": os.getpid()}
            self._process = subprocess.Popen(
                command("tdcore.flusher.main", job),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=mouth,  # not the trainer's stderr, whose reader would wait for the flusher
                cwd="/",  # so that no folder of the user is in use
                env=environment(),
                pass_fds=[fd for fd in (*rings, pidfd) if fd >= 0],
                start_new_session=True,  # Ctrl-C and signals to the trainer's group do not reach the flusher
            )
        except OSError as error:
            _close(self._words)
            message = f"cannot start the flusher with {executable!r}: {error}; {_THREAD_INSTEAD}"
            raise FlusherError(message) from error
        finally:
            _close(mouth)
            _close(pidfd)

    def wait(self) -> FlusherEnd:
        """See Runner.wait. Messages of the flusher are logged during the wait. Exit status 0 is "done"."""
        process = self._process
        assert process is not None, "call start() before wait()"
        last_words = _listen(process.pid, self._words)
        _close(self._words)
        self._words = -1
        try:
            _, status = os.waitpid(process.pid, 0)
        except ChildProcessError:  # SIGCHLD is ignored, or the script collects all children
            process.returncode = 0
            why = f"flusher process {process.pid} ended: {last_words}".rstrip(": ")
            return FlusherEnd(kind="unknown", why=why)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return FlusherEnd(kind="done")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return FlusherEnd(kind="died", why=f"flusher process {process.pid} {how}: {last_words}".rstrip(": "))

    def forget(self) -> None:
        """See Runner.forget. This call prevents a warning of Popen about a process that is not a child."""
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0


class ThreadRunner:
    """The flusher on the supervisor's thread, which ends with the trainer, if processes are forbidden."""

    def __init__(self, ring: Ring, job: Mapping[str, Any]) -> None:
        self._ring = ring
        self._job = job
        self._consumer: Consumer | None = None

    def start(self) -> None:
        """See Runner.start. This call maps the ring a second time, as a flusher process does.

        The call also imports the flusher's slow modules, which takes up to a second. The thread may get its
        first data while the interpreter exits, when imports are impossible.
        """
        import pyarrow

        from tdcore import _core
        from tdcore.flusher import compactor, flush_batch, recorders  # noqa: F401

        pyarrow.array(["the first use of pyarrow imports more modules"])
        try:
            self._consumer = _core.Consumer(self._ring.fds)
        except (OSError, ValueError) as error:
            raise FlusherError(f"cannot map the ring for the flusher thread: {error}") from error

    def wait(self) -> FlusherEnd:
        """Run the flusher in this thread until the ring is closed and drained."""
        from tdcore.flusher import Flusher, FlusherOptions
        from tdcore.flusher.destination import open_destination
        from tdcore.flusher.recorders import recorders_of

        options = FlusherOptions.from_json(self._job["options"])
        assert self._consumer is not None, "call start() before wait()"
        try:
            with open_destination(self._job) as (sink, journal):
                Flusher(
                    self._consumer,
                    sink,
                    worker=self._job["worker"],
                    attempt=self._job["attempt"],
                    options=options,
                    journal=journal,
                    recorders=recorders_of(self._job, sink, options, os.getpid(), self._consumer),
                    run_id=self._job.get("run_id", ""),
                ).run()
        except Exception as error:
            return FlusherEnd(kind="died", why=f"flusher thread failed: {type(error).__name__}: {error}")
        finally:
            self._consumer = None
        return FlusherEnd(kind="done")

    def forget(self) -> None:
        """Do nothing: a forked child has no such thread."""


def _pidfd_open(pid: int) -> int:
    """A pidfd of `pid`; -1 if the kernel or a sandbox does not support it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def _listen(pid: int, words: int) -> str:
    """Wait until `pid` has ended, without collecting its status. Return the end of its error output.

    Lines that begin with "tdcore" are messages for the user and are logged immediately. The other lines (a
    traceback) are the cause of a crash.
    """
    pidfd = _pidfd_open(pid)
    poller = select.poll()
    poller.register(words, select.POLLIN)
    if pidfd >= 0:
        poller.register(pidfd, select.POLLIN)
    last_words = line = b""
    try:
        while True:
            ready = dict(poller.poll())
            heard = _read(words)
            last_words = (last_words + heard)[-_MAX_LAST_WORDS:]
            *lines, line = (line + heard).split(b"\n")
            line = line[:_MAX_LAST_WORDS]
            for each in lines:
                if each.startswith(b"tdcore"):
                    _log.warning("%s", each.decode(errors="replace"))
            if pidfd in ready:
                break
            if not heard and ready.get(words, 0) & select.POLLHUP:  # closed, or its process has ended
                poller.unregister(words)
                if pidfd < 0:
                    break  # the caller's waitpid() waits for the rest
    finally:
        _close(pidfd)
    return last_words.decode(errors="replace").strip()


def _close(fd: int) -> None:
    """Close a descriptor unless it is -1."""
    if fd >= 0:
        os.close(fd)


def _read(fd: int) -> bytes:
    """Read all available bytes without waiting."""
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, 65536):
            pieces.append(piece)
    return b"".join(pieces)
