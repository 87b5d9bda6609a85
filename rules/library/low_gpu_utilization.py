"""TDC206: GPUs that are used little, or with pauses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, Scan, duration_text, require_counts, scans
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, sample_finding
from tdcore.rules.window import Window

__all__ = ["LowGPUUtilization"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LowGPUUtilization:
    """GPUs whose utilization is low, or that are often idle between kernels.

    What it does:
        Judges the system samples of each GPU. At each scan, the rule computes the percentiles 5 and 95 of the
        utilization over the newest samples. The utilization is the share of time in which a kernel ran.

    Why it matters:
        A GPU is the most expensive part of a machine. A GPU that waits for data, for the CPU or for other
        ranks makes the training longer without any error.

    Decides by:
        The rule judges after `patience` samples, and then once in each scan interval. Each finding has one of
        two kinds. "underused": p95 < threshold_p95, so the GPU is hardly ever busy. "fluctuating":
        p95 >= threshold_p95 and p5 < threshold_p5, so the GPU is busy at times and idle at other times.

        Counts are in samples, as in smdebug. With the default interval of 500 ms, 500 samples are 250 s. The
        rule judges samples that the flusher takes, so it adds no cost to the training.

    Parameters:
        threshold_p95: percentile 95 of the utilization below which a GPU is underused, in percent.
        threshold_p5: percentile 5 of the utilization below which the kind is "fluctuating", in percent.
        window: number of newest samples that a scan judges.
        patience: number of samples at the start that must pass before the first judgement.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - GPUs of the machine that this training does not use.
        - Long phases without work for the GPU, such as a validation on the CPU, or checkpoints.
        - A small model on a large GPU, if the duration of the training does not matter.

    Do:
        underused: use a larger batch, mixed precision, or a smaller or shared GPU. fluctuating: find the
        pauses. Look at CPUBottleneck and IOBottleneck, use more DataLoader workers, prefetch batches, and
        avoid calls that wait for the GPU in each step, such as loss.item().

    Source:
        The rule LowGPUUtilization of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC206"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.utilization_percent",)

    threshold_p95: float = 70.0
    threshold_p5: float = 10.0
    window: int = 500
    patience: int = 1000
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        for name in ("threshold_p95", "threshold_p5"):
            require(
                0 <= getattr(self, name) <= 100, self, name, getattr(self, name), "a percentage, 0 to 100"
            )
        require_counts(self, "window", "patience", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of GPUs."""
        return Need(what=f"more than {self.patience:,} system samples of a GPU, and a scan after them")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per GPU and scan."""
        if window.samples is None:
            return
        for series in window.samples.gpu_series(lambda gpus: gpus.floats("utilization_percent")[:, None]):
            for scan in scans(
                window.memory, series, scan_interval_us=self.scan_interval_us, keep=self.window
            ):
                if scan.points > self.patience:
                    window.judged(1)
                    yield from self._judge(series.place, scan)

    def _judge(self, place: Place, scan: Scan) -> Iterator[Finding]:
        p5, p50, p95 = np.percentile(scan.values[:, 0], [5, 50, 95]).tolist()
        during = f"over {duration_text(scan.seconds)} until {scan.until}"
        if p95 < self.threshold_p95:
            kind = "underused"
            why = (
                f"the GPU is hardly ever busy: 95 % of its samples {during} have a utilization of at most "
                f"{p95:.0f} % (limit {self.threshold_p95:g} %), the median is {p50:.0f} %"
            )
            do = (
                "use a larger batch, mixed precision, or a smaller or shared GPU; if CPUBottleneck or "
                "IOBottleneck fires too, make the input pipeline faster first"
            )
        elif p5 < self.threshold_p5:
            kind = "fluctuating"
            why = (
                f"the GPU is busy at times and idle at other times: {during} its utilization has a "
                f"percentile 95 of {p95:.0f} % and a percentile 5 of {p5:.0f} % "
                f"(limit {self.threshold_p5:g} %)"
            )
            do = (
                "find the pauses: use more DataLoader workers, prefetch batches, and avoid calls in each "
                "step that wait for the GPU, such as loss.item()"
            )
        else:
            return
        numbers = {
            "kind": kind, "p5": p5, "p50": p50, "p95": p95, "threshold_p5": self.threshold_p5,
            "threshold_p95": self.threshold_p95, "window": len(scan.values), "time_ns": scan.time_ns,
        }  # fmt: skip
        yield sample_finding(self, place, scan.sample, numbers=numbers, why=why, do=do)
