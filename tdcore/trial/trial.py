"""Trial: a run as its reader sees it, finished or still being written.

    run = create_trial("runs/demo")
    run.tensor("gradient/fc.weight").value(120)          # NumPy array
    run.stats("gradient/.*", steps=range(0, 500, 10))    # pyarrow.Table: a row per tensor, step and worker

Names and meanings are those of the older library's trial. A Trial only reads: it takes no locks, changes
nothing in the run, and may run in any process on any machine that sees the files. Threads: one Trial, one
thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from tdcore.errors import (
    ConfigError,
    InvalidCollection,
    NoMoreData,
    StepUnavailable,
    TensorUnavailable,
    WaitTimeout,
)
from tdcore.modes import ModeKeys
from tdcore.trial.collections import SavedCollection, kind_of
from tdcore.trial.documents import Attempt, RunEnd, read_collections, read_findings, read_notes
from tdcore.trial.index import Hole, Index
from tdcore.trial.missing import Missing, find_missing
from tdcore.trial.notes import why_absent
from tdcore.trial.reader import Reader
from tdcore.trial.steps import StepState
from tdcore.trial.tensor import Tensor
from tdcore.trial.view import as_list, patterns

if TYPE_CHECKING:
    from tdcore.trial.progress import RunStatus

__all__ = ["Trial"]

Steps: TypeAlias = "int | range | Iterable[int]"


class Trial:
    """Made by create_trial(). Every question looks at the run anew; `no_refresh` holds the answers still.

    name: for the user. path: where the run is.
    """

    def __init__(self, reader: Reader, path: str, name: str) -> None:
        self.name = name
        self.path = path
        self._reader = reader
        self._shown = np.zeros(0, dtype=np.bool_)  # rows that next_complete() has given out

    @property
    def frozen(self) -> bool:
        """Whether questions are answered from what was read so far; see no_refresh."""
        return self._reader.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        self._reader.frozen = frozen

    def __repr__(self) -> str:
        return f"Trial({self.name!r}, path={self.path!r}, {len(self._reader.index)} rows)"

    # The run. -------------------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The rows themselves; Index.poll() gives new ones."""
        return self._reader.index

    @property
    def run_id(self) -> str:
        """The run's own id."""
        return self._reader.progress.run.run_id

    @property
    def attempts(self) -> list[int]:
        """Numbers of all attempts, sorted."""
        self._reader.auto_refresh()
        return self._reader.progress.attempts

    def attempt_info(self, attempt: int | None = None) -> Attempt | None:
        """What run.json says of an attempt (None: the latest): framework, configuration, host.

        None when nothing.
        """
        self._reader.auto_refresh()
        number = self._reader.progress.latest_attempt if attempt is None else attempt
        return next((each for each in self._reader.progress.run.attempts if each.number == number), None)

    @property
    def status(self) -> RunStatus:
        """Of the latest attempt: "running", "ended" (closed by the training) or "died"."""
        self._reader.auto_refresh()
        return self._reader.progress.status

    @property
    def loaded_all_steps(self) -> bool:
        """True when the run has ended and all that it wrote was read."""
        return self.status != "running"

    def ends(self) -> dict[tuple[str, int], RunEnd]:
        """How each (worker, attempt) ended: clean or not, drops by reason, gaps.

        Those that have not are not in it.
        """
        self._reader.auto_refresh()
        return dict(self._reader.progress.ends)

    @property
    def gaps(self) -> list[Hole]:
        """Rows that are missing from the index: tickets that no file covers although later ones are there."""
        self._reader.auto_refresh()
        return self._reader.index.holes

    def missing(self) -> list[Missing]:
        """What should be there and is not: rows between others, and ends of workers that have gone silent.

        Of a run whose job ended while its bucket was away, this names the host and the spool folder that hold
        the rest. Empty while all is well. Reads a small file per worker concerned, once.
        """
        self._reader.auto_refresh()
        return find_missing(self._reader.index, self._reader.progress)

    def findings(self) -> list[dict[str, Any]]:
        """What rules have found so far, in order of rules."""
        return read_findings(self._reader.sink)

    def refresh(self) -> None:
        """Takes in what the run has now, also within no_refresh."""
        self._reader.refresh()

    def close(self) -> None:
        """Lets go of the place. Arrays that were given out stay valid."""
        self._reader.sink.close()

    # Tensors. -------------------------------------------------------------------------------------

    def tensor_names(
        self,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Sequence[str] | None = None,
        collection: str | SavedCollection | None = None,
    ) -> list[str]:
        """Names of tensors that were saved and pass all filters, sorted. Empty where none does.

        step: saved at that step (of the mode). regex: patterns, searched in the name, any of them.
        collection: name or object; InvalidCollection for a name that the run lacks.
        """
        if regex is not None and collection is not None:
            raise ConfigError("give regex or collection, not both: a collection has patterns of its own")
        self._reader.auto_refresh()
        view, index = self._reader.view, self._reader.index
        rows = self._reader.saved(self._reader.tensors_only(view.rows))
        if step is not None:
            rows = view.at_step(rows, step, mode.name)
        elif mode is not ModeKeys.GLOBAL:
            rows = rows[index.column("mode")[rows] == index.vocabularies["mode"].code(mode.name)]
        names = [index.texts("name")[code] for code in view.names(rows)]
        if regex is not None:
            tests = patterns(regex)
            names = [text for text in names if any(test.search(text) for test in tests)]
        if collection is not None:
            chosen = self.collection(collection) if isinstance(collection, str) else collection
            members, kinds = chosen.matcher(), self._kinds()
            names = [text for text in names if members.belongs(text, kind_of(kinds[text]))]
        return names

    def has_tensor(self, tensor_name: str) -> bool:
        """Whether anything of a tensor of this name was saved."""
        self._reader.auto_refresh()
        code = self._reader.index.vocabularies["name"].code(tensor_name)
        return code >= 0 and len(self._reader.view.rows_of(code)) > 0

    def tensor(self, tensor_name: str) -> Tensor:
        """The tensor of this name. Raises TensorUnavailable when nothing of it was saved so far."""
        if not self.has_tensor(tensor_name):
            raise TensorUnavailable(
                f"run {self.name!r} has no tensor {tensor_name!r}"
                f"{self.why_absent(tensor_name) or self._similar(tensor_name)}; "
                "tensor_names() lists what was saved"
            )
        return Tensor(self._reader, tensor_name)

    def notes(self, attempt: int | None = None) -> dict[str, Any]:
        """What the hook noted: "never_called" and "not_tapped" modules, "frozen", "aliases", "faults", ...

        attempt: None is the latest that has notes, of those that this trial reads.
        """
        found = read_notes(self._reader.sink)
        wanted = self._reader.attempt if attempt is None else attempt
        number = max(found, default=-1) if wanted is None else wanted
        return found.get(number, {})

    def why_absent(self, tensor_name: str) -> str:
        """ ": " and the reason that the hook gave why nothing of the tensor was saved; empty when none."""
        why = why_absent(self.notes(), tensor_name)
        return f": {why}" if why else ""

    def collections(self) -> dict[str, SavedCollection]:
        """Collections by name, as the latest attempt that has each of them saved it.

        Empty when the run has none.
        """
        found: dict[str, SavedCollection] = {}
        saved = read_collections(self._reader.sink)
        for attempt in sorted(saved):
            if self._reader.attempt in (None, attempt):
                for name, entry in saved[attempt].items():
                    found[name] = SavedCollection.from_document(name, entry)
        return found

    def collection(self, coll_name: str) -> SavedCollection:
        """One collection. Raises InvalidCollection, naming those that there are."""
        found = self.collections()
        if coll_name not in found:
            there = ", ".join(sorted(found)) or "none"
            raise InvalidCollection(f"run {self.name!r} has no collection {coll_name!r}; it has {there}")
        return found[coll_name]

    # Steps. ---------------------------------------------------------------------------------------

    def steps(self, mode: ModeKeys = ModeKeys.GLOBAL, show_incomplete_steps: bool = False) -> list[int]:
        """Steps with anything saved, sorted: global ones, or those of the mode.

        show_incomplete_steps: also those that some worker may still add to.
        """
        self._reader.auto_refresh()
        return self._reader.steps(mode, incomplete=show_incomplete_steps)

    def modes(self) -> list[ModeKeys]:
        """Modes in which anything was saved."""
        self._reader.auto_refresh()
        index = self._reader.index
        codes = np.unique(index.column("mode")[self._reader.view.step_rows]).tolist()
        return sorted((ModeKeys[index.texts("mode")[code]] for code in codes), key=lambda mode: mode.value)

    def mode(self, global_step: int) -> ModeKeys:
        """Mode of a global step. Raises StepUnavailable when nothing of it was saved so far."""
        row = self._row_of(global_step)
        return ModeKeys[self._reader.index.text("mode", row) or "GLOBAL"]

    def mode_step(self, global_step: int) -> int:
        """Step within its mode of a global step. Raises as mode()."""
        return int(self._reader.index.column("mode_step")[self._row_of(global_step)])

    def global_step(self, mode: ModeKeys, mode_step: int) -> int:
        """Global step of a step of a mode; the last of several with that number. Raises StepUnavailable."""
        self._reader.auto_refresh()
        view = self._reader.view
        rows = view.at_step(view.step_rows, mode_step, mode.name)
        if len(rows) == 0:
            raise StepUnavailable(f"run {self.name!r} has nothing of step {mode_step} of mode {mode.name}")
        return int(self._reader.index.column("step")[rows].max())

    def workers(self) -> list[str]:
        """Workers that have saved anything, sorted by rank."""
        self._reader.auto_refresh()
        return self._reader.workers()

    def has_passed_step(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> StepState:
        """AVAILABLE: saved and complete. NOT_YET_AVAILABLE: it may still come. UNAVAILABLE: it will not."""
        self._reader.auto_refresh()
        return self._reader.state(step, mode)

    def wait_for_steps(
        self,
        required_steps: Iterable[int],
        mode: ModeKeys = ModeKeys.GLOBAL,
        *,
        timeout: timedelta | None = None,
        interval: timedelta | None = None,
    ) -> None:
        """Returns when all these steps are there and complete.

        interval: between two looks; None: 0.2 s in a folder, a second in a bucket.

        Raises StepUnavailable when the run has passed one without saving it, NoMoreData when it ended
        before one, and WaitTimeout after `timeout` (None: waits as long as the run goes on).
        """
        reader = self._reader
        deadline = None if timeout is None else reader.clock() + timeout.total_seconds()
        for step in required_steps:
            while True:
                reader.refresh()
                state = reader.state(step, mode)
                if state is StepState.AVAILABLE:
                    break
                if state is StepState.UNAVAILABLE:
                    raise self._never(step, mode)
                if deadline is not None and reader.clock() >= deadline:
                    raise WaitTimeout(
                        f"step {step} of run {self.name!r} did not come within {timeout}; "
                        f"the last complete one is {reader.last_step(mode)}"
                    )
                reader.wait((reader.pause if interval is None else interval).total_seconds())

    # Tables. --------------------------------------------------------------------------------------

    def stats(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        show_incomplete_steps: bool = True,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Statistics: one row per tensor, step, worker and call, ordered by step. Payloads are not touched.

        regex_or_names: a pattern, searched in names, or a list of exact names. steps: a step, a range or
        several; of the mode when one is given, else global. kinds: "weight", "gradient", "output", ...
        workers: names. attempt: that one alone. Columns: those of the index that describe the whole tensor,
        its statistics, and sum, variance, std, l1, l2 over its finite values. Rows without statistics
        (absent, skipped, payload only) are there, with nulls.
        """
        rows = self._selected(regex_or_names, steps, mode, kinds, workers, attempt)
        if kinds is None and (regex_or_names is None or isinstance(regex_or_names, str)):
            rows = self._reader.tensors_only(rows)
        if not show_incomplete_steps:
            rows = rows[self._reader.complete(rows)]
        return self._reader.stats(rows, columns)

    def rows(
        self,
        regex_or_names: str | Iterable[str] | None = None,
        *,
        steps: Steps | None = None,
        mode: ModeKeys | None = None,
        kinds: str | Iterable[str] | None = None,
        workers: str | Iterable[str] | None = None,
        attempt: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Rows of the index as they are stored, one per part, with its columns or those named.

        Filters as in stats().
        """
        rows = self._selected(regex_or_names, steps, mode, kinds, workers, attempt)
        return self._reader.index.table(rows, columns)

    def next_complete(self) -> pa.Table:
        """As stats(), for the rows of steps that became complete since the last call: every row comes once.

        For those who follow a run. Of a name that is saved again at a step after that step was given out,
        the new row comes too.
        """
        reader = self._reader
        reader.auto_refresh()
        shown = np.zeros(len(reader.index), dtype=np.bool_)
        shown[: len(self._shown)] = self._shown
        rows = np.flatnonzero(reader.view.visible & ~shown)
        rows = rows[reader.complete(rows)]
        shown[rows] = True
        self._shown = shown
        return reader.stats(reader.tensors_only(rows))

    # ----------------------------------------------------------------------------------------------

    def _selected(
        self,
        regex_or_names: str | Iterable[str] | None,
        steps: Steps | None,
        mode: ModeKeys | None,
        kinds: str | Iterable[str] | None,
        workers: str | Iterable[str] | None,
        attempt: int | None,
    ) -> Any:
        self._reader.auto_refresh()
        vocabulary = self._reader.index.vocabularies["name"]
        names: list[int] | None = None
        if isinstance(regex_or_names, str):
            (test,) = patterns(regex_or_names)
            names = [code for code, text in enumerate(vocabulary.texts) if test.search(text)]
        elif regex_or_names is not None:
            names = [vocabulary.code(text) for text in regex_or_names]
        return self._reader.select(names, steps, mode, as_list(kinds), as_list(workers), attempt)

    def _kinds(self) -> dict[str, str]:
        """Kind of each tensor, as its first shown row has it."""
        index, rows = self._reader.index, self._reader.view.rows
        codes, first = np.unique(index.column("name")[rows], return_index=True)
        kinds = index.column("kind")[rows[first]]
        texts, labels = index.texts("name"), index.texts("kind")
        return {texts[code]: labels[kind] for code, kind in zip(codes.tolist(), kinds.tolist(), strict=True)}

    def _row_of(self, global_step: int) -> int:
        self._reader.auto_refresh()
        at = self._reader.view.position(global_step)
        if at < 0:
            raise StepUnavailable(f"run {self.name!r} has nothing of global step {global_step} so far")
        return int(self._reader.view.step_rows[at])

    def _never(self, step: int, mode: ModeKeys) -> StepUnavailable | NoMoreData:
        last = self._reader.last_step(mode)
        if self._reader.progress.status != "running" and (last is None or step > last):
            return NoMoreData(
                f"run {self.name!r} {self.status} before step {step}; the last one saved is {last}"
            )
        return StepUnavailable(f"run {self.name!r} saved nothing at step {step}; steps() lists where it did")

    def _similar(self, name: str) -> str:
        import difflib

        texts = self._reader.index.texts("name")
        close = difflib.get_close_matches(name[:200], texts[:5000], n=3, cutoff=0.6)
        return f"; did you mean {', '.join(map(repr, close))}?" if close else ""
