"""Follow: export of one attempt to TensorBoard while it is written, by a process of its own.

The hook starts this process with the job as its argument; `tdcore export --follow` calls follow_run(). It
reads the run as any reader does, so neither the training nor the flusher waits for it, and a new flusher
needs no new follower.

OUT/attempt_<n>/.tdcore-follow.json contains the size of each event file and the tickets of the exported
rows. It is written after the events. A follower that continues first cuts the event files to these sizes,
and exports only other rows, so that no row is lost or exported twice. The same happens after an error, such
as a full disk, with exponential backoff. If the attempt has ended and the error stays, the run gets a note.

Threads: one thread.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from tdcore.errors import (
    ConfigError,
    ExportError,
    RunError,
    RunNotFound,
    SinkError,
    SinkKeyError,
    TdcoreError,
)
from tdcore.export.output import MARKER
from tdcore.export.source import COLUMNS, Part, Selection, Text, finding_texts, run_texts, with_values
from tdcore.export.target import check_packages
from tdcore.format.layout import COLLECTIONS_PREFIX, FORMAT_VERSION, RUN_KEY
from tdcore.liveness import process_is_gone
from tdcore.sinks import open_sink
from tdcore.trial import Trial, create_trial
from tdcore.trial.intervals import Intervals
from tdcore.trial.refresh import no_refresh

if TYPE_CHECKING:
    import pyarrow as pa

    from tdcore.export.tensorboard import TensorBoardTarget

__all__ = ["NOTE", "follow_run", "main"]

NOTE = "tensorboard_export"  # heading of the note about an export that failed
_SUFFIX = "tdcore-follow"
_STATE = ".tdcore-follow.json"
_BATCH_ROWS = 1 << 12
_POLL_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 60.0
_TRIES_AFTER_END = 5
_INVALID = (ValueError, LookupError, TypeError, AttributeError)  # errors of a document with other fields
_SILENT_SECONDS = 30.0  # after which an attempt without an end has ended, if there is a later attempt


def follow_run(
    run: str | os.PathLike[str],
    folder: Path,
    *,
    selection: Selection | None = None,
    wait: timedelta | None = None,
    poll_seconds: float = _POLL_SECONDS,
    has_ended: Callable[[], bool] = lambda: False,
) -> int:
    """Export the steps of an attempt to TensorBoard until the attempt has ended. Continues an earlier call.

    Args:
        run: Folder or URL of the run.
        folder: The folder for TensorBoard.
        selection: Attempt and tensors. If its attempt is None, the latest attempt is exported.
        wait: Maximum time to wait for a run that has not begun; None: no limit.
        poll_seconds: Time between two reads.
        has_ended: Whether the training has ended, for the time while the run cannot be read.

    Returns:
        The number of values that this call has written.

    Raises:
        ConfigError: The folder has another export, or another follower uses it, or TensorBoard is missing.
        ExportError: The folder cannot be written although the attempt has ended.
        RunError, SinkError: The run cannot be read.
    """
    chosen = selection or Selection()
    check_packages("tensorboard")
    if (folder / MARKER).exists():
        raise ConfigError(f"--out is {str(folder)!r}, which is a finished export; give another folder")
    with closing(create_trial(run, attempt=chosen.attempt, wait=wait)) as trial:
        attempt = trial.attempts[-1] if chosen.attempt is None and trial.attempts else chosen.attempt or 0
    pause, tries, count = _FIRST_PAUSE_SECONDS, 0, 0
    while True:
        follower = _Follower(run, folder, attempt, chosen, poll_seconds)
        try:
            follower.run()
            if tries:
                _set_note(run, attempt, None)
            return count + follower.values
        except RunError:  # the run is damaged or removed
            raise
        except OSError as error:  # also SinkError
            count += follower.saved_values
            pause = pause if not follower.saved_values else _FIRST_PAUSE_SECONDS
            tries = tries + 1 if follower.ended or has_ended() else min(tries + 1, 1)
            text = f"the export to {folder} has stopped: {error}"
            if tries == 1 or tries > _TRIES_AFTER_END:
                _set_note(run, attempt, text)
            if tries > _TRIES_AFTER_END:
                raise ExportError(f"{text}; run `tdcore export --follow` to continue it") from error
            time.sleep(min(pause, _LONGEST_PAUSE_SECONDS))
            pause *= 2


class _Follower:
    """One try of an export, from the stored state to the end of the attempt or an error.

    Attributes:
        values: Number of values that were written.
        saved_values: Number of those that the state contains.
        ended: Whether the attempt has ended.
    """

    def __init__(
        self,
        run: str | os.PathLike[str],
        folder: Path,
        attempt: int,
        selection: Selection,
        poll_seconds: float,
    ) -> None:
        self.values = self.saved_values = 0
        self.ended = False
        self._run, self._attempt, self._selection = run, attempt, selection
        self._root = folder
        self._home = folder / f"attempt_{attempt}"
        self._poll_seconds = poll_seconds
        self._newest = time.monotonic()  # time at which the newest rows were read
        self._run_id = ""
        self._done: defaultdict[str, Intervals] = defaultdict(Intervals)  # exported tickets, by worker
        self._texts: set[str] = set()  # checksums of exported texts
        self._files: dict[str, int] = {}  # event files of earlier followers

    def run(self) -> None:
        """Export until the attempt has ended. Raises OSError, SinkError, RunError."""
        from tdcore.export.tensorboard import TensorBoardTarget

        with closing(create_trial(self._run, attempt=self._attempt)) as trial:
            self._run_id = trial.run_id
            self.ended = self._has_ended(trial)
            self._home.mkdir(parents=True, exist_ok=True)
            with _locked(self._home):
                self._load()
                target = TensorBoardTarget(self._root, self._selection, _SUFFIX)
                try:
                    self._follow(trial, target)
                finally:
                    with suppress(OSError):
                        target.close()

    def _follow(self, trial: Trial, target: TensorBoardTarget) -> None:
        begun: set[str] = set()
        while True:
            trial.refresh()
            with no_refresh(trial):
                self.ended = self._has_ended(trial)
                for batch in trial.next_complete_batches((*COLUMNS, "ticket"), batch_rows=_BATCH_ROWS):
                    self._write(batch, target)
                self._begin(trial, target, begun)
                self._add_complete(trial)
                self._write_texts(trial, target)
            if self.ended:
                self._save(target)
                return
            time.sleep(self._poll_seconds)

    def _has_ended(self, trial: Trial) -> bool:
        """Whether the attempt has ended. An attempt before the latest one may still get rows for a moment."""
        if max(trial.attempts, default=0) <= self._attempt:
            return trial.status != "running"
        homes = {(worker, self._attempt) for worker in trial.workers_of(self._attempt)}
        return homes <= trial.ends().keys() or time.monotonic() - self._newest > _SILENT_SECONDS

    def _begin(self, trial: Trial, target: TensorBoardTarget, begun: set[str]) -> None:
        """Write the parameters of workers with exported steps, which have the hyper-parameters by then."""
        new = set(trial.workers()).intersection(self._done) - begun
        for worker in new:
            begun.add(worker)
            part = Part(trial, self._attempt, worker, self._selection)
            key = _checksum("parameters", worker)
            if key not in self._texts:
                target.begin(part, part.parameters())
                self._texts.add(key)
        if new:
            self._save(target)

    def _write(self, batch: pa.Table, target: TensorBoardTarget) -> None:
        """Write the rows of a batch that were not exported before, and the state."""
        workers, tickets = batch["worker"].cast("string").to_pylist(), batch["ticket"].to_pylist()
        homes = list(zip(workers, tickets, strict=True))
        new = [not self._done[worker].present(ticket, ticket) for worker, ticket in homes]
        fresh = batch.filter(new) if not all(new) else batch
        wanted = self._wanted(fresh)
        if wanted.num_rows:
            self.values += target.write(with_values(wanted))
        for worker, ticket in set(homes):
            self._done[worker].add(ticket, ticket)
        if fresh.num_rows:
            self._newest = time.monotonic()
            self._save(target)

    def _add_complete(self, trial: Trial) -> None:
        """Add the tickets without rows between exported ones, so that the state has few ranges."""
        for (worker, attempt), ranges in trial.complete_tickets().items():
            if attempt == self._attempt:
                for first, last in ranges:
                    self._done[worker].add(first, last)

    def _wanted(self, table: pa.Table) -> pa.Table:
        if self._selection.tensors is not None:
            found = pc.match_substring_regex(table["name"].cast("string"), self._selection.tensors)
            table = table.filter(found)
        if self._selection.kinds:
            kinds = set(self._selection.kinds)
            table = table.filter([kind in kinds for kind in table["kind"].to_pylist()])
        return table

    def _write_texts(self, trial: Trial, target: TensorBoardTarget) -> None:
        """Write new findings; at the end of the attempt also notes and missing data."""
        workers = trial.workers()
        selection = Selection(attempt=self._attempt)
        texts = run_texts(trial, selection) if self.ended else finding_texts(trial, selection)
        written = False
        for text in texts:
            content = text.text if text.kind == "missing" else _tensor(text)
            key = _checksum(text.kind, text.name, text.worker, text.mode, text.mode_step, content)
            if key in self._texts or not workers:
                continue
            worker = text.worker if text.worker in workers else workers[0]
            target.add_texts(f"attempt_{self._attempt}/{worker}", [text])
            self._texts.add(key)
            written = True
        if written:
            self._save(target)

    # State. ---------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Read the state, and undo events that were written after it.

        Raises:
            ConfigError: The folder has an export of another run, or files of the export are damaged.
        """
        if not _run_ids(self._root) <= {self._run_id}:
            raise ConfigError(f"{self._root} has an export of another run; give another folder")
        try:
            state = json.loads((self._home / _STATE).read_bytes())
            for worker, ranges in state["tickets"].items():
                for first, last in ranges:
                    self._done[worker].add(int(first), int(last))
            self._texts = set(map(str, state["texts"]))
            self._files = {str(name): int(size) for name, size in state["files"].items()}
        except FileNotFoundError:
            pass
        except _INVALID as error:
            raise ConfigError(
                f"{self._home / _STATE} is damaged ({error}); remove {self._home} to export the attempt again"
            ) from error
        for name, size in self._files.items():
            file = self._root / name
            found = os.path.getsize(file) if file.exists() else 0
            if found < size:
                raise ConfigError(
                    f"{file} has {found:,} bytes, and {size:,} were written; remove {self._home} to export "
                    "the attempt again"
                )
        for path in self._home.rglob(f"events.out.tfevents.*.{_SUFFIX}"):
            size = self._files.get(str(path.relative_to(self._root)), 0)
            if not size:
                path.unlink()
            elif path.stat().st_size > size:
                os.truncate(path, size)

    def _save(self, target: TensorBoardTarget) -> None:
        """Write all events and then the state. Raises OSError."""
        files = {**self._files, **target.flush()}
        document = {
            "run_id": self._run_id,
            "files": files,
            "tickets": {worker: done.present(0, done.end) for worker, done in self._done.items()},
            "texts": sorted(self._texts),
        }
        new = self._home / f"{_STATE}.new"
        new.write_text(json.dumps(document))
        new.replace(self._home / _STATE)
        self.saved_values = self.values


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which ends with the process. Raises ConfigError if it is taken."""
    with (folder / ".tdcore-follow.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{folder} is in use by another export of this attempt") from error
        yield


def _tensor(text: Text) -> object:
    return text.document.get("tensor") if isinstance(text.document, dict) else None


def _checksum(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).hexdigest()[:16]


def _set_note(run: str | os.PathLike[str], attempt: int, text: str | None) -> None:
    """Write or remove the note about the export in the run. An error is ignored: the note is a hint."""
    key = f"{COLLECTIONS_PREFIX}{NOTE}.json"
    with suppress(TdcoreError, OSError, *_INVALID), closing(open_sink(os.fspath(run))) as sink:
        sink.get(RUN_KEY)  # nothing is written to a recording of smdebug, or to a run that was removed
        try:
            attempts = json.loads(sink.get(key))["attempts"]
        except SinkKeyError:
            attempts = {}
        if text is None:
            attempts.pop(str(attempt), None)
        else:
            attempts[str(attempt)] = {"collections": {}, NOTE: text}
        sink.put(key, [json.dumps({"format": FORMAT_VERSION, "attempts": attempts}).encode()])


def _run_ids(folder: Path) -> set[str]:
    """The ids of the runs whose attempts were exported to the folder."""
    found = set()
    for path in folder.glob(f"attempt_*/{_STATE}"):
        with suppress(OSError, *_INVALID):
            found.add(str(json.loads(path.read_bytes())["run_id"]))
    return found


def _own_folder(folder: Path, run_id: str) -> Path:
    """The folder, or another one with the id of the run if the folder has the export of another run."""
    return folder if _run_ids(folder) <= {run_id} else folder.with_name(f"{folder.name}-{run_id[:8]}")


def main(arguments: Sequence[str]) -> int:
    """Entry point of the process that a hook starts. arguments: the job as JSON.

    The process ends when the attempt has ended, also if the training was killed.
    """
    job: dict[str, Any] = json.loads(arguments[0])
    with suppress(OSError):
        os.nice(10)  # the training goes first
    with suppress(OSError, ValueError):  # a job with many workers has many event files
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    selection = Selection(attempt=job["attempt"])
    folder = _own_folder(Path(job["folder"]), job["run_id"])

    def has_ended() -> bool:
        return process_is_gone(job["host"], job["pid"], job["started_ns"]) is not False

    while True:
        try:
            follow_run(job["run"], folder, selection=selection, has_ended=has_ended)
            return 0
        except ExportError:  # noqa: PERF203 -- once per try, with a pause between two
            return 1  # the run has a note
        except (RunNotFound, SinkError):  # for example while the bucket is unreachable
            if has_ended():
                return 1
            time.sleep(_LONGEST_PAUSE_SECONDS / 6)
        except Exception as error:
            text = str(error) if isinstance(error, TdcoreError) else f"{type(error).__name__}: {error}"
            print(f"tdcore: the export to TensorBoard has ended: {text}", file=sys.stderr)
            _set_note(job["run"], job["attempt"], text)
            return 1
