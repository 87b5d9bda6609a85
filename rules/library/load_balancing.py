"""TDC205: GPUs of a machine that are used differently."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, Scan, forget_series, require_counts, scans
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, sample_finding
from tdcore.rules.window import Window

__all__ = ["LoadBalancing"]

_BINS = 50  # of the utilization, from 0 to 100 %


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancing:
    """GPUs of one machine whose utilizations differ, so that some of them wait for others.

    What it does:
        Counts the utilization of each GPU in a histogram with 50 bins from 0 to 100 %, over all samples so
        far. At each scan, the rule computes the distance of the histograms for each pair of GPUs of the
        machine.

    Why it matters:
        In a data-parallel training all GPUs do the same work. A GPU that does more work than others, or that
        waits for others, shows that the work is not divided evenly.

    Decides by:
        The distance of two GPUs is the total variation of their normalized histograms: 0 for equal
        histograms, and 1 for histograms without a common bin. The rule fires if the distance of one pair is
        above `threshold`, after `patience` samples. Each scan has one finding, about the pair with the
        largest distance.

        smdebug does not document its distance. Counts are in samples, as in smdebug: with the default
        interval of 500 ms, 1000 samples are 500 s. The rule never fires for a machine with one GPU.

    Parameters:
        threshold: distance above which the rule fires, between 0 and 1.
        patience: number of samples that must exist before the first judgement.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - GPUs of the machine that this training does not use.
        - Pipeline parallelism, where the GPUs have different work by design.
        - Narrow histograms that differ by a few percent, such as 96 % and 99 %. The finding has the means.

    Do:
        Use DistributedDataParallel in place of DataParallel, which does more work on the first GPU. Give each
        rank the same number of samples, and move work such as logging and evaluation away from rank 0.

    Source:
        The rule LoadBalancing of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC205"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.utilization_percent",)

    threshold: float = 0.2
    patience: int = 1000
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= 1, self, "threshold", self.threshold, "a distance, 0 to 1")
        require_counts(self, "patience", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of two GPUs."""
        return Need(
            what=f"more than {self.patience:,} system samples of a machine with two GPUs or more, and a scan "
            "after them"
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per machine and scan."""
        if window.samples is None:
            return
        for series, gpus in window.samples.machine_gpu_series("utilization_percent"):
            if len(gpus) < 2:
                continue
            key = ("loads", *series.place)
            state = window.memory.get(key)
            if state is None or state.gpus != gpus:
                state = window.memory[key] = _Loads.of(gpus)
                forget_series(window.memory, series.place)
            done = 0
            for scan in scans(window.memory, series, scan_interval_us=self.scan_interval_us, keep=1):
                state.add(series.values[done : scan.at + 1])
                done = scan.at + 1
                if state.points > self.patience:
                    window.judged(1)
                    yield from self._judge(series.place, scan, state)
            state.add(series.values[done:])

    def _judge(self, place: Place, scan: Scan, state: _Loads) -> Iterator[Finding]:
        shares = state.counts / state.points
        distance, one, other = max(
            (0.5 * float(np.abs(shares[one] - shares[other]).sum()), one, other)
            for one, other in combinations(range(len(state.gpus)), 2)
        )
        if distance <= self.threshold:
            return
        means = state.sums / state.points
        names = [f"gpu{state.gpus[each]}" for each in (one, other)]
        yield sample_finding(
            self,
            place,
            scan.sample,
            numbers={
                "distance": distance,
                "threshold": self.threshold,
                "gpus": ", ".join(names),
                "mean_percent": float(means[one]),
                "other_mean_percent": float(means[other]),
                "samples": state.points,
                "time_ns": scan.time_ns,
            },
            why=f"the GPUs of this machine are used differently: the utilizations of {names[0]} (mean "
            f"{means[one]:.0f} %) and {names[1]} (mean {means[other]:.0f} %) have a distance of "
            f"{distance:.2f} (limit {self.threshold:g}) over {state.points:,} samples until {scan.until}",
            do="use DistributedDataParallel in place of DataParallel, give each rank the same number of "
            "samples, and move logging and evaluation away from rank 0",
        )


@dataclass(slots=True, kw_only=True)
class _Loads:
    """The utilizations of the GPUs of one machine so far.

    Attributes:
        gpus: Numbers of the GPUs.
        counts: Histogram of each GPU, shape (GPUs, bins).
        sums: Sum of the utilization of each GPU.
        points: Number of samples.
    """

    gpus: tuple[int, ...]
    counts: npt.NDArray[np.int64]
    sums: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    points: int = 0

    @classmethod
    def of(cls, gpus: tuple[int, ...]) -> _Loads:
        """Loads without a sample."""
        return cls(gpus=gpus, counts=np.zeros((len(gpus), _BINS), dtype=np.int64), sums=np.zeros(len(gpus)))

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Add samples, shape (samples, GPUs)."""
        bins = np.clip(values * (_BINS / 100), 0, _BINS - 1).astype(np.int64)
        for number, column in enumerate(bins.T):
            self.counts[number] += np.bincount(column, minlength=_BINS)
        for row in values:
            self.sums += row
        self.points += len(values)
