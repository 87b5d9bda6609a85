"""MachineHistory: the newest system samples in bins of five seconds, for rules about times of steps.

A rule about steps reads the load of the machine during its steps here. The history keeps whole numbers, so
that a mean does not depend on the pieces in which the samples arrive. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tdcore.rules.columns import Columns
from tdcore.rules.measures.series import groups
from tdcore.rules.samples import Samples

__all__ = ["Loaders", "MachineUse", "add_samples", "loader_processes", "machine_use", "machine_use_at"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BIN_NS = 5 * 10**9
_BINS = 1024  # a table of samples has up to 68 minutes, and its steps are judged after it
_READ_BINS = 180  # a scan reads the newest 15 minutes
_LATE_NS = 5 * 10**9  # samples of the last seconds of a scan may not be written yet
_COLUMNS = ("cpu_percent", "iowait_percent", "gpu_percent", "processes")


@dataclass(slots=True, kw_only=True)
class _History:
    """Bins of one worker's samples. numbers: number of the bin in each place; -1 if the place is empty.

    sums, counts: sum of thousandths and number of values, one row per place and one column per value.
    most: largest number of processes. newest: largest number of a bin since the clock was set.
    """

    host: str
    cores: float = 0.0
    newest: int = -1
    numbers: Ints = field(default_factory=lambda: np.full(_BINS, -1, dtype=np.int64))
    sums: Ints = field(default_factory=lambda: np.zeros((_BINS, len(_COLUMNS)), dtype=np.int64))
    counts: Ints = field(default_factory=lambda: np.zeros((_BINS, len(_COLUMNS)), dtype=np.int32))
    most: Ints = field(default_factory=lambda: np.zeros(_BINS, dtype=np.int32))

    def add(self, time_ns: Ints, values: Floats) -> None:
        """Add samples, in order of their numbers. values: NaN where a value is not known.

        A clock can be wrong for some time. Each part of the samples without a large jump is added alone, so
        that a sample of the far future does not make the following ones too old for the history.
        """
        numbers = time_ns // _BIN_NS
        start = 0
        for end in [*self._jumps(numbers), len(numbers)]:
            if end > start:
                self._add(numbers[start:end], values[start:end])
            start = end

    def _jumps(self, numbers: Ints) -> list[int]:
        """Positions of samples whose clock was set forward or back by more than the whole history."""
        found, start = [], 0
        while start < len(numbers):
            newest = np.maximum.accumulate(np.concatenate([[self.newest], numbers[start:]]))
            far = np.flatnonzero(np.abs(numbers[start:] - newest[:-1]) >= _BINS)
            if not far.size:
                self.newest = int(newest[-1])
                break
            start += int(far[0])
            found.append(start)
            self.newest = int(numbers[start])
            start += 1
        return found

    def _add(self, numbers: Ints, values: Floats) -> None:
        """Add samples without a large jump."""
        keep = numbers > int(numbers.max()) - _BINS
        numbers, values = numbers[keep], values[keep]
        places = numbers % _BINS
        fresh = np.unique(places[self.numbers[places] != numbers])
        self.sums[fresh], self.counts[fresh], self.most[fresh] = 0, 0, 0
        self.numbers[places] = numbers
        known = np.isfinite(values)
        whole = np.rint(1000 * np.clip(np.where(known, values, 0.0), -1e12, 1e12)).astype(np.int64)
        np.add.at(self.sums, places, whole)
        np.add.at(self.counts, places, known.astype(np.int32))
        np.maximum.at(self.most, places, np.nan_to_num(values[:, -1]).clip(0, 1 << 30).astype(np.int32))

    def places(self, bins: Ints) -> Ints:
        """The places of those bins that have samples."""
        places = bins % _BINS
        found: Ints = places[self.numbers[places] == bins]
        return found

    def means(self, bins: Ints) -> Floats:
        """Mean of each column over these bins; NaN without a value."""
        there = self.places(bins)
        counts = self.counts[there].sum(axis=0)
        known = np.where(counts > 0, self.sums[there].sum(axis=0) / 1000.0 / np.maximum(counts, 1), np.nan)
        return np.asarray(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineUse:
    """Mean use of a machine in some time. NaN: not known.

    Attributes:
        cpu_percent: Busy share of all cores.
        iowait_percent: Share of time in which cores were idle and waited for a disk.
        gpu_percent: Mean utilization of the GPUs.
    """

    cpu_percent: float = np.nan
    iowait_percent: float = np.nan
    gpu_percent: float = np.nan

    @property
    def numbers(self) -> dict[str, float]:
        """The known values, for a finding."""
        names = ("cpu_percent", "iowait_percent", "gpu_percent")
        return {name: getattr(self, name) for name in names if np.isfinite(getattr(self, name))}

    @property
    def text(self) -> str:
        """The known values, as text; "" if none is known."""
        parts = []
        if np.isfinite(self.cpu_percent):
            parts.append(f"the CPUs were {self.cpu_percent:.0f} % busy")
        if np.isfinite(self.iowait_percent):
            parts.append(f"waited for a disk for {self.iowait_percent:.0f} % of the time")
        return " and ".join(parts)


def add_samples(memory: MutableMapping[Any, Any], samples: Samples) -> None:
    """Add samples to the histories in the memory of a rule."""
    columns = samples.columns
    if not len(samples):
        return
    values = np.column_stack(
        [
            columns.floats("cpu_percent"),
            columns.floats("iowait_percent"),
            _gpu_percent(samples),
            columns.floats("trainer_processes"),
        ]
    )
    cores = _cores(columns)
    for attempt, worker, host, rows in groups(columns, np.arange(len(samples)), "attempt", "worker", "host"):
        history = memory.setdefault(("machine", attempt, worker), _History(host=host))
        known = cores[rows][np.isfinite(cores[rows])]
        history.cores = float(known[0]) if known.size and not history.cores else history.cores
        history.add(columns.ints("time_ns")[rows], values[rows])


def machine_use(
    memory: MutableMapping[Any, Any], attempt: int, worker: str, start_ns: int, end_ns: int
) -> MachineUse:
    """Mean use of a worker's machine between two times, in the newest 15 minutes of them."""
    return _use_in(memory, attempt, worker, _bins(start_ns, end_ns))


def machine_use_at(memory: MutableMapping[Any, Any], attempt: int, worker: str, times_ns: Ints) -> MachineUse:
    """Mean use of a worker's machine in the seconds around some times."""
    return _use_in(memory, attempt, worker, np.unique(times_ns // _BIN_NS)[-_READ_BINS:])


def _use_in(memory: MutableMapping[Any, Any], attempt: int, worker: str, bins: Ints) -> MachineUse:
    own = memory.get(("machine", attempt, worker))
    if own is None or not bins.size:
        return MachineUse()
    for _, history in _of_host(memory, attempt, own.host):
        cpu, iowait, gpu, _ = history.means(bins).tolist()
        if np.isfinite(cpu):
            return MachineUse(cpu_percent=cpu, iowait_percent=iowait, gpu_percent=gpu)
    return MachineUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaders:
    """Processes that load data on one machine.

    Attributes:
        processes: Mean number of child processes of this worker's trainer.
        most: Their largest number.
        trainers: Number of trainers of the training on the machine.
        cores: Number of cores of the machine, or the limit of the container.
    """

    processes: float
    most: int
    trainers: int
    cores: float


def loader_processes(
    memory: MutableMapping[Any, Any], attempt: int, worker: str, start_ns: int, end_ns: int
) -> Loaders | None:
    """Child processes of a trainer between two times; None if they or the cores are not known."""
    own = memory.get(("machine", attempt, worker))
    if own is None:
        return None
    bins = _bins(start_ns, end_ns)
    processes = own.means(bins)[-1]
    of_host = list(_of_host(memory, attempt, own.host))
    cores = max(history.cores for _, history in of_host)
    if not np.isfinite(processes) or not cores:
        return None
    return Loaders(
        processes=max(float(processes) - 1.0, 0.0),
        most=max(int(own.most[own.places(bins)].max()) - 1, 0),
        trainers=len(of_host),
        cores=cores,
    )


def _bins(start_ns: int, end_ns: int) -> Ints:
    first, last = start_ns // _BIN_NS, (end_ns - _LATE_NS) // _BIN_NS
    return np.arange(max(first, last - _READ_BINS), last, dtype=np.int64)


def _of_host(memory: MutableMapping[Any, Any], attempt: int, host: str) -> list[tuple[str, _History]]:
    """Workers of an attempt on a host, with their histories, in order of their names."""
    found = [
        (key[2], each)
        for key, each in memory.items()
        if key[0] == "machine" and key[1] == attempt and each.host == host
    ]
    return sorted(found, key=lambda pair: pair[0])


def _gpu_percent(samples: Samples) -> Floats:
    """Mean utilization of the GPUs in each sample."""
    gpus = samples.gpus
    used, row = gpus.floats("utilization_percent"), gpus.ints("row")
    known = np.isfinite(used)
    counts = np.bincount(row[known], minlength=len(samples))
    sums = np.bincount(row[known], weights=used[known], minlength=len(samples))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _cores(columns: Columns) -> Floats:
    """Number of cores in each sample: those of the machine, or the limit of the container if it is lower."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(columns.table.column("core_percent")).cast("float64")
    found = np.asarray(lengths.to_numpy(), dtype=np.float64)
    limit = columns.floats("cpu_limit")
    return np.where(limit > 0, np.fmin(found, limit), found)
