"""Bottlenecks: the share of system samples in which a resource of the machine is busy while a GPU waits.

CPUBottleneck and IOBottleneck share this module. Plain values; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tdcore.rules.measures.scans import Scan, scans
from tdcore.rules.samples import Place, Samples, Series
from tdcore.rules.window import Window

__all__ = ["Bottleneck", "BottleneckSettings", "bottlenecks"]

Floats = npt.NDArray[np.float64]

_HOT_CORES = 0.25  # smallest share of cores above the threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class BottleneckSettings:
    """Conditions under which a sample is a bottleneck, and under which a scan reports bottlenecks.

    Attributes:
        machine, cores: Columns with the level of the machine and the levels of its cores, in percent.
        level: Level above which the resource is busy, in percent.
        gpu_threshold: Utilization below which a GPU waits, in percent.
        threshold: Share of bottlenecks above which they are reported, in percent.
        patience, window: Numbers of samples.
        scan_interval_us: Time between two scans, in microseconds.
        compat: Whether to decide as smdebug does.
    """

    machine: str
    cores: str
    level: float
    gpu_threshold: float
    threshold: float
    patience: int
    window: int
    scan_interval_us: int
    compat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A scan with too many bottlenecks.

    Attributes:
        place: The machine.
        scan: The scan.
        share: Share of bottlenecks, in percent.
        judged: Number of samples that were judged.
    """

    place: Place
    scan: Scan
    share: float
    judged: int


def bottlenecks(window: Window, settings: BottleneckSettings) -> Iterator[Bottleneck]:
    """The scans of a window in which the share of bottlenecks is above the threshold."""
    samples = window.samples
    if samples is None:
        return
    flags = _flags(samples, settings)
    judge = _since_the_start if settings.compat else _in_windows
    for series in samples.series(lambda columns: flags[:, None]):
        for scan, share, judged in judge(window, series, settings):
            window.judged(1)
            if share > settings.threshold:
                yield Bottleneck(place=series.place, scan=scan, share=share, judged=judged)


def _flags(samples: Samples, settings: BottleneckSettings) -> Floats:
    """1 for samples that are bottlenecks, 0 for others, NaN for samples without a GPU or without a level."""
    columns, gpus, count = samples.columns, samples.gpus, len(samples)
    row, used = gpus.ints("row"), gpus.floats("utilization_percent")
    has_gpu = np.bincount(row[~np.isnan(used)], minlength=count) > 0
    waits = np.bincount(row[used < settings.gpu_threshold], minlength=count) > 0
    lists = columns.table.column(settings.cores).combine_chunks()
    parents = np.asarray(pc.list_parent_indices(lists).cast(pa.int64()))
    levels = np.asarray(lists.flatten().cast(pa.float64()).to_numpy(zero_copy_only=False))
    hot = np.bincount(parents[levels > settings.level], minlength=count)
    cores = np.bincount(parents[~np.isnan(levels)], minlength=count)
    machine = columns.floats(settings.machine)
    if settings.compat:
        known, busy = cores > 0, hot > 0
    else:
        known = (cores > 0) | ~np.isnan(machine)
        busy = (machine > settings.level) | ((cores > 0) & (hot >= _HOT_CORES * cores))
    return np.where(has_gpu & known, (busy & waits).astype(np.float64), np.nan)


@dataclass(slots=True, kw_only=True)
class _Totals:
    """Number of bottlenecks of one machine since the start, for compat."""

    found: float = 0.0


def _since_the_start(
    window: Window, series: Series, settings: BottleneckSettings
) -> Iterator[tuple[Scan, float, int]]:
    """The judged scans, with the share of bottlenecks since the start, as in smdebug."""
    totals = window.memory.setdefault(("totals", *series.place), _Totals())
    sums = totals.found + np.cumsum(series.values[:, 0])
    for scan in scans(window.memory, series, scan_interval_us=settings.scan_interval_us, keep=1):
        if scan.points > settings.patience:
            yield scan, 100.0 * float(sums[scan.at]) / scan.points, scan.points
    totals.found = float(sums[-1])


def _in_windows(
    window: Window, series: Series, settings: BottleneckSettings
) -> Iterator[tuple[Scan, float, int]]:
    """The scans whose newest samples are after the first `patience` ones, with the share of bottlenecks."""
    keep = settings.window
    for scan in scans(window.memory, series, scan_interval_us=settings.scan_interval_us, keep=keep):
        if scan.points >= settings.patience + keep:
            yield scan, 100.0 * float(scan.values.mean()), keep
