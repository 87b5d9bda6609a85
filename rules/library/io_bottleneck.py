"""TDC203: GPUs that wait for a disk."""

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

__all__ = ["IOBottleneck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IOBottleneck:
    """GPUs that wait because reading or writing files is the bottleneck.

    What it does:
        Judges the system samples of each machine with a GPU. The rule counts the samples in which the CPU
        waits for a disk while a GPU waits.

    Why it matters:
        A training that reads its data from a slow disk or a network file system leaves its GPUs idle, at any
        number of cores.

    Decides by:
        A sample is a bottleneck if the CPU waits for a disk and the utilization of at least one GPU is
        below `gpu_threshold`. The CPU waits if its
        I/O wait, or that of at least a quarter of its cores, is above `io_threshold`.
        The rule judges each machine. At each scan, it fires if the share of bottlenecks among the newest
        `window` samples is above `threshold`. The first `patience` samples are not judged.

        With compat=True the rule decides as smdebug does: one core that waits is enough, and the share is
        that of all samples since the start, including the first ones, once there are more than `patience`
        samples.
        smdebug adds up the samples of all machines of a training; this rule judges each machine alone.

        Counts are in samples, as in smdebug. With the default interval of 500 ms, 1000 samples are 500 s.

    Parameters:
        threshold: share of bottlenecks above which the rule fires, in percent.
        gpu_threshold: utilization of a GPU below which it waits, in percent.
        io_threshold: I/O wait of the CPU or of a core above which it waits, in percent.
        patience: number of samples at the start that are not judged.
        window: number of newest samples that a scan judges; not used with compat=True.
        scan_interval_us: time between two scans, in microseconds.
        compat: whether to decide as smdebug does.

    False alarms:
        - Other jobs on the same machine that wait for a disk.
        - Checkpoints that are written while the GPU waits, if they take a large part of the time.

        The I/O wait is the time in which a core is idle and a process waits for a disk. Time in which the
        core does other work is not I/O wait, and some network file systems do not count as disks.

    Do:
        Store the data on a local disk or in memory, in few large files of a binary format. Prefetch batches
        with more DataLoader workers.

    Source:
        The rule IOBottleneck of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC203"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.utilization_percent", "iowait_percent")

    threshold: float = 50.0
    gpu_threshold: float = 10.0
    io_threshold: float = 50.0
    patience: int = 1000
    window: int = 500
    scan_interval_us: int = SCAN_INTERVAL_US
    compat: bool = False

    def __post_init__(self) -> None:
        for name in ("threshold", "gpu_threshold", "io_threshold"):
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
            machine="iowait_percent",
            cores="core_iowait_percent",
            level=self.io_threshold,
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
                "io_threshold": self.io_threshold,
                "samples": found.judged,
                "time_ns": found.scan.time_ns,
            },
            why=f"reading or writing files is the bottleneck: in {found.share:.0f} % of {found.judged:,} "
            f"samples until {found.scan.until} (limit {self.threshold:g} %) {busy} waiting for a disk "
            f"for more than {self.io_threshold:g} % of the time, while a GPU is less than "
            f"{self.gpu_threshold:g} % busy",
            do="store the data on a local disk, in few large files of a binary format, and prefetch "
            "batches with more DataLoader workers",
        )
