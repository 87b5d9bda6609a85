"""first_facts: the first saved training steps of each worker as Facts, the input of the signs of causes.

This module is for rules that judge a run once, from its first steps. Any thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from tdcore.rules.base import Finding, Rule
from tdcore.rules.columns import Ints, Mask
from tdcore.rules.diagnosis.evidence import Evidence
from tdcore.rules.diagnosis.facts import Facts
from tdcore.rules.diagnosis.histories import FACT_COLUMNS, FactRows, History
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Window

__all__ = ["FACT_COLUMNS", "FirstSteps", "first_facts", "trained_rows"]

_FEW = 3  # minimum number of steps of a worker that has ended


@dataclass(slots=True, kw_only=True)
class FirstSteps:
    """The first saved steps of one worker.

    Attributes:
        attempt, worker: Attempt and worker of the steps.
        taken: Number of steps so far.
        newest: The last of these steps, in the worker's own numbers. Its rows may come in several windows.
        rows: Number of rows.
        done: Whether the worker was judged.
        histories, absent: As in Facts.
        step, mode, mode_step: The newest step.
    """

    attempt: int
    worker: str
    taken: int = 0
    newest: int = -1
    rows: int = 0
    done: bool = False
    histories: dict[tuple[str, str], History] = field(default_factory=dict)
    absent: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    step: int = 0
    mode: str = ""
    mode_step: int = 0

    def facts(self, window: Window) -> Facts:
        """The facts of these steps, with the notes of the hook so far."""
        return Facts(histories=self.histories, absent=self.absent, notes=window.notes(self.attempt))

    def finding(self, rule: Rule, evidence: Evidence, *, kind: str, do: str) -> Finding:
        """A finding of `rule` at the newest of these steps, about all tensors of the evidence."""
        return Finding(
            rule=type(rule).__name__,
            code=rule.code,
            step=self.step,
            mode=self.mode,
            mode_step=self.mode_step,
            worker=self.worker,
            attempt=self.attempt,
            tensor=evidence.tensors[0] if evidence.tensors else "",
            numbers={"kind": kind, "tensors": len(evidence.tensors), "saved_steps": self.taken},
            why=evidence.why,
            do=do,
        )


def trained_rows(window: Window, *kinds: str) -> Mask:
    """Rows of these kinds in the modes of a training."""
    found: Mask = window.kind(*kinds) & window.columns.where("mode", lambda mode: mode in ("TRAIN", "GLOBAL"))
    return found


def first_facts(
    window: Window, rows: Mask, steps: int, *, values: bool = True
) -> Iterator[tuple[FirstSteps, Facts]]:
    """Yield each worker once: at the `steps`-th saved step with selected rows, or when the worker has ended.

    A worker that has ended with fewer than three of these steps is not judged.

    Args:
        window: The window. The rule has FACT_COLUMNS in its `columns`.
        rows: Rows from which the facts are made.
        steps: Number of steps.
        values: False: the rule needs only the names of tensors with values. Their histories then have the
            first value only, so that the facts cost little for a model with many tensors.
    """
    known: dict[tuple[int, str], FirstSteps] = window.memory.setdefault("first", {})
    taken: list[tuple[FirstSteps, Ints, Ints]] = []  # of each worker: its rows, and those of its histories
    for attempt, worker, group in groups(window.columns, np.flatnonzero(rows), "attempt", "worker"):
        first = known.setdefault((attempt, worker), FirstSteps(attempt=attempt, worker=worker))
        if first.done:
            continue
        of_step = window.columns.own_steps[group]
        new = np.unique(of_step[of_step > first.newest])[: steps - first.taken]
        first.newest = int(new[-1]) if new.size else first.newest
        first.taken += new.size
        mine = group[of_step <= first.newest]
        taken.append((first, mine, mine if values else _without_known(window, first, mine)))
    _take(window, taken)
    for first, *_ in taken:
        if first.taken >= steps:
            yield _done(window, first)
    for key, first in known.items():
        if first.done or key not in window.ended:
            continue
        if first.taken >= _FEW:
            yield _done(window, first)
        else:
            first.done = True
            window.missing(f"fewer than {_FEW} saved training steps so far", first.rows)


def _done(window: Window, first: FirstSteps) -> tuple[FirstSteps, Facts]:
    """State of a worker that was judged, without its data."""
    facts = first.facts(window)
    window.judged(first.rows)
    first.done, first.histories, first.absent = True, {}, {}
    return first, facts


def _take(window: Window, taken: Sequence[tuple[FirstSteps, Ints, Ints]]) -> None:
    """Add the rows of each worker. The arrays of all workers are made together."""
    wanted = [needed for _, _, needed in taken]
    if not wanted:
        return
    facts = FactRows(window.columns.table.select(list(FACT_COLUMNS)).take(np.concatenate(wanted)))
    ends = np.cumsum([len(needed) for needed in wanted])
    for (first, rows, needed), end in zip(taken, ends.tolist(), strict=True):
        histories, absent, _ = facts.histories(np.arange(end - len(needed), end))
        _add(first, histories, absent)
        first.rows += len(rows)
        columns, newest = window.columns, int(rows[-1])
        first.step, first.mode_step = (int(columns.ints(name)[newest]) for name in ("step", "mode_step"))
        first.mode = columns.text("mode", newest)


def _add(
    first: FirstSteps,
    histories: Mapping[tuple[str, str], History],
    absent: Mapping[tuple[str, str], Mapping[str, int]],
) -> None:
    for place, history in histories.items():
        before = first.histories.get(place)
        first.histories[place] = history if before is None else _joined(before, history)
    for place, reasons in absent.items():
        counts = first.absent.setdefault(place, {})
        for reason, number in reasons.items():
            counts[reason] = counts.get(reason, 0) + number


def _without_known(window: Window, first: FirstSteps, rows: Ints) -> Ints:
    """The rows without a value, and the first row with a value of each tensor that has no history yet."""
    columns = window.columns
    absent = columns.shared(("absent",), lambda: columns.where("status", "absent".__eq__))
    found = [rows[absent[rows]]]
    for mode, name, group in groups(window.columns, rows[~absent[rows]], "mode", "name"):
        if (mode, name) not in first.histories:
            found.append(group[:1])
    return np.sort(np.concatenate(found))


def _joined(before: History, later: History) -> History:
    arrays = [each.name for each in fields(before) if isinstance(getattr(before, each.name), np.ndarray)]
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(before, name), getattr(later, name)]) for name in arrays
    }
    return replace(before, **joined)
