"""Supervisor: restarts the flusher of one ring after a crash, and waits for its end at close.

One daemon thread per session blocks in the kernel until the flusher ends. A flusher that dies early is
started again on the same ring, without loss. After several starts without progress the supervisor disables
the capture, logs the reason once and writes it into the run; the training continues.

Threads: any thread may call any method. In a forked child the supervisor is disabled: each entry point
    compares
the process id before it takes a lock, because the child may have inherited a locked lock.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from tdcore.errors import FlusherError
from tdcore.session.counters import CloseReport, Counters, DeviceReport, Progress

if TYPE_CHECKING:
    from tdcore._core import Ring
    from tdcore.session.runners import FlusherEnd, Runner

_log = logging.getLogger("tdcore")

_MAX_FRUITLESS_STARTS = 5
# A flusher that has run for this time counts as useful, even without work.
_FRUITFUL_SECONDS = 30.0
_FLUSH_POLL_SECONDS = 0.01
_FIRST_PAUSE_SECONDS = 0.05  # doubled with each fruitless start


class Supervisor:
    """The flusher of one ring, with its restarts.

    record_failure: writes the reason into the run when the capture is disabled.
    """

    def __init__(
        self,
        ring: Ring,
        runner: Runner,
        *,
        name: str,
        close_timeout: timedelta,
        record_failure: Callable[[str, Counters, Progress], None],
    ) -> None:
        self._ring = ring
        self._runner = runner
        self._name = name
        self._close_timeout = close_timeout
        self._record_failure = record_failure
        self._pid = os.getpid()
        # Set once, by the first close. Not an Event: abandon() may run inside the garbage collector, on a
        # thread that already holds a lock.
        self._closing = False
        self._ended = threading.Event()  # set once, by the watching thread: no flusher will run again
        # Held by close(), so that one thread closes at a time. Reentrant, for a signal handler that calls
        # close().
        self._close_lock = threading.RLock()
        self._failure = ""  # written by the watching thread before _ended is set
        self._restarts = 0  # written by the watching thread
        self._abandoned = False  # written when the session is garbage-collected
        self._report: CloseReport | None = None  # under _close_lock; final once drained or failed
        self._last: tuple[Counters, Progress] | None = (
            None  # under _close_lock; set just before the ring is unmapped
        )
        self._thread = threading.Thread(target=self._watch, name=f"tdcore-supervisor-{name}", daemon=True)

    def start(self) -> None:
        """Start the flusher and the watching thread. Raises FlusherError if the flusher cannot start."""
        self._runner.start()
        self._thread.start()
        _LIVE.add(self)
        _STARTED.add(self)

    @property
    def in_other_process(self) -> bool:
        """Whether this is a forked child, where the supervisor is disabled."""
        return os.getpid() != self._pid

    @property
    def failure(self) -> str:
        """The reason why the capture is disabled; "" if it is enabled."""
        return self._failure

    @property
    def running(self) -> bool:
        """Whether a flusher reads the ring, and this process started it."""
        return not (self._closing or self._failure or self.in_other_process)

    def counters(self) -> Counters:
        """Totals so far; the final totals after close()."""
        last = self._last
        return last[0] if last else Counters.from_ring(self._ring.counters())

    def progress(self) -> Progress:
        """The flusher's progress so far; the final progress after close()."""
        last = self._last
        return last[1] if last else Progress.from_ring(self._ring.progress())

    def request_close(self) -> None:
        """Mark the ring as closing, without waiting. The flusher ends after the last record."""
        if self.in_other_process or self._ended.is_set():
            return
        self._closing = True
        self._ring.set_closing()

    def abandon(self) -> None:
        """Let the flusher finish alone, for a session deleted without close(). Only the exit waits for it."""
        self._abandoned = True
        self.request_close()

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Wait until the records that are in the ring now are durable, at most `timeout`.

        The call does not wait for later records, unless they are written together with these records.
        """
        if self.in_other_process or self._closing:
            return not self.in_other_process
        seconds = (self._close_timeout if timeout is None else timeout).total_seconds()
        end, start = time.monotonic() + seconds, self.progress()
        while True:
            now = self.progress()
            if not now.pending_records or now.records >= start.records + start.pending_records:
                return True
            if time.monotonic() >= end or not self.running:
                break
            self._ended.wait(_FLUSH_POLL_SECONDS)
        _log.warning(
            "tdcore %s: flush() waited %.1f s, %d records (%d bytes) are not yet written: %s",
            self._name,
            seconds,
            now.pending_records,
            now.pending_bytes,
            self._failure or now.error or "the flusher is still working",
        )
        return False

    def close(self, timeout: timedelta | None = None) -> CloseReport:
        """Wait until all records are durable and the flusher has ended, at most `timeout`.

        After a timeout another call waits again. After the ring is drained, later calls return the same
        report.
        """
        if self.in_other_process:
            return self._nothing("closed in a forked child, where capture is off")
        seconds = (self._close_timeout if timeout is None else timeout).total_seconds()
        with self._close_lock:
            _LIVE.discard(self)
            if self._report is not None:
                return self._report
            started = time.monotonic()
            self.request_close()
            ended = self._ended.wait(seconds)
            report = self._make_report(ended, timedelta(seconds=time.monotonic() - started))
            if ended:
                self._report = report
                self._last = (report.counters, report.progress)
                self._ring.close()
            if not report.drained and not self._failure:
                _log.warning(
                    "tdcore %s: close() waited %.1f s, %d records (%d bytes) are %s: %s",
                    self._name,
                    report.waited.total_seconds(),
                    report.records_left,
                    report.bytes_left,
                    "lost" if ended else "not yet written",
                    report.reason,
                )
            return report

    def _make_report(self, ended: bool, waited: timedelta) -> CloseReport:
        counters, progress = self.counters(), self.progress()
        if not ended:
            safe = (
                ""
                if progress.pending_records
                else ": all data is durable, and the flusher merges files or uploads"
            )
            reason = f"the flusher is still working{safe}" + (
                f"; its last message: {progress.error}" if progress.error else ""
            )
        else:
            reason = self._failure
            if not reason and progress.pending_records:
                reason = progress.error or "the flusher ended without them"
        return CloseReport(
            drained=ended and not reason,
            records_left=progress.pending_records,
            bytes_left=progress.pending_bytes,
            reason=reason,
            waited=waited,
            restarts=self._restarts,
            counters=counters,
            progress=progress,
            devices=tuple(map(DeviceReport.from_ring, self._ring.device_reports())),
        )

    def _nothing(self, reason: str) -> CloseReport:
        return CloseReport(
            drained=False,
            records_left=0,
            bytes_left=0,
            reason=reason,
            waited=timedelta(),
            restarts=0,
            counters=Counters(),
            progress=Progress(),
        )

    def _watch(self) -> None:
        """Main function of the watching thread, from the first flusher to the last."""
        try:
            self._watch_flushers()
        except Exception as error:  # the training must continue, and close() must not wait forever
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            self._ended.set()
            if self._abandoned:
                _LIVE.discard(self)

    def _watch_flushers(self) -> None:
        fruitless = 0
        death = ""
        while True:
            started, records = time.monotonic(), self.progress().records
            if not death or self._start_again():
                end = self._runner.wait()
                if self._closing and self._is_final(end):
                    return
                death = end.why or "the flusher ended before close()"
            useful = self.progress().records > records or time.monotonic() - started > _FRUITFUL_SECONDS
            fruitless = 0 if useful else fruitless + 1
            if fruitless > _MAX_FRUITLESS_STARTS:
                self._give_up(f"{death} (the last of {fruitless} flushers in a row that wrote nothing)")
                return
            _log.info("tdcore %s: %s; starting another", self._name, death)
            if fruitless:
                time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (fruitless - 1))

    def _is_final(self, end: FlusherEnd) -> bool:
        """Whether no other flusher is needed. With an unknown exit status the ring's counters decide."""
        return end.kind == "done" or (end.kind == "unknown" and not self.progress().pending_records)

    def _start_again(self) -> bool:
        self._restarts += 1
        try:
            self._runner.start()
        except FlusherError as error:  # the system cannot start a process at the moment
            _log.info("tdcore %s: %s", self._name, error)
            return False
        return True

    def _give_up(self, reason: str) -> None:
        self._failure = reason
        self._ring.set_closing()  # captures have no effect after this call
        counters, progress = self.counters(), self.progress()
        _log.error(
            "tdcore %s: capture is off, the training continues: %s; %d records (%d bytes) were not written",
            self._name,
            reason,
            progress.pending_records,
            progress.pending_bytes,
        )
        try:
            self._record_failure(reason, counters, progress)
        except Exception as error:
            _log.error(
                "tdcore %s: this error could not be written into the run either: %s", self._name, error
            )

    def forget_flusher(self) -> None:
        """Release the flusher silently, in a forked child or at exit while the flusher continues alone."""
        self._runner.forget()


_LIVE: set[Supervisor] = set()  # started and not closed; the exit waits for each
_STARTED: weakref.WeakSet[Supervisor] = weakref.WeakSet()


def _close_all_at_exit() -> None:
    """Close all sessions at a normal exit, an uncaught exception, sys.exit or Ctrl-C.

    Without this call no data would be lost, but the flusher would detect the end later.
    """
    live = [supervisor for supervisor in _LIVE if not supervisor.in_other_process]
    for supervisor in live:
        supervisor.request_close()
    try:
        for supervisor in live:
            supervisor.close()
    except KeyboardInterrupt:
        _log.warning("tdcore: no longer waiting for the flusher, which continues alone")
    for supervisor in list(_STARTED):
        supervisor.forget_flusher()


def close_before_executors() -> None:
    """Close sessions with a flusher thread before the executors of this process stop.

    Python stops all thread pools before it runs atexit callbacks, and asyncio needs thread pools for name
    resolution, files and other blocking calls. Callbacks run in reverse order of registration.
    """
    import concurrent.futures.thread  # noqa: F401  # registers itself

    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(_close_all_at_exit)


def _after_fork_in_child() -> None:
    for supervisor in list(_STARTED):
        supervisor.forget_flusher()
    _LIVE.clear()


atexit.register(_close_all_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
