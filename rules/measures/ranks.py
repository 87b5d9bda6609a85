"""Ranks: compares gradients of several workers at the same steps, also if they arrive at different times.

Plain values; any thread that owns the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.measures.series import groups
from tdcore.rules.window import Mask, Window

__all__ = ["ComparedStep", "RankHistory", "WorkerGradients", "side_by_side"]

_HELD = 100  # steps that wait for slower workers, per attempt and mode
_ROOM = 4_000_000  # norms that wait, per attempt and mode
_SMALLEST = 1e-300  # smallest norm, so that zero has a logarithm


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGradients:
    """Gradients of one worker at one step: their names, and the logarithms of their L2 norms."""

    step: int
    mode: str
    names: tuple[str, ...]
    logs: npt.NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class RankHistory:
    """Steps of one attempt and mode that wait for slower workers.

    Attributes:
        newest: Last step of the mode of each worker.
        waiting: Step of the mode -> worker -> its gradients.
        judged: The last step that was returned.
        runs: Number of consecutive outlying steps of each worker.
        names: Names of the newest gradients of each worker; waiting steps share these tuples.
    """

    newest: dict[str, int] = field(default_factory=dict)
    waiting: dict[int, dict[str, WorkerGradients]] = field(default_factory=dict)
    judged: int = -1
    runs: dict[str, int] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def crowded(self) -> bool:
        """Whether too many steps or norms wait."""
        parts = (part for of_step in self.waiting.values() for part in of_step.values())
        return len(self.waiting) > _HELD or sum(part.logs.size for part in parts) > _ROOM

    def shared(self, worker: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """The names of a worker's gradients; an equal tuple of an earlier step if there is one."""
        if self.names.get(worker) != names:
            self.names[worker] = next((each for each in self.names.values() if each == names), names)
        return self.names[worker]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStep:
    """One step of all workers. logs: shape (workers, names), of the gradients that all workers have."""

    attempt: int
    mode: str
    mode_step: int
    workers: tuple[str, ...]
    parts: tuple[WorkerGradients, ...]
    names: tuple[str, ...]
    logs: npt.NDArray[np.float64]


def side_by_side(window: Window, rows: Mask, least: int, expected: int | None) -> Iterator[ComparedStep]:
    """Steps that every worker has reached, in order, once each.

    A step is returned when all workers known so far have reached it or have ended, or when a hundred later
    steps, or too many norms, wait.

    Args:
        window: The window.
        rows: Gradients that can be judged.
        least: Minimum number of workers, if `expected` is None.
        expected: Number of workers of the run.
    """
    _take(window, rows)
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


def _take(window: Window, rows: Mask) -> None:
    columns = window.columns
    codes, texts = columns.codes("name")
    size = np.sqrt(columns.floats("square_sum"))
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
            ranks.waiting.setdefault(mode_step, {})[worker] = WorkerGradients(
                step=int(columns.ints("step")[part[0]]),
                mode=mode,
                names=ranks.shared(worker, known[key]),
                logs=np.log(np.maximum(size[part], _SMALLEST)),
            )
        ranks.newest[worker] = max(ranks.newest.get(worker, -1), int(unit.max()))
    window.missing("came after its step was judged", late)


def _meeting(attempt: int, mode_step: int, present: dict[str, WorkerGradients]) -> ComparedStep:
    workers = tuple(sorted(present))
    parts = tuple(present[worker] for worker in workers)
    names = parts[0].names
    if all(part.names == names for part in parts):
        logs: Any = np.stack([part.logs for part in parts])
    else:
        tables = [dict(zip(part.names, part.logs.tolist(), strict=True)) for part in parts]
        names = tuple(name for name in tables[0] if all(name in table for table in tables))
        logs = np.array([[table[name] for name in names] for table in tables])
    return ComparedStep(
        attempt=attempt,
        mode=parts[0].mode,
        mode_step=mode_step,
        workers=workers,
        parts=parts,
        names=names,
        logs=logs,
    )
