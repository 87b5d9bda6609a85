"""What a hook does about accelerators besides capturing their tensors. Knows no framework.

Threads: any; preparing a device lasts, so the training thread does it before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tdcore.session.counters import DeviceReport

__all__ = ["device_notes", "device_reports", "prepare_devices", "say_growth_refusal", "say_refusals"]


def prepare_devices(ring: Any, devices: Iterable[int], warn: Callable[[str], None]) -> None:
    """Sets CUDA devices up that a first capture would set up else, and says which cannot be used."""
    unused = [device for device in sorted(devices) if not ring.prepare_device(device)]
    say_refusals(ring, warn)
    if unused and ring.usable and not ring.device_refusals():
        warn(
            f"tensors on cuda:{unused[0]} are not captured: no NVIDIA device was visible when its "
            "capture began, or RingConfig.device_lanes is 0; set device_lanes to the number of devices"
        )


def say_refusals(ring: Any, warn: Callable[[str], None]) -> None:
    """Devices that cannot be used are said once (warn sees to that); their tensors are counted."""
    for line in ring.device_refusals().splitlines():
        warn(line)


def say_growth_refusal(ring: Any, warn: Callable[[str], None]) -> None:
    """A ring that finds no memory to grow is said once; what finds no room in it is counted."""
    refusal = ring.growth_refusal()
    if refusal:
        warn(f"the ring cannot grow, so RingConfig.when_full decides sooner what is kept: {refusal}")


def device_reports(ring: Any) -> tuple[DeviceReport, ...]:
    """What is known of the devices that were met."""
    return tuple(map(DeviceReport.from_ring, ring.device_reports()))


def device_notes(ring: Any) -> dict[str, Any]:
    """The same for collections.json; nothing where no device was met."""
    notes = [report.as_note() for report in device_reports(ring)]
    return {"devices": notes} if notes else {}
