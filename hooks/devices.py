"""Preparation of accelerators, and warnings about them. Independent of the framework.

Threads: any. The preparation of a device takes time, so the training thread does it before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdcore.session.counters import DeviceReport

__all__ = ["device_notes", "device_reports", "prepare_devices", "warn_growth_refusal", "warn_refusals"]


def prepare_devices(ring: Any, devices: Iterable[int], warn: Callable[[str], None]) -> None:
    """Set up CUDA devices before their first capture. Log devices that cannot be used."""
    unused = [device for device in sorted(devices) if not ring.prepare_device(device)]
    warn_refusals(ring, warn)
    if unused and ring.usable and not ring.device_refusals():
        warn(
            f"tensors on cuda:{unused[0]} are not captured: no NVIDIA device was visible when its "
            "capture began, or RingConfig.device_lanes is 0; set device_lanes to the number of devices"
        )


def warn_refusals(ring: Any, warn: Callable[[str], None]) -> None:
    """Log devices that cannot be used, each once. Their tensors are counted as dropped."""
    for line in ring.device_refusals().splitlines():
        warn(line)


def warn_growth_refusal(ring: Any, warn: Callable[[str], None]) -> None:
    """Log once that the ring could not allocate memory to grow. Captures without room count as dropped."""
    refusal = ring.growth_refusal()
    if refusal:
        warn(f"the ring cannot grow, so RingConfig.when_full applies sooner: {refusal}")


def device_reports(ring: Any) -> tuple[DeviceReport, ...]:
    """Reports on the devices of captured tensors."""
    return tuple(map(DeviceReport.from_ring, ring.device_reports()))


def device_notes(ring: Any) -> dict[str, Any]:
    """Return the device reports in the form for collections.json; empty without devices."""
    notes = [report.as_note() for report in device_reports(ring)]
    return {"devices": notes} if notes else {}
