"""Ranks: compares tensors of several workers at the same steps, also if they arrive at different times.

Plain values. Threads: the thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, Rule
from tdcore.rules.columns import Mask
from tdcore.rules.measures.series import groups
from tdcore.rules.window import Window

__all__ = ["ComparedStep", "RankHistory", "WorkerStep", "log_sizes", "side_by_side"]

_HELD = 100  # maximum number of steps that wait for slower workers, per attempt and mode
_ROOM = 4_000_000  # maximum count of numbers that wait, per attempt and mode
_SMALLEST = 1e-300  # smallest norm, so that zero has a logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """Tensors of one worker at one step. values: shape (k, names), k numbers of each."""

    step: int
    mode: str
    names: tuple[str, ...]
    values: npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class RankHistory:
    """Steps of one attempt and mode that wait for slower workers.

    Attributes:
        newest: Last step of the mode of each worker.
        waiting: Step of the mode -> worker -> its tensors.
        judged: The last step that was returned.
        runs: Number of consecutive outlying steps of each worker, or of a worker and tensor.
        names: Names of the newest tensors of each worker; waiting steps share these tuples.
    """

    newest: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, dict[str, WorkerStep]] = field(default_factory=dict)
    judged: int = -1
    runs: dict[Any, int] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def crowded(self) -> bool:
        """Whether too many steps or numbers wait."""
        parts = (part for of_step in self.waiting.values() for part in of_step.values())
        return len(self.waiting) > _HELD or sum(part.values.size for part in parts) > _ROOM

    def shared(self, worker: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of a worker's tensors; an equal tuple of an earlier step if there is one."""
        if self.names.get(worker) != names:
            self.names[worker] = next((each for each in self.names.values() if each == names), names)
        return self.names[worker]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """One step of all workers. values: shape (workers, k, names), of the tensors that all workers have."""

    attempt: int
    mode: str
    mode_step: int
    workers: tuple[str, ...]
    parts: tuple[WorkerStep, ...]
    names: tuple[str, ...]
    values: npt.NDArray[np.float64]

    @property
    def logs(self) -> npt.NDArray[np.float64]:
        """The first number of each tensor, shape (workers, names)."""
        found: npt.NDArray[np.float64] = self.values[:, 0]
        return found

    def finding(
        self,
        rule: Rule,
        rank: int,
        tensor: str,
        *,
        numbers: Mapping[str, float | int | str],
        why: str,
        do: str,
    ) -> Finding:
        """A finding of `rule` about one tensor of a worker. rank: position of the worker in `workers`."""
        return Finding(
            rule=type(rule).__name__,
            code=rule.code,
            step=self.parts[rank].step,
            mode=self.parts[rank].mode,
            mode_step=self.mode_step,
            worker=self.workers[rank],
            attempt=self.attempt,
            tensor=tensor,
            numbers=numbers,
            why=why,
            do=do,
        )


def log_sizes(sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Natural logarithms of sizes; -690 for 0."""
    found: npt.NDArray[np.float64] = np.log(np.maximum(sizes, _SMALLEST))
    return found


def side_by_side(
    window: Window, rows: Mask, numbers: npt.NDArray[np.float64], least: int, expected: int | None
) -> Iterator[ComparedStep]:
    """Steps that every worker has reached, in order, once each.

    A step is returned when all workers known so far have reached it or have ended, or when a hundred later
    steps, or too many numbers, wait.

    Args:
        window: The window.
        rows: Tensors that can be judged.
        numbers: The values that are compared, of shape (k, rows of the window).
        least: Minimum number of workers, if `expected` is None.
        expected: Number of workers of the run.
    """
    _take(window, rows, numbers)
    for (attempt, _), ranks in window.memory.items():
        over = {worker for ended, worker in window.ended if ended == attempt}
        enough = max(least, expected or 0)
        for step in sorted(ranks.waiting):
            behind = [
                worker for worker, newest in ranks.newest.items() if newest < step and worker not in over
            ]
            complete = not behind and len(ranks.newest) >= enough
            if not complete and not over.issuperset(ranks.newest) and not ranks.crowded:
                break
            ranks.judged = step
            meeting = _meeting(attempt, step, ranks.waiting.pop(step))
            if len(meeting.workers) < least:
                window.missing(
                    f"fewer than {least} ranks at a step", sum(len(p.names) for p in meeting.parts)
                )
            else:
                yield meeting


def _take(window: Window, rows: Mask, numbers: npt.NDArray[np.float64]) -> None:
    columns = window.columns
    codes, texts = columns.codes("name")
    known: dict[bytes, tuple[str, ...]] = {}
    late = 0
    for attempt, worker, mode, group in groups(columns, np.flatnonzero(rows), "attempt", "worker", "mode"):
        ranks = window.memory.setdefault((attempt, mode), RankHistory())
        unit = columns.ints("mode_step")[group]
        order = np.argsort(unit, kind="stable")
        for part in np.split(group[order], np.flatnonzero(np.diff(unit[order])) + 1):
            mode_step = int(columns.ints("mode_step")[part[0]])
            if mode_step <= ranks.judged:
                late += part.size
                continue
            key = codes[part].tobytes()
            if key not in known:
                known[key] = tuple(texts[code] or "" for code in codes[part].tolist())
            ranks.waiting.setdefault(mode_step, {})[worker] = WorkerStep(
                step=int(columns.ints("step")[part[0]]),
                mode=mode,
                names=ranks.shared(worker, known[key]),
                values=numbers[:, part],
            )
        ranks.newest[worker] = max(ranks.newest.get(worker, -1), int(unit.max()))
    window.missing("the row arrived after its step was judged", late)


def _meeting(attempt: int, mode_step: int, present: dict[str, WorkerStep]) -> ComparedStep:
    workers = tuple(sorted(present))
    parts = tuple(present[worker] for worker in workers)
    names = parts[0].names
    if all(part.names == names for part in parts):
        values: Any = np.stack([part.values for part in parts])
    else:
        places = [{name: at for at, name in enumerate(part.names)} for part in parts]
        names = tuple(name for name in places[0] if all(name in place for place in places))
        values = np.stack(
            [p.values[:, [at[name] for name in names]] for p, at in zip(parts, places, strict=True)]
        )
    return ComparedStep(
        attempt=attempt,
        mode=parts[0].mode,
        mode_step=mode_step,
        workers=workers,
        parts=parts,
        names=names,
        values=values,
    )
