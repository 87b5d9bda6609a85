"""ServedRun: a run that is open in the view, with its thread, its version, and the process of its rules.

Threads: coroutines of the event loop call the methods, except those whose docstrings name the run's thread.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from tdcore.errors import RunError, RunNotFound, TdcoreError
from tdcore.text.quoting import quoted
from tdcore.view.server.rules_process import RulesProcess
from tdcore.view.server.signature import Signature, signature_of
from tdcore.view.server.worker import Worker, call_together

if TYPE_CHECKING:
    from tdcore.view.answers.opened import Judgement, OpenRun
    from tdcore.view.server.run_list import ListedRun

__all__ = ["ServedRun", "next_version", "with_runs"]

T = TypeVar("T")

_log = logging.getLogger("tdcore.view")

# Seconds between two reads of a run without new files, by status: its process may die, it may be repaired.
_PAUSES = {"reading": 0.0, "running": 2.0, "unreadable": 5.0}
_REMOTE_PAUSES = {"reading": 0.0, "running": 1.5, "ended": 20.0, "died": 20.0, "unreadable": 20.0}
_versions = itertools.count(1)


def next_version() -> int:
    """A number that is larger than all before, so that a run that is opened again has new versions."""
    return next(_versions)


class ServedRun:
    """One open run.

    Args:
        entry: The run.
        remote: Whether it is in a bucket.
        changed: Called from any thread when `version` has changed.
        judges: Whether rules judge the run.

    Attributes:
        version: Number that is larger after each change of the data or of the verdicts.
        error: Why the run cannot be read now; None if it can be read.
        status: Status of the run for pages.
        used: Monotonic time of the last request.
    """

    def __init__(
        self, entry: ListedRun, *, remote: bool, changed: Callable[[ServedRun], None], judges: bool
    ) -> None:
        self.entry = entry
        self.version = next_version()
        self.error: TdcoreError | None = None
        self.status = "reading"
        self.used = time.monotonic()
        self.worker = Worker(f"tdcore-view-{entry.id}"[:60])
        self._remote = remote
        self._changed = changed
        self._judges = judges
        # Used by the run's thread only:
        self._run: OpenRun | None = None
        self._run_id = ""
        self._signature: Signature | None = None
        self._state: object = None
        self._read_at = float("-inf")
        self._rules: RulesProcess | None = None
        # Assigned by the thread of the rules:
        self._judgement: Judgement | None = None
        self._rules_error = ""

    async def poll(self) -> None:
        """Read new data of the run, if there may be any."""
        await self.worker.call(self.read_new)

    def read_new(self) -> None:
        """Read new data, if there may be any, and set `version`, `status` and `error`. The run's thread."""
        signature = None if self._remote else signature_of(self.entry.place)
        if not self._is_due(signature):
            return
        self._read_at, self._signature = time.monotonic(), signature
        before = self._state
        try:
            self._state = self._read(signature)
            self.error = None
        except TdcoreError as error:
            self._fail(error)
        except Exception as error:  # a bug of tdcore: the other runs stay readable
            self._fail(RunError(f"{self.entry.id} cannot be read: {type(error).__name__}: {error}"))
        if self._state != before:
            self._update()
            if self._rules is not None and not self.error:
                self._rules.request()

    def open(self) -> OpenRun:
        """The run, with its newest data. The run's thread.

        Raises RunError or SinkError if the run cannot be read.
        """
        self.read_new()
        if self._run is None:
            raise self.error or RunError(f"{self.entry.id} cannot be read")
        self._judge()
        return self._run

    def close(self) -> None:
        """Close the run after the calls in its queue, and end its processes."""
        rules = self._rules
        if rules is not None:  # now, although a call may still read the run
            rules.close()
        self.worker.close(self._close)

    # In the run's thread. -----------------------------------------------------------------------------

    def _is_due(self, signature: Signature | None) -> bool:
        silent = time.monotonic() - self._read_at
        pauses = _REMOTE_PAUSES if self._remote else _PAUSES
        if not self._remote and (signature is None or signature.differs(self._signature)):
            return True
        return silent >= pauses.get(self.status, math.inf)

    def _read(self, signature: Signature | None) -> object:
        """Read the run, and return a value that differs after a change."""
        if not self._remote and signature is None:
            raise RunNotFound(f"{self.entry.place} was removed, or is not readable")
        run = self._refreshed()
        trial = run.trial
        self.status = trial.status
        findings = trial.findings() if self._remote else None
        folders = None if signature is None else signature.folders
        return (self._run_id, len(trial.index), trial.status, len(trial.ends()), folders, findings)

    def _refreshed(self) -> OpenRun:
        from tdcore.view.answers.opened import OpenRun

        run = self._run
        if run is not None:
            run.trial.refresh()
            if run.trial.run_id == self._run_id:
                run.trial.frozen = True  # again, so that cached notes are read again
                return run
            self._close_run()  # another run is at this place now
            self._judgement = None
        run = OpenRun(self.entry.id, self.entry.place)
        self._run, self._run_id = run, run.trial.run_id
        run.trial.frozen = True
        return run

    def _fail(self, error: TdcoreError) -> None:
        self.error, self.status, self._state = error, "unreadable", str(error)
        self._close_run()

    def _close(self) -> None:
        self._close_run()
        if self._rules is not None:
            self._rules.close()

    def _close_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _judge(self) -> None:
        if self._judges and self._rules is None:
            self._rules = RulesProcess(self.entry.place, self._judged)
            self._rules.request()
        if self._run is not None:
            self._run.judgement = self._judgement
            self._run.rules_error = self._rules_error
            self._run.judging = self._rules is not None and self._rules.pending

    # In the thread of the rules. ----------------------------------------------------------------------

    def _judged(self, answer: Judgement | str) -> None:
        """Keep the verdicts for the next answers; or the reason why there are none."""
        if not isinstance(answer, str):
            self._rules_error, self._judgement = "", answer
        elif answer != self._rules_error:
            self._rules_error = answer
            _log.warning(
                "tdcore: the rules of %s failed: %s", quoted(self.entry.id, 100), quoted(answer, 500)
            )
        self._update()

    def _update(self) -> None:
        self.version = next_version()
        self._changed(self)


async def with_runs(runs: list[ServedRun], function: Callable[[list[OpenRun]], T]) -> T:
    """Call a function with runs that no other thread uses meanwhile, in the thread of one of them.

    Raises RunError or SinkError if a run cannot be read.
    """
    in_order = sorted(runs, key=lambda run: run.entry.id)
    return await call_together(
        [run.worker for run in in_order], lambda: function([run.open() for run in runs])
    )
