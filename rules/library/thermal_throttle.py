"""TDC214: GPUs whose clocks are reduced by temperature or by a power brake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tdcore.rules.base import Finding, require
from tdcore.rules.columns import Columns
from tdcore.rules.measures.scans import SCAN_INTERVAL_US, Scan, duration_text, require_counts, scans
from tdcore.rules.requirements import Need
from tdcore.rules.rule_attributes import JudgedBy
from tdcore.rules.samples import Place, sample_finding
from tdcore.rules.window import Window

__all__ = ["ThermalThrottle"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThermalThrottle:
    """GPUs whose clocks are reduced because the GPU is too hot, or because of a power brake.

    What it does:
        Counts the system samples of each GPU in which the driver reports reduced clocks, for each reason.

    Why it matters:
        A GPU that is too hot lowers its clocks, and the training becomes slower without any error. In a
        distributed training all other ranks wait for this GPU.

    Decides by:
        At each scan, the rule judges the newest `window` samples. It fires if the share of samples with the
        reasons of one kind is above `threshold`. There are three kinds. "temperature": the reasons
        SwThermalSlowdown and HwThermalSlowdown of NVML. "power brake": HwPowerBrakeSlowdown, a signal of the
        power supply. "hardware": HwSlowdown without one of these reasons.

        Other reasons are normal and do not count: an idle GPU, or the power limit (SwPowerCap), at which a
        busy GPU usually runs.

    Parameters:
        threshold: share of samples with reduced clocks above which the rule fires, in percent.
        window: number of newest samples that a scan judges.
        patience: number of samples that must exist before the first judgement.
        scan_interval_us: time between two scans, in microseconds.

    False alarms:
        - Laptops and small workstations, whose GPUs are built to run at the limit of their temperature.

    Do:
        temperature: check the fans, dust, the room and the position of the machine, or lower the power limit
        (nvidia-smi -pl). In a cluster, exclude the node and report it. power brake: check the power supplies
        of the machine and of the rack.

    Source:
        NVIDIA, NVML API reference, nvmlClocksEventReasons. B. Sinha et al., Not all GPUs are created equal:
        characterizing variability in large-scale, accelerator-rich systems, SC 2022.
    """

    code: ClassVar[str] = "TDC214"
    judged_by: ClassVar[JudgedBy] = "run"
    system_columns: ClassVar[tuple[str, ...]] = ("gpus.throttle_reasons",)

    threshold: float = 5.0
    window: int = 500
    patience: int = 120
    scan_interval_us: int = SCAN_INTERVAL_US

    def __post_init__(self) -> None:
        require(0 <= self.threshold <= 100, self, "threshold", self.threshold, "a percentage, 0 to 100")
        require_counts(self, "window", "patience", "scan_interval_us")

    def needs(self) -> Need:
        """System samples of GPUs with throttle reasons."""
        return Need(what=f"more than {self.patience:,} system samples of a GPU, and a scan after them")

    def check(self, window: Window) -> Iterator[Finding]:
        """One finding per GPU, kind and scan."""
        if window.samples is None:
            return
        for series in window.samples.gpu_series(_values):
            for scan in scans(
                window.memory, series, scan_interval_us=self.scan_interval_us, keep=self.window
            ):
                if scan.points > self.patience:
                    window.judged(1)
                    yield from self._judge(series.place, scan)

    def _judge(self, place: Place, scan: Scan) -> Iterator[Finding]:
        reasons = scan.values[:, 0].astype(np.int64)
        named = reasons & (_THERMAL | _POWER_BRAKE) != 0
        kinds = {
            "temperature": reasons & _THERMAL != 0,
            "power brake": reasons & _POWER_BRAKE != 0,
            "hardware": (reasons & _HARDWARE != 0) & ~named,
        }
        for kind, reduced in kinds.items():
            share = 100.0 * float(reduced.mean())
            if share <= self.threshold:
                continue
            temperature = float(scan.values[reduced, 1].max())
            clocks = [_clock(scan.values[mask, 2]) for mask in (reduced, ~reduced)]
            hot = f", at up to {temperature:.0f} °C" if temperature > 0 else ""
            slow = (
                f"; its clock is then {clocks[0]:.0f} MHz on average, and {clocks[1]:.0f} MHz in other "
                "samples"
                if all(each > 0 for each in clocks)
                else ""
            )
            yield sample_finding(
                self,
                place,
                scan.sample,
                numbers={
                    "kind": kind,
                    "share": share,
                    "threshold": self.threshold,
                    "temperature": temperature,
                    "clock_mhz": clocks[0],
                    "other_clock_mhz": clocks[1],
                    "window": len(reasons),
                    "time_ns": scan.time_ns,
                },
                why=f"{_CAUSES[kind]} in {share:.0f} % of the samples over {duration_text(scan.seconds)} "
                f"until {scan.until} (limit {self.threshold:g} %){hot}{slow}",
                do=_DO[kind],
            )


# Bits of NVML's clock throttle reasons.
_THERMAL = 0x20 | 0x40
_POWER_BRAKE = 0x80
_HARDWARE = 0x8

_CAUSES = {
    "temperature": "the driver reduces the clocks because the GPU is too hot,",
    "power brake": "the clocks are reduced by a power brake, a signal of the power supply,",
    "hardware": "the hardware reduces the clocks, and the driver does not name the reason,",
}
_DO = {
    "temperature": "check the fans, dust, the room and the position of the machine, or lower the power limit "
    "(nvidia-smi -pl); in a cluster, exclude the node and report it",
    "power brake": "check the power supplies of the machine and of the rack",
    "hardware": "check the temperature and the power supply of the machine (nvidia-smi -q -d PERFORMANCE)",
}


def _values(gpus: Columns) -> Floats:
    """Columns: reasons, temperature and clock; -1 for an unknown temperature or clock."""
    bits = gpus.ints("throttle_reasons") & (_THERMAL | _POWER_BRAKE | _HARDWARE)
    reasons = np.where(gpus.present("throttle_reasons"), bits, np.nan)
    more = (gpus.floats(name) for name in ("temperature_celsius", "sm_clock_mhz"))
    return np.column_stack([reasons, *(np.nan_to_num(each, nan=-1.0) for each in more)])


def _clock(values: Floats) -> float:
    """The mean of the known clocks; -1 if there are none."""
    known = values[values > 0]
    return float(known.mean()) if known.size else -1.0
