"""Recordings: the rows that a run has next to its tensors, and that rules judge.

Plain values; any thread.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tdcore.rules.base import step_time_columns_of, system_columns_of
from tdcore.rules.samples import Samples
from tdcore.rules.source import Source
from tdcore.rules.step_times import StepTimes

__all__ = ["RecordedRows", "Recording", "recorded_tables"]


class RecordedRows(Protocol):
    """New rows of one kind."""

    @property
    def present(self) -> set[str]:
        """Names of the columns that have a value."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One kind of rows.

    Attributes:
        field: The field of Window with the rows.
        columns_of: Returns the columns that a rule judges.
        read: Returns the new rows of a source, as tables.
        rows: Makes the rows from a table.
        turn: Returns the time of a table, which decides the order of tables of several kinds.
    """

    field: str
    columns_of: Callable[[object], tuple[str, ...]]
    read: Callable[[Source], Iterator[pa.Table]]
    rows: Callable[[pa.Table], RecordedRows]
    turn: Callable[[pa.Table], int]


def recorded_tables(source: Source, rules: Sequence[object]) -> Iterator[tuple[Recording, pa.Table]]:
    """The new rows of all kinds that the rules judge, as tables.

    A table of samples comes before each table of times that ends after its first sample. So a rule about both
    kinds has the samples of a step when it judges the step. If a long run is read at once, its samples and
    times take turns, and the rule needs to keep only the newest samples.
    """

    def tables(recording: Recording) -> Iterator[tuple[Recording, pa.Table]]:
        if any(recording.columns_of(rule) for rule in rules):
            for table in recording.read(source):
                if table.num_rows:
                    yield recording, table

    return heapq.merge(*map(tables, _RECORDINGS), key=lambda each: each[0].turn(each[1]))


def _first_time(table: pa.Table) -> int:
    """Time of the first sample."""
    return int(table.column("time_ns")[0].as_py())


def _last_end(table: pa.Table) -> int:
    """End of the last step."""
    return int(table.column("time_ns")[-1].as_py() + table.column("duration_ns")[-1].as_py())


_RECORDINGS = (
    Recording(
        field="samples",
        columns_of=system_columns_of,
        read=lambda source: source.samples(),
        rows=Samples,
        turn=_first_time,
    ),
    Recording(
        field="step_times",
        columns_of=step_time_columns_of,
        read=lambda source: source.step_times(),
        rows=StepTimes,
        turn=_last_end,
    ),
)
