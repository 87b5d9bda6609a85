"""TDC201: a batch that is small for the machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Columns
from tdcore.rules.measures.gpu_memory import memory_percent
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, Scan, duration_text, require_counts, scans
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, Samples, sample_finding
from tdcore.rules.window import Window

__all__ = ["BatchSize"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """A batch that is small for the machine: CPU, GPU and memory of the GPU all have room.

    What it does:
        Judges the system samples of each GPU, together with the CPU utilization of its machine. At each scan,
        the rule computes percentile 95 of the CPU utilization, of the GPU utilization and of the used memory
        of the GPU over the newest samples.

    Why it matters:
        If nothing on the machine is busy, the work of a step is too small. A larger batch makes the training
        faster on the same machine, or a smaller machine is enough.

    Decides by:
        The rule judges after `patience` samples, and then once in each scan interval. It fires if all three
        percentiles are below their thresholds. The CPU utilization is that of all cores of the machine, and
        the memory is the used share of the memory of the GPU.

        Counts are in samples, as in smdebug. With the default interval of 500 ms, 500 samples are 250 s. The
        rule judges samples that the flusher takes, so it adds no cost to the training.

    Parameters:
        cpu_threshold_p95: percentile 95 of the CPU utilization below which the CPU has room, in percent.
        gpu_threshold_p95: percentile 95 of the GPU utilization below which the GPU has room, in percent.
        gpu_memory_threshold_p95: percentile 95 of the used memory of the GPU below which it has room, in
            percent.
        patience: number of samples at the start that must pass before the first judgement.
        window: number of newest samples that a scan judges.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - GPUs of the machine that this training does not use.
        - A training that waits for something that is not measured, such as the network or a service.
        - A batch size that is fixed for other reasons, such as the accuracy.

        If the framework reserves the memory of the GPU at the start, as JAX and TensorFlow do, the rule never
        fires.

    Do:
        Increase the batch size, and adapt the learning rate. If the batch must not change, use a smaller
        machine, or several trainings on one GPU.

    Source:
        The rule BatchSize of smdebug, with the defaults that the service used.
    """

    code: ClassVar[str] = "TDC201"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = (
        "gpus.utilization_percent",
        "gpus.memory_used",
        "gpus.memory_total",
        "cpu_percent",
    )

    cpu_threshold_p95: float = 70.0
    gpu_threshold_p95: float = 70.0
    gpu_memory_threshold_p95: float = 70.0
    patience: int = 1000
    window: int = 500
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        for name in ("cpu_threshold_p95", "gpu_threshold_p95", "gpu_memory_threshold_p95"):
            require(
                0 <= getattr(self, name) <= 100, self, name, getattr(self, name), "a percentage, 0 to 100"
            )
        require_counts(self, "patience", "window", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of the CPU and of GPUs."""
        return Need(
            what=f"more than {self.patience:,} system samples of the CPU and a GPU, and a scan after them"
        )

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per GPU and scan."""
        samples = window.samples
        if samples is None:
            return
        for series in samples.gpu_series(lambda gpus: _values(samples, gpus)):
            for scan in scans(
                window.memory, series, scan_interval_us=self.scan_interval_us, keep=self.window
            ):
                if scan.points > self.patience:
                    window.judged(1)
                    yield from self._judge(series.place, scan)

    def _judge(self, place: Place, scan: Scan) -> Iterator[Finding]:
        cpu, gpu, memory = np.percentile(scan.values, 95, axis=0).tolist()
        limits = (self.cpu_threshold_p95, self.gpu_threshold_p95, self.gpu_memory_threshold_p95)
        if cpu >= limits[0] or gpu >= limits[1] or memory >= limits[2]:
            return
        yield sample_finding(
            self,
            place,
            scan.sample,
            numbers={
                "cpu_p95": cpu,
                "gpu_p95": gpu,
                "gpu_memory_p95": memory,
                "cpu_threshold_p95": limits[0],
                "gpu_threshold_p95": limits[1],
                "gpu_memory_threshold_p95": limits[2],
                "window": len(scan.values),
                "time_ns": scan.time_ns,
            },
            why=f"the work of a step is small for this machine: in 95 % of the samples over "
            f"{duration_text(scan.seconds)} until {scan.until} the CPU is at most {cpu:.0f} % busy (limit "
            f"{limits[0]:g} %), the GPU at most {gpu:.0f} % (limit {limits[1]:g} %), and at most "
            f"{memory:.0f} % of its memory are used (limit {limits[2]:g} %)",
            do="increase the batch size and adapt the learning rate, or use a smaller machine",
        )


def _values(samples: Samples, gpus: Columns) -> Floats:
    """Columns in percent: utilization of the CPU and of the GPU, used share of the memory of the GPU."""
    cpu = samples.columns.floats("cpu_percent")[gpus.ints("row")]
    return np.column_stack([cpu, gpus.floats("utilization_percent"), memory_percent(gpus)])
