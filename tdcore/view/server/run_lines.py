"""RunLines: a line about each run of a folder, made in the background and made again when a run has changed.

Threads: the coroutines of one event loop call the methods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tdcore.sinks import is_remote
from tdcore.view.server.served_run import ServedRun, with_runs
from tdcore.view.server.signature import Signature, signature_of
from tdcore.view.server.worker import Worker

if TYPE_CHECKING:
    from tdcore.view.server.run_list import ListedRun

__all__ = ["RunLines"]

_CHECK_SECONDS = 5.0  # between two checks of a run that is not open
_REMOTE_CHECK_SECONDS = 60.0
_YIELDS, _YIELD_SECONDS = 100, 0.1
_STATUS_SECONDS = 30.0  # a run without new files may still change its status, because its process has died


@dataclass(slots=True)
class _Line:
    """The line of a run. checked: monotonic seconds. read: the same, when the run was read."""

    line: dict[str, Any]
    signature: Signature | None
    checked: float
    read: float


class RunLines:
    """Lines by id of a run.

    Args:
        changed: Called with id and status of a run whose line differs from before.
        busy: Whether pages wait for answers, which have priority.
    """

    def __init__(self, changed: Callable[[str, str], None], busy: Callable[[], bool]) -> None:
        self._changed, self._busy = changed, busy
        self._worker = Worker("tdcore-view-lines")
        self._lines: dict[str, _Line] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def expect(self, entries: Mapping[str, ListedRun], open_runs: Mapping[str, ServedRun]) -> None:
        """Start to make the lines that are missing or may have changed, and drop lines of other runs."""
        for run_id in [run_id for run_id in self._lines if run_id not in entries]:
            del self._lines[run_id]
        for run_id, entry in entries.items():
            if run_id not in self._tasks and not entry.error and self._is_due(run_id, entry, open_runs):
                task = asyncio.create_task(self._make(entry, open_runs.get(run_id)))
                self._tasks[run_id] = task
                task.add_done_callback(lambda _, run_id=run_id: self._tasks.pop(run_id, None))  # type: ignore[misc]

    def forget(self, run_id: str) -> None:
        """Make the line of an open run again, because the run has changed."""
        if run_id in self._lines:
            self._lines[run_id].checked = float("-inf")

    async def complete(self, seconds: float) -> None:
        """Wait until all lines are made, at most for a time."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()), timeout=seconds)

    def line(self, entry: ListedRun) -> dict[str, Any]:
        """The newest line of a run. Its status is "reading" while there is none."""
        from tdcore.view.answers import unreadable

        if entry.error:
            return unreadable(entry.id, Exception(entry.error))
        known = self._lines.get(entry.id)
        if known is None:
            return {**unreadable(entry.id, Exception()), "status": "reading"}
        return known.line

    def close(self) -> None:
        """Stop the work."""
        for task in list(self._tasks.values()):
            task.cancel()
        self._worker.close()

    def _is_due(self, run_id: str, entry: ListedRun, open_runs: Mapping[str, ServedRun]) -> bool:
        known = self._lines.get(run_id)
        if known is None:
            return True
        if run_id in open_runs:
            return known.checked == float("-inf")
        pause = _REMOTE_CHECK_SECONDS if is_remote(entry.place) else _CHECK_SECONDS
        return time.monotonic() - known.checked >= pause

    async def _make(self, entry: ListedRun, served: ServedRun | None) -> None:
        known = self._lines.get(entry.id)
        if served is None or served.worker.closed:
            await self._yield_to_pages()
            made = await self._worker.call(lambda: _newer(entry, known))
        else:
            made = await _of_open(entry, served)
        self._lines[entry.id] = made
        if known is None or known.line != made.line:
            self._changed(entry.id, made.line["status"])

    async def _yield_to_pages(self) -> None:
        """Wait while pages wait for answers, but not for ever."""
        for _ in range(_YIELDS):
            await asyncio.sleep(_YIELD_SECONDS)  # the first page requests its answer after the list of runs
            if not self._busy():
                break


async def _of_open(entry: ListedRun, served: ServedRun) -> _Line:
    """The line of an open run, made in its thread."""
    from tdcore.view.answers import run_line, unreadable

    try:
        line = await with_runs([served], lambda runs: run_line(runs[0]))
    except Exception as error:  # the other runs are listed
        line = unreadable(entry.id, error)
    return _Line(line, None, checked=time.monotonic(), read=time.monotonic())


def _newer(entry: ListedRun, known: _Line | None) -> _Line:
    """The line of a run that is not open. It is read only if it may have changed."""
    now = time.monotonic()
    remote = is_remote(entry.place)
    signature = None if remote else signature_of(entry.place)
    if known is not None and not _may_differ(known, signature, remote, now):
        known.checked = now
        return known
    return _Line(_read(entry), signature, checked=now, read=now)


def _may_differ(known: _Line, signature: Signature | None, remote: bool, now: float) -> bool:
    if known.line["status"] == "running" and now - known.read >= _STATUS_SECONDS:
        return True
    return not remote and (signature is None or signature.differs(known.signature))


def _read(entry: ListedRun) -> dict[str, Any]:
    from tdcore.view.answers import OpenRun, run_line, unreadable

    try:
        with closing(OpenRun(entry.id, entry.place)) as run:
            run.trial.frozen = True
            return run_line(run)
    except Exception as error:  # the other runs are listed
        return unreadable(entry.id, error)
