"""ServedRuns: the list of the view's runs, the open runs, and a line about each run.

At most MAX_OPEN runs are open. The run whose last request is longest ago is closed first. The lines of all
runs are made in a thread of their own, so that a folder of hundreds of runs is listed at once and completed
later.
Threads: the coroutines of one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from tdcore.errors import RunNotFound, TdcoreError
from tdcore.text.short_repr import cut
from tdcore.view.server.run_lines import RunLines
from tdcore.view.server.served_run import ServedRun, next_version, with_runs
from tdcore.view.server.worker import Worker

if TYPE_CHECKING:
    from tdcore.view.answers.opened import OpenRun
    from tdcore.view.server.run_list import ListedRun, RunList

__all__ = ["MAX_OPEN", "ServedRuns"]

T = TypeVar("T")

MAX_OPEN = 16
_POLL_SECONDS = 0.5  # between two searches for new data of the open runs
_SCAN_SECONDS, _REMOTE_SCAN_SECONDS = 2.0, 30.0  # between two searches for runs
_FIRST_LINES_SECONDS = 0.3  # maximum time that a list of runs waits for lines that are missing


class ServedRuns:
    """The runs at the opened place.

    Args:
        listed: The place.
        judges: Whether rules judge open runs.
        max_open: Maximum number of open runs.

    Attributes:
        changed: Called with id, version and status of each run that has changed.
    """

    def __init__(self, listed: RunList, *, judges: bool = True, max_open: int = MAX_OPEN) -> None:
        self.place = listed
        self.changed: Callable[[str, int, str], None] = lambda *_: None
        self._judges = judges
        self._max_open = max_open
        self._entries: dict[str, ListedRun] = {}
        self._scanned = float("-inf")
        self._scanning: asyncio.Task[None] | None = None
        self._open: dict[str, ServedRun] = {}
        self._scanner = Worker("tdcore-view-scan")
        self._lines = RunLines(
            self._line_changed, lambda: any(run.worker.busy for run in self._open.values())
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    async def scan(self, *, at_least_every: float = 0.0) -> None:
        """Search for runs, or wait for the search in progress, unless that was done in the last seconds."""
        if self._scanning is None:
            if time.monotonic() - self._scanned < at_least_every:
                return
            self._scanning = asyncio.create_task(self._scan())
        await asyncio.shield(self._scanning)

    def current(self) -> dict[str, tuple[int, str]]:
        """Version and status of each open run, by id."""
        return {run_id: (run.version, run.status) for run_id, run in self._open.items()}

    async def only_id(self) -> str | None:
        """The id of the run if there is exactly one, which the first page shows; else None."""
        await self.scan(at_least_every=self._scan_seconds)
        return next(iter(self._entries)) if len(self._entries) == 1 else None

    async def versions(self, ids: Sequence[str]) -> tuple[int, ...]:
        """The versions of these runs, after their new data was read.

        Raises RunNotFound if there is no such run.
        """
        runs = [await self._served(run_id) for run_id in ids]
        await asyncio.gather(*(run.poll() for run in runs))
        return tuple(run.version for run in runs)

    async def call(self, ids: Sequence[str], function: Callable[[list[OpenRun]], T]) -> T:
        """Call a function with these runs, in the thread of one of them.

        Raises RunNotFound if there is no such run, RunError or SinkError if a run cannot be read.
        """
        return await with_runs([await self._served(run_id) for run_id in ids], function)

    async def lines(self) -> list[dict[str, Any]]:
        """`RunLine` of the contract for each run, in the order of the numbers in their names."""
        await self.scan(at_least_every=self._scan_seconds)
        if len(self._entries) == 1:  # the page shows this run next
            with suppress(RunNotFound):
                await self._served(next(iter(self._entries)))
        self._lines.expect(self._entries, self._open)
        await self._lines.complete(_FIRST_LINES_SECONDS)
        return list(map(self._lines.line, self._entries.values()))

    async def entry(self, run_id: str) -> ListedRun:
        """The entry of a run. Raises RunNotFound."""
        for _ in range(2):  # the first search may have begun before the run was written
            if run_id not in self._entries:
                await self.scan()
        entry = self._entries.get(run_id)
        if entry is None:
            raise RunNotFound(
                f"there is no run {cut(run_id)!r} in {self.place.shown}; it was removed, or never there"
            )
        if entry.error:
            raise RunNotFound(entry.error)
        return entry

    async def first_id(self) -> str:
        """The id of the first run, for requests that name none. Raises RunNotFound if there is no run."""
        if not self._entries:
            await self.scan(at_least_every=1.0)
        if not self._entries:
            raise RunNotFound(f"there is no run at {self.place.shown} yet")
        return next(iter(self._entries))

    async def watch(self) -> None:
        """Read new data of open runs and search for runs, again and again. Runs until it is cancelled."""
        tasks: set[asyncio.Task[None]] = set()  # no run waits for another run
        try:
            while True:
                for run in self._open.values():
                    if not run.worker.busy:
                        tasks.add(asyncio.create_task(_poll(run)))
                if not self._scanner.busy:
                    tasks.add(asyncio.create_task(self._look()))
                await asyncio.sleep(_POLL_SECONDS)
                tasks = {task for task in tasks if not task.done()}
        finally:
            for task in tasks:
                task.cancel()

    async def _scan(self) -> None:
        from tdcore.text.natural_order import natural_key

        self._loop = asyncio.get_running_loop()
        try:
            found = await self._scanner.call(self.place.scan)
        finally:
            self._scanned, self._scanning = time.monotonic(), None
        entries = {run_id: found[run_id] for run_id in sorted(found, key=natural_key)}
        gone = [run_id for run_id, entry in self._entries.items() if entries.get(run_id) != entry]
        new = [run_id for run_id in entries if run_id not in self._entries]
        self._entries = entries
        for run_id in gone:
            self._close(run_id)
            self.changed(run_id, next_version(), "unreadable")
        for run_id in new:
            self.changed(run_id, next_version(), "reading")

    async def _look(self) -> None:
        """Search for runs, and for changes of runs that are not open."""
        with suppress(TdcoreError):  # an unreachable bucket: the next search may succeed
            await self.scan(at_least_every=self._scan_seconds)
        self._lines.expect(self._entries, self._open)

    def close(self) -> None:
        """Close all runs, and end their processes."""
        for run_id in list(self._open):
            self._close(run_id)
        self._lines.close()
        self._scanner.close()

    @property
    def _scan_seconds(self) -> float:
        return _REMOTE_SCAN_SECONDS if self.place.remote and self._entries else _SCAN_SECONDS

    async def _served(self, run_id: str) -> ServedRun:
        entry = await self.entry(run_id)
        run = self._open.get(run_id)
        if run is None:
            self._make_room()
            run = ServedRun(entry, remote=self.place.remote, changed=self._run_changed, judges=self._judges)
            self._open[run_id] = run
        run.used = time.monotonic()
        return run

    def _make_room(self) -> None:
        idle = sorted((run for run in self._open.values() if not run.worker.busy), key=lambda run: run.used)
        for run in idle[: max(0, len(self._open) - self._max_open + 1)]:
            self._close(run.entry.id)

    def _close(self, run_id: str) -> None:
        run = self._open.pop(run_id, None)
        if run is not None:
            run.close()

    def _run_changed(self, run: ServedRun) -> None:
        """Report the new version of a run. Any thread."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(self._report, run)

    def _report(self, run: ServedRun) -> None:
        if self._open.get(run.entry.id) is run:
            self._lines.forget(run.entry.id)
            self.changed(run.entry.id, run.version, run.status)

    def _line_changed(self, run_id: str, status: str) -> None:
        self.changed(run_id, next_version(), status)


async def _poll(run: ServedRun) -> None:
    with suppress(RunNotFound):  # closed since the task was made
        await run.poll()
