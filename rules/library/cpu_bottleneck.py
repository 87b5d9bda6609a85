"""TDC202: GPUs that wait for a busy CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tdcore.rules.base import Finding, require
from tdcore.rules.measures.bottlenecks import Bottleneck, BottleneckSettings, bottlenecks
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, require_counts
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import sample_finding
from tdcore.rules.window import Window

__all__ = ["CPUBottleneck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUBottleneck:
    """GPUs that wait because the CPU is the bottleneck.

    What it does:
        Judges the system samples of each machine with a GPU. The rule counts the samples in which the CPU is
        busy while a GPU waits.

    Why it matters:
        A training is as fast as its slowest part. If the CPU prepares the batches too slowly, a faster GPU
        does not help, because the GPU is idle for a part of the time.

    Decides by:
        A sample is a bottleneck if the CPU is busy and the utilization of at least one GPU is
        below `gpu_threshold`. The CPU is busy if its
        utilization, or that of at least a quarter of its cores, is above `cpu_threshold`.
        The rule judges each machine. At each scan, it fires if the share of bottlenecks among the newest
        `window` samples is above `threshold`. The first `patience` samples are not judged.

        With compat=True the rule decides as smdebug does: one busy core is enough, and the share is that of
        all samples since the start, including the first ones, once there are more than `patience` samples.
        smdebug adds up the samples of all machines of a training; this rule judges each machine alone.

        Counts are in samples, as in smdebug. With the default interval of 500 ms, 1000 samples are 500 s.

    Parameters:
        threshold: share of bottlenecks above which the rule fires, in percent.
        gpu_threshold: utilization of a GPU below which it waits, in percent.
        cpu_threshold: utilization of the CPU or of a core above which it is busy, in percent.
        patience: number of samples at the start that are not judged.
        window: number of newest samples that a scan judges; not used with compat=True.
        scan_interval_us: time between two scans, in microseconds.
        compat: whether to decide as smdebug does.

    False alarms:
        - Other jobs on the same machine that use the CPU, while this training waits for something else.
        - A training that needs the CPU, on a machine with further GPUs that the training does not use.

    Do:
        Use more DataLoader workers, prefetch batches, and move augmentations to the GPU or to a preparation
        that runs once. Use a machine with more cores for each GPU.

    Source:
        The rule CPUBottleneck of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC202"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.utilization_percent", "cpu_percent")

    threshold: float = 50.0
    gpu_threshold: float = 10.0
    cpu_threshold: float = 90.0
    patience: int = 1000
    window: int = 500
    scan_interval_us: int = SCAN_INTERVAL_US
    compat: bool = False

    def __post_init__(self) -> None:
        for name in ("threshold", "gpu_threshold", "cpu_threshold"):
            require(
                0 <= getattr(self, name) <= 100, self, name, getattr(self, name), "a percentage, 0 to 100"
            )
        require_counts(self, "patience", "window", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of the machine and of GPUs."""
        count = self.patience if self.compat else self.patience + self.window - 1
        return Need(what=f"more than {count:,} system samples of a machine with a GPU, and a scan after them")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per machine and scan."""
        settings = BottleneckSettings(
            machine="cpu_percent",
            cores="core_percent",
            level=self.cpu_threshold,
            gpu_threshold=self.gpu_threshold,
            threshold=self.threshold,
            patience=self.patience,
            window=self.window,
            scan_interval_us=self.scan_interval_us,
            compat=self.compat,
        )
        for found in bottlenecks(window, settings):
            yield self._finding(found)

    def _finding(self, found: Bottleneck) -> Finding:
        busy = "a core is" if self.compat else "the machine, or a quarter of its cores, is"
        return sample_finding(
            self,
            found.place,
            found.scan.sample,
            numbers={
                "share": found.share,
                "threshold": self.threshold,
                "gpu_threshold": self.gpu_threshold,
                "cpu_threshold": self.cpu_threshold,
                "samples": found.judged,
                "time_ns": found.scan.time_ns,
            },
            why=f"the CPU is the bottleneck: in {found.share:.0f} % of {found.judged:,} samples until "
            f"{found.scan.until} (limit {self.threshold:g} %) {busy} more than {self.cpu_threshold:g} % "
            f"busy, while a GPU is less than {self.gpu_threshold:g} % busy",
            do="use more DataLoader workers, prefetch batches, move augmentations to the GPU, or use more "
            "cores per GPU",
        )
