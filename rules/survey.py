"""Survey: the parts of a run's index that all tasks need, read once from the catalogues of the index files.

Plain values that pickle can store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tdcore.rules.source import Ended

__all__ = ["Survey"]

_FAR = 1 << 62  # a ticket after all tickets


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A run at one time.

    Attributes:
        context: Position of a source without the rows, see RunSource.resume: the id of the run, and the
            common step numbers and epochs of all workers.
        ends: (worker, attempt) -> ticket after the last record.
        rows: Number of rows of each worker that are judged.
        workers: Workers in the order of their rows within a step.
        first_steps: The first global step of each batch, ascending.
        ended: Workers and attempts that write no further rows.
    """

    context: Mapping[str, Any]
    ends: Mapping[tuple[str, int], int]
    rows: Mapping[str, int]
    workers: tuple[str, ...]
    first_steps: tuple[int, ...]
    ended: Ended

    def position_of(self, workers: Collection[str]) -> dict[str, Any]:
        """Position of a source that reads only these workers, and no record that is newer than the survey."""
        read = frozenset(workers)
        tickets = {
            (worker, attempt): [(end if worker in read else 0, _FAR)]
            for (worker, attempt), end in self.ends.items()
        }
        return {**self.context, "tickets": tickets}
