"""The capture session of one worker: its attempt of the run, its ring, and the flusher that empties the ring.

A session does not depend on a framework: hooks decide what to capture and when, and call
    ``session.ring.capture``.

Threads: any thread creates and closes a session; several threads may call counters(), progress(),
stop_request(), take_request() and put_collections(). In a forked child (DataLoader workers) the session is
disabled: calls do nothing, and the exit of the child does not close the parent's session. A normal exit, an
exception and Ctrl-C close the session. After SIGTERM, os._exit, a crash or SIGKILL the flusher process writes
the remaining data alone and marks the end as unclean. An existing session never raises an error into the
training.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from tdcore import _core
from tdcore.config import settings
from tdcore.errors import ConfigError, SinkError
from tdcore.format.collection_names import shorten_names
from tdcore.format.layout import FORMAT_VERSION, collections_key, end_key, size_limit
from tdcore.session import bucket_helper
from tdcore.session.attempts import JSON, ClaimedAttempt
from tdcore.session.counters import CloseReport, Counters, Progress
from tdcore.session.live_export import check_live_export, start_live_export
from tdcore.session.profile_store import ProfileStore
from tdcore.session.ring_config import RingConfig, make_ring
from tdcore.session.ring_sizes import RingSizes, capturing_processes
from tdcore.session.runners import ProcessRunner, Runner, ThreadRunner
from tdcore.session.supervisor import Supervisor, close_before_executors
from tdcore.sinks import is_remote, place_text, shown_place
from tdcore.sinks.s3.options import parse_s3_url
from tdcore.sinks.spool_folders import attempt_spool, journal_path, worker_spools

if TYPE_CHECKING:
    from tdcore.flusher import FlusherOptions

__all__ = ["Session", "StopRequest"]

_log = logging.getLogger("tdcore")
_LAST_WORDS_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Request to stop the training. rule: code of the rule that fired, or "". by: the requesting tool."""

    reason: str
    rule: str = ""
    step: int | None = None
    by: str = ""


class Session:
    """The capture of one worker in one attempt, from its ring to its files. Also a context manager.

    Args:
        out_dir: A folder, or s3://bucket/prefix with options (see S3Options). Earlier attempts and files of
            other programs are not changed.
        worker: Name of this process within the job.
        workers: Names of all capturing processes of the job, stored in run.json.
        configuration: JSON values, stored in run.json.
        framework: Name of the training framework, stored in run.json.
        framework_version: Version of the framework, stored in run.json.
        world_size: Number of processes of the job.
        ring: Sizes of the ring.
        flusher: "process" outlives the trainer; "thread" is for environments that forbid processes.
        flusher_options: Sizes and delays of the flusher.
        close_timeout: Maximum time that close() and the exit of the program wait for the last data.
        tensorboard: Folder to which the first worker exports the run for TensorBoard; None: no export.
        system_interval: Interval of the system metrics, zero for none. TDCORE_SYSTEM_INTERVAL replaces it.

    Raises:
        SinkError: out_dir cannot be written.
        RunCorrupt: run.json in out_dir was not written by tdcore.
        ConfigError: an argument is invalid.
        FlusherError: the flusher cannot start.
        CaptureError: there is no shared memory.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        *,
        worker: str = "worker_0",
        workers: Sequence[str] = (),
        configuration: Mapping[str, JSON],
        framework: str,
        framework_version: str,
        world_size: int = 1,
        ring: RingConfig | None = None,
        flusher: Literal["process", "thread"] = "process",
        flusher_options: FlusherOptions | None = None,
        close_timeout: timedelta = timedelta(seconds=30),
        system_interval: timedelta | None = None,
        tensorboard: str | None = None,
    ) -> None:
        if tensorboard is not None:
            check_live_export()
        if flusher not in ("process", "thread"):
            raise ConfigError(f"flusher must be 'process' or 'thread', got {flusher!r}")
        if close_timeout < timedelta():
            raise ConfigError(f"close_timeout must not be negative, got {close_timeout}")
        options = (
            flusher_options.as_json()
            if flusher_options
            else {"system_interval": _system_interval(system_interval).total_seconds()}
        )
        self._here = flusher == "thread"  # whether this process itself may send requests to a bucket
        self.out_dir = _place(out_dir, in_this_process=self._here)
        self.worker = worker
        # First, so that an invalid size creates no attempt.
        ring = ring or RingConfig()
        processes = capturing_processes(len(workers), world_size)
        self.ring = make_ring(ring, step_times=settings.measures_step_times(), processes=processes)
        self.sizes = RingSizes(self.ring, ring, processes=processes, available=_core.available_memory_bytes)
        try:
            spools = worker_spools(self.out_dir, worker) if is_remote(self.out_dir) else None
            place = _claim(
                self.out_dir,
                here=self._here,
                worker=worker,
                workers=workers,
                configuration=configuration,
                framework=framework,
                framework_version=framework_version,
                world_size=world_size,
                pid=os.getpid(),
                spool=str(spools) if spools else None,
            )
            spool = attempt_spool(spools, place.attempt, place.run_id) if spools else None
            if spool is not None:
                _start_journal(spool, worker, place.attempt)
            self.ring.prefault()
            self._supervisor = _start_supervisor(
                self.ring,
                {
                    "out": self.out_dir,
                    "worker": worker,
                    "attempt": place.attempt,
                    "run_id": place.run_id,
                    "spool": str(spool) if spool else None,
                },
                runner=ProcessRunner if flusher == "process" else ThreadRunner,
                options=options,
                close_timeout=close_timeout,
            )
        except BaseException:
            self.ring.close()
            raise
        if self._here and is_remote(self.out_dir):
            close_before_executors()
        if tensorboard is not None and worker == ([*workers, worker])[0]:
            start_live_export(self.out_dir, tensorboard, attempt=place.attempt, run_id=place.run_id)
        self.run_id = place.run_id
        self.attempt = place.attempt
        self.profiles = ProfileStore(
            self.out_dir, run_id=place.run_id, worker=worker, attempt=place.attempt, here=self._here
        )
        self._earlier_collections = dict(place.earlier_collections)
        self._collections_key = collections_key(worker, workers)
        self._unsent_lock = threading.RLock()  # reentrant, for a signal handler that closes
        self._unsent: bytes | None = None  # under _unsent_lock: collections for which the ring was full
        self._stop: tuple[str, StopRequest] | None = None  # text and parsed text; replaced as one tuple
        # If the session is deleted without close(), the flusher ends and no thread waits. At exit the
        # supervisor closes the session.
        weakref.finalize(self, self._supervisor.abandon).atexit = False

    @property
    def active(self) -> bool:
        """Whether captures are stored: the session is open and has not failed; False in a forked child."""
        return self._supervisor.running

    @property
    def failure(self) -> str:
        """The reason why tdcore disabled the capture after an internal failure; "" without a failure."""
        return self._supervisor.failure

    def put_collections(self, document: Mapping[str, JSON]) -> None:
        """Store `document` as this attempt's entry of collections.json, and keep earlier attempts' entries.

        The document passes through the ring like any record, so the calling thread writes no file. A later
        call replaces the document of an earlier call.
        """
        if not self.active:
            return
        newest = str(self.attempt)
        attempts = shorten_names({**self._earlier_collections, newest: document}, newest)
        data = json.dumps({"format": FORMAT_VERSION, "attempts": attempts}).encode()
        limit = size_limit(self._collections_key)
        if limit is not None and len(data) > limit:
            _log.warning(
                "tdcore %s: %s is not rewritten: it would have %d bytes, and readers accept at most %d",
                self.worker,
                self._collections_key,
                len(data),
                limit,
            )
            return
        with self._unsent_lock:
            self._unsent = None if self.ring.put_document(self._collections_key, data) else data

    def stop_request(self) -> StopRequest | None:
        """The stop request in the run's control folder, or None. The call is cheap enough for every step."""
        text = self.ring.stop_request()
        if text is None:
            return None
        if self._stop is None or self._stop[0] != text:
            self._stop = (text, _parse_stop(text))
        return self._stop[1]

    def take_request(self) -> str | None:
        """The next capture request as text (format/control.py). Each request is returned once."""
        text: str | None = self.ring.take_request()
        return text

    def counters(self) -> Counters:
        """Counts of captured and dropped tensors so far; the totals after close()."""
        return self._supervisor.counters()

    def progress(self) -> Progress:
        """Counts of the records that the flusher has written so far."""
        return self._supervisor.progress()

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Wait until the current content of the ring is durable, at most `timeout` (default: close_timeout).

        The flusher writes after its visible_delay, so this takes about a second. The result is False, and a
        warning is logged, after a timeout or if no flusher is running. In a forked child and after close()
        the call returns immediately.
        """
        with self._unsent_lock:
            if self._unsent is not None and self.ring.put_document(self._collections_key, self._unsent):
                self._unsent = None
        return self._supervisor.flush(timeout)

    def close(self, timeout: timedelta | None = None) -> CloseReport:
        """End the capture and wait for the last data, at most `timeout` (default: close_timeout).

        After a timeout the report and a warning of the ``tdcore`` logger have the amount of remaining data,
        and a flusher process continues alone. Any thread may call close() again. In a forked child the call
        has no effect.
        """
        if self._supervisor.in_other_process:
            return self._supervisor.close()
        with self._unsent_lock:
            unsent, self._unsent = self._unsent, None
        if unsent is not None and self.ring.put_document(self._collections_key, unsent):
            unsent = None
        report = self._supervisor.close(timeout)
        if unsent is not None:
            self._write_collections(unsent)
        return report

    def _write_collections(self, data: bytes) -> None:
        """Write collections.json from this process, because the ring was full and the training has ended."""
        try:
            bucket_helper.put(
                self.out_dir, self._collections_key, data, here=self._here, seconds=_LAST_WORDS_SECONDS
            )
        except Exception as error:
            _log.warning("tdcore %s: %s could not be written: %s", self.worker, self._collections_key, error)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _system_interval(configured: timedelta | None) -> timedelta:
    if configured is not None and not os.environ.get("TDCORE_SYSTEM_INTERVAL", "").strip():
        return configured
    return settings.system_interval()


def _place(out_dir: str | os.PathLike[str], in_this_process: bool) -> str:
    """The absolute path or complete URL of `out_dir`: the flusher may have another working folder.

    in_this_process: Whether this process sends the requests to a bucket. If so, the engine without threads of
    its own is preferred.
    """
    text = place_text(out_dir, name="out_dir")
    if not is_remote(text):
        return text if "://" in text else os.path.abspath(text)
    place = parse_s3_url(text)
    options = place.options.resolved()
    if in_this_process and options.engine == "auto" and find_spec("aiobotocore") is not None:
        options = replace(options, engine="aiobotocore")
    return options.at(place.where)


def _claim(out_dir: str, **entry: Any) -> ClaimedAttempt:
    try:
        return bucket_helper.claim(out_dir, **entry)
    except SinkError as error:
        raise SinkError(
            f"cannot start a run in {shown_place(out_dir)}: {error}; choose an out_dir that this process may "
            "write",
            kind=error.kind,
            errno=error.errno,
        ) from error


def _start_journal(spool: Path, worker: str, attempt: int) -> None:
    """Start the journal before the first flusher, so that the next one needs no request to the bucket."""
    from tdcore.flusher.upload_journal import UploadJournal

    UploadJournal(journal_path(spool), worker=worker, attempt=attempt).start()


def _start_supervisor(
    ring: _core.Ring,
    job: Mapping[str, Any],
    *,
    runner: Callable[[_core.Ring, Mapping[str, Any]], Runner],
    options: Mapping[str, JSON],
    close_timeout: timedelta,
) -> Supervisor:
    supervisor = Supervisor(
        ring,
        runner(ring, {**job, "options": options}),
        name=job["worker"],
        close_timeout=close_timeout,
        record_failure=_failure_recorder(
            job["out"], job["worker"], job["attempt"], here=runner is ThreadRunner
        ),
    )
    supervisor.start()
    return supervisor


def _failure_recorder(
    out_dir: str, worker: str, attempt: int, *, here: bool
) -> Callable[[str, Counters, Progress], None]:
    """Callback of the supervisor for a permanent failure, without a reference to the session."""

    def record(reason: str, counters: Counters, progress: Progress) -> None:
        document = {
            "format": FORMAT_VERSION,
            "worker": worker,
            "attempt": attempt,
            "clean": False,
            "reason": f"capture was switched off: {reason}",
            "ended_ns": time.time_ns(),
            "last_step": progress.last_step,
            "totals": {
                "rows": progress.rows,
                "records": progress.records,
                "payload_bytes": progress.bytes,
                "captures": counters.captures,
                "captured_tensors": counters.tensors,
                "captured_bytes": counters.payload_bytes,
                "capture_ns": counters.capture_ns,
            },
            "records_left": progress.pending_records,
            "bytes_left": progress.pending_bytes,
            "drops": {
                name: {"tensors": drop.tensors, "bytes": drop.bytes} for name, drop in counters.drops.items()
            },
        }
        data = json.dumps(document, indent=1).encode()
        bucket_helper.put(out_dir, end_key(worker, attempt), data, here=here)

    return record


def _parse_stop(text: str) -> StopRequest:
    """Parse a stop request. Unknown or missing fields are accepted, because a person may have written it."""
    try:
        raw = json.loads(text)
    except ValueError:
        raw = {}
    if not isinstance(raw, dict):
        raw = {}
    step = raw.get("step")
    return StopRequest(
        reason=str(raw.get("reason") or "stop requested"),
        rule=str(raw.get("rule") or ""),
        step=step if isinstance(step, int) else None,
        by=str(raw.get("by") or ""),
    )
