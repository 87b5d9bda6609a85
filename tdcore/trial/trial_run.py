"""TrialRun: methods of Trial about the run itself: attempts and their ends, missing data, findings.

Threads: see Trial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tdcore.errors import InvalidCollection
from tdcore.format.run_patterns import RunPatterns
from tdcore.modes import ModeKeys
from tdcore.sinks import shown_place
from tdcore.text.short_repr import how_many
from tdcore.trial.absence import why_no_value
from tdcore.trial.collections import SavedCollection
from tdcore.trial.documents import (
    Attempt,
    RunEnd,
    read_collections,
    read_findings,
    read_notes,
    read_notes_of_workers,
)
from tdcore.trial.gaps import Gap, all_gaps
from tdcore.trial.index import Index
from tdcore.trial.missing import Missing, find_missing
from tdcore.trial.reader import Reader
from tdcore.trial.run_notes import why_absent

if TYPE_CHECKING:
    from tdcore.trial.progress import RunStatus

__all__ = ["TrialRun"]

WHEN_ROWS_COME = (
    "rows appear a second or two after their capture, and all rows once hook.flush() or hook.close() "
    "has returned"
)


class TrialRun:
    """Methods of Trial about the run itself. name: for display. path: folder or URL of the run."""

    def __init__(self, reader: Reader, path: str, name: str) -> None:
        self.name = name
        self.path = path
        self._reader = reader
        self.patterns = RunPatterns()  # patterns of collections.json
        self._collections: dict[str, SavedCollection] = {}  # collections that were returned
        self._shown = np.zeros(0, dtype=np.bool_)  # rows that next_complete() has returned
        self._noted: list[tuple[str, int, dict[str, Any]]] | None = None  # notes as last read by missing()

    @property
    def frozen(self) -> bool:
        """Whether methods use only data that was read before; see no_refresh."""
        return self._reader.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self._reader.frozen = frozen
        self._noted = None

    def __repr__(self) -> str:
        reader = self._reader
        steps = reader.view.steps
        span = f", global steps {steps[0]}..{steps[-1]}" if len(steps) else ""
        rows, status = how_many(len(reader.index), "row"), reader.progress.status
        going = f" so far ({WHEN_ROWS_COME})" if status == "running" else ""
        return f"<Trial {self.name!r} at {shown_place(self.path)!r}: {status}, {rows}{span}{going}>"

    @property
    def open_hint(self) -> str:
        """A hint that the newest tensors may be missing because the run continues; "" if it has ended."""
        if self.status != "running":
            return ""
        return f"the run is still being written: {WHEN_ROWS_COME}"

    @property
    def index(self) -> Index:
        """The rows of the run; Index.poll() returns new rows."""
        return self._reader.index

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._reader.progress.run.run_id

    @property
    def attempts(self) -> list[int]:
        """Numbers of all attempts, sorted."""
        self._reader.auto_refresh()
        return self._reader.progress.attempts

    def workers_of(self, attempt: int) -> set[str]:
        """Workers of an attempt, also those that have saved nothing so far.

        Raises InvalidAttempt if the run has no such attempt.
        """
        self._reader.auto_refresh()
        self._reader.check_attempt(attempt)
        return set(self._reader.progress.workers(attempt))

    def attempt_info(self, attempt: int | None = None) -> Attempt | None:
        """Entry of an attempt in run.json: framework, configuration, host.

        attempt: None: the latest attempt.

        Returns:
            None if run.json has no entry.
        """
        self._reader.auto_refresh()
        number = self._reader.progress.latest_attempt if attempt is None else attempt
        return self._reader.progress.run.by_number.get(number)

    @property
    def status(self) -> RunStatus:
        """Status of the latest attempt: "running", "ended" (closed by the training) or "died"."""
        self._reader.auto_refresh()
        return self._reader.progress.status

    @property
    def loaded_all_steps(self) -> bool:
        """Whether the run has ended and all of its data was read."""
        return self.status != "running"

    def ends(self) -> dict[tuple[str, int], RunEnd]:
        """The end of each (worker, attempt): clean or not, drops by reason, gaps.

        Attempts that have not ended are not in the result.
        """
        self._reader.auto_refresh()
        return dict(self._reader.progress.ends)

    @property
    def gaps(self) -> list[Gap]:
        """Tensors that were captured but are not in the run, by attempt and worker.

        These are tensors that the writer counted as lost, and tickets that no index file covers although
        later tickets are covered.
        """
        self._reader.auto_refresh()
        return all_gaps(self._reader.index, self._reader.progress.ends)

    def missing(self) -> list[Missing]:
        """Data that is missing in the run; empty if the run is complete.

        The result has missing rows between existing rows, tensors that the writer counted as lost, tensors
        whose names were left out, and missing end files of workers without new rows. If the job ended while
        its bucket was unreachable, the result has the host and the spool folder with the rest of the data.
        This method reads the workers' files of collections (within no_refresh only once) and, once, a small
        file of each worker with missing data.
        """
        self._reader.auto_refresh()
        if self._noted is None or not self._reader.frozen:
            self._noted = list(read_notes_of_workers(self._reader.sink))
        return find_missing(self._reader.index, self._reader.progress, self._noted)

    def findings(self) -> list[dict[str, Any]]:
        """Findings of rules so far, in order of rules."""
        return read_findings(self._reader.sink)

    def refresh(self) -> None:
        """Read new data of the run, also within no_refresh."""
        self._reader.refresh()

    def close(self) -> None:
        """Close files and connections. Arrays that were returned stay valid."""
        self._reader.sink.close()

    def notes(self, attempt: int | None = None) -> dict[str, Any]:
        """Notes of the hook: "never_called", "not_tapped", "not_in_compiled_code", "frozen", "faults", ...

        attempt: Number of the attempt. None: the latest attempt with notes among the attempts that this trial
            reads.
        """
        found = self.all_notes()
        wanted = self._reader.attempt if attempt is None else attempt
        number = max(found, default=-1) if wanted is None else wanted
        return found.get(number, {})

    def all_notes(self) -> dict[int, dict[str, Any]]:
        """Notes of the hook by attempt; see notes()."""
        return read_notes(self._reader.sink)

    def why_absent(
        self,
        tensor_name: str,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        worker: str | None = None,
    ) -> str:
        """The reason why a tensor has no value at a step, in words; empty if it has a value.

        Args:
            tensor_name: Name of a tensor, which need not be in the run.
            step: Step of the mode; a global step with ModeKeys.GLOBAL. None: the result is ": " and the
                hook's reason why the tensor was never saved; empty if there is no such reason.
            mode: Mode of the step.
            worker: The worker without a value; None: the first worker that saved tensors.

        Raises:
            InvalidWorker: A step is given, and the run has no such worker.
        """
        if step is not None:
            self._reader.auto_refresh()
            return why_no_value(self._reader, self.notes(), tensor_name, step, mode, worker)
        why = why_absent(self.notes(), tensor_name)
        return f": {why}" if why else ""

    def collections(self) -> dict[str, SavedCollection]:
        """Collections by name, each from the latest attempt that has it.

        A trial returns the same objects each time, so patterns that were added with include() stay.
        """
        found: dict[str, SavedCollection] = {}
        saved = read_collections(self._reader.sink)
        for attempt in sorted(saved):
            if self._reader.attempt in (None, attempt):
                for name, entry in saved[attempt].items():
                    found[name] = SavedCollection.from_document(name, entry, self.patterns)
        for name, collection in found.items():
            self._collections.setdefault(name, collection).take(collection)
        return dict(self._collections)

    def collection(self, coll_name: str) -> SavedCollection:
        """One collection. Raises InvalidCollection, which lists the existing collections.

        With create_trial(compat=True) a missing collection is created as an empty collection, as in smdebug.
        """
        found = self.collections()
        if coll_name in found:
            return found[coll_name]
        if self._reader.compat:
            return self._collections.setdefault(
                coll_name, SavedCollection(name=coll_name, patterns=self.patterns)
            )
        there = ", ".join(sorted(found)) or "none"
        raise InvalidCollection(f"run {self.name!r} has no collection {coll_name!r}; it has {there}")
