"""RulesProcess: the view's side of the process that judges one run (judge.py).

Rules run in a process, because they take seconds for a long run and answers must not wait for them, and
because the memory of the rules is freed when the process ends.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.view.answers.opened import Judgement

__all__ = ["RulesProcess"]

_AT_ONCE = threading.BoundedSemaphore(2)  # judgements at the same time, of all runs
_REST = 2.0  # pause after a judgement, in units of its duration: rules take at most a third of a CPU
_LEAST_REST_SECONDS = 0.5
_END_SECONDS = 5.0


class RulesProcess:
    """Judges a run when its data has changed, in a process and a thread of its own.

    Args:
        place: Folder or URL.
        judged: Called in the thread with each new judgement, or with the text of an error.
    """

    def __init__(self, place: str, judged: Callable[[Judgement | str], None]) -> None:
        self._place = place
        self._judged = judged
        self._needed = threading.Event()
        self._closed = False
        self._busy = False
        self._child: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._lock = threading.Lock()  # guards _child and _closed
        self._thread = threading.Thread(target=self._work, name="tdcore-view-rules", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> bool:
        """Whether a judgement was requested and has not arrived."""
        return self._busy or self._needed.is_set()

    def request(self) -> None:
        """Request a judgement of the data that is there now. Requests during a judgement are joined."""
        self._needed.set()

    def close(self) -> None:
        """End the process, without waiting for its end. Any thread."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child[0].terminate()
        self._needed.set()

    def _work(self) -> None:
        while self._is_needed():
            begun, first = time.monotonic(), self._child is None
            try:
                with _AT_ONCE:
                    answer = self._ask()
            except (EOFError, OSError) as error:
                self._end_child()
                if self._closed:
                    return
                answer = f"the process that judges the run has ended: {str(error) or 'no answer'}"
            self._busy = False
            self._judged(answer)
            if not isinstance(answer, str) and answer.report.finished:
                self._end_child()
            busy = 0.0 if first else time.monotonic() - begun  # the first judgement includes the imports
            time.sleep(max(_LEAST_REST_SECONDS, _REST * busy))

    def _is_needed(self) -> bool:
        """Wait for a request. Returns False if this object is closed, after the end of its process."""
        self._needed.wait()
        self._busy = True
        self._needed.clear()
        if self._closed:
            self._end_child()
        return not self._closed

    def _ask(self) -> Judgement | str:
        connection = self._connection()
        connection.send_bytes(b"1")
        answer: Judgement | str = connection.recv()
        return answer

    def _connection(self) -> Connection:
        from tdcore.session.spawning import command, environment

        with self._lock:
            if self._closed:
                raise EOFError
            if self._child is None:
                here, there = socket.socketpair()
                with there:
                    process = subprocess.Popen(
                        command("tdcore.view.server.judge", {"place": self._place, "fd": there.fileno()}),
                        cwd="/",
                        env=environment(),
                        pass_fds=[there.fileno()],
                        stdin=subprocess.DEVNULL,
                    )
                self._child = process, Connection(here.detach())
            return self._child[1]

    def _end_child(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            _end(*child)


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
    connection.close()
