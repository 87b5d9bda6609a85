"""Samples: new system samples of a run (CPU, memory, GPUs, ...) as columns, for rules that judge them.

docs/system.md describes the columns. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.rules.base import Finding, Rule
from tdcore.rules.columns import Columns
from tdcore.rules.measures.series import groups
from tdcore.text.step_text import SYSTEM_SAMPLES

__all__ = ["Place", "Samples", "Series", "sample_finding"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COPIED = ("attempt", "worker", "host", "sample", "time_ns")  # from a sample to each of its GPUs


class Place(NamedTuple):
    """The origin of a series of samples. device: "gpu0" and so on, or "" for the machine or the trainer."""

    attempt: int
    worker: str
    host: str
    device: str = ""

    @property
    def name(self) -> str:
        """The place in findings: "node-1" or "node-1/gpu0"."""
        return f"{self.host}/{self.device}" if self.device else self.host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Series:
    """Successive samples of one place in which all requested values are known.

    Attributes:
        place: The origin.
        sample: Numbers of the samples.
        time_ns: Times of the samples.
        values: The requested values, one row per sample and one column per value.
    """

    place: Place
    sample: Ints
    time_ns: Ints
    values: Floats


class Samples:
    """New system samples, in order of time within each worker.

    Args:
        table: Rows with the columns of tdcore.format.system.system_schema().
    """

    def __init__(self, table: pa.Table) -> None:
        self.columns = Columns(table)

    def __len__(self) -> int:
        return int(self.columns.table.num_rows)

    @property
    def present(self) -> set[str]:
        """Names of the columns that have a value. Fields of GPUs are named "gpus.utilization_percent"."""
        found = {"gpus"} if len(self.gpus.table) else set()
        for prefix, table in (("", self.columns.table), ("gpus.", self.gpus.table)):
            found |= {
                prefix + name
                for name in table.column_names
                if name != "gpus" and table.column(name).null_count < len(table)
            }
        return found

    @cached_property
    def gpus(self) -> Columns:
        """One row for each GPU of each sample: the fields of `gpus`, the origin, and `row` of the sample."""
        lists = self.columns.table.column("gpus").combine_chunks()
        parents = pc.list_parent_indices(lists)
        entries = lists.flatten()
        fields = {field.name: pc.struct_field(entries, field.name) for field in lists.type.value_type}
        origin = self.columns.table.select(_COPIED).take(parents)
        copied = {name: origin.column(name) for name in _COPIED}
        return Columns(pa.table({**copied, "row": parents.cast(pa.int64()), **fields}))

    def series(self, values: Callable[[Columns], Floats]) -> Iterator[Series]:
        """The samples of each worker, with values of the machine or of the trainer.

        values: computes the values from the columns, shape (samples, n). Samples with a value that is
            NaN or infinite are left out.
        """
        yield from _series(self.columns, values(self.columns), ("attempt", "worker", "host"))

    def gpu_series(self, values: Callable[[Columns], Floats]) -> Iterator[Series]:
        """The samples of each GPU. values: as in `series`, from the columns `gpus`."""
        yield from _series(self.gpus, values(self.gpus), ("attempt", "worker", "host", "index"))

    def machine_gpu_series(self, field: str) -> Iterator[tuple[Series, tuple[int, ...]]]:
        """The samples of each machine with one value for each of its GPUs, and the numbers of the GPUs.

        A machine whose list of GPUs changes has a series for each time with the same list.

        field: name of a field of `gpus`. Samples in which the value of a GPU is not known are left out.
        """
        gpus = self.gpus
        index, row, values = gpus.ints("index"), gpus.ints("row"), gpus.floats(field)
        everything = np.arange(len(row))
        for attempt, worker, host, mine in groups(gpus, everything, "attempt", "worker", "host"):
            numbers, column = np.unique(index[mine], return_inverse=True)
            samples, line = np.unique(row[mine], return_inverse=True)
            table = np.full((len(samples), len(numbers)), np.nan)
            table[line, column] = values[mine]
            listed = np.zeros(table.shape, dtype=np.bool_)
            listed[line, column] = True
            known = np.flatnonzero((np.isfinite(table) | ~listed).all(axis=1))
            changes = np.flatnonzero((listed[known[1:]] != listed[known[:-1]]).any(axis=1)) + 1
            for part in np.split(known, changes) if known.size else ():
                of_part = listed[part[0]]
                sample, time_ns = (self.columns.ints(name)[samples[part]] for name in ("sample", "time_ns"))
                place = Place(attempt, worker, host)
                series = Series(place=place, sample=sample, time_ns=time_ns, values=table[part][:, of_part])
                yield series, tuple(numbers[of_part].tolist())


def _series(columns: Columns, values: Floats, keys: tuple[str, ...]) -> Iterator[Series]:
    known = np.flatnonzero(np.isfinite(values).all(axis=1))
    for attempt, worker, host, *index, rows in groups(columns, known, *keys):
        place = Place(attempt, worker, host, f"gpu{index[0]}" if index else "")
        sample, time_ns = (columns.ints(name)[rows] for name in ("sample", "time_ns"))
        yield Series(place=place, sample=sample, time_ns=time_ns, values=values[rows])


def sample_finding(
    rule: Rule, place: Place, sample: int, *, numbers: Mapping[str, Any], why: str, do: str
) -> Finding:
    """Create a finding of `rule` at one system sample.

    Args:
        rule: The rule.
        place: The origin of the sample. Its name is the tensor of the finding.
        sample: Number of the sample. It is the step of the finding.
        numbers: Measured values and their limits, by name.
        why: One sentence with the numbers.
        do: Advice.
    """
    return Finding(
        rule=type(rule).__name__,
        code=rule.code,
        step=sample,
        mode=SYSTEM_SAMPLES,
        mode_step=sample,
        worker=place.worker,
        attempt=place.attempt,
        tensor=place.name,
        numbers=numbers,
        why=why,
        do=do,
    )
