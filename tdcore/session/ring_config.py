"""RingConfig: sizes of the shared memory between training and flusher, and the ring made from them.

Frozen values, safe in any thread. An invalid argument raises ConfigError with the valid values.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from tdcore.errors import CaptureError, ConfigError
from tdcore.session.devices import visible_nvidia_devices
from tdcore.session.ring_sizes import LEAST_ARENA, LEAST_RING, most_ring_bytes
from tdcore.text.short_repr import settings_repr

if TYPE_CHECKING:
    from tdcore import _core

__all__ = ["RingConfig", "make_ring"]

_MIB = 1024 * 1024
_MOST_LANES = 8
_LEAST_RING = 64 * 1024
_MOST_RING = 64 * 1024 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class RingConfig:
    """The shared memory between the training and its flusher.

    Args:
        ring_bytes: Maximum size of payloads and statistics that are not written yet; a power of two. A ring
            begins with 1 to 4 MiB and grows when a record does not fit. If no more memory can be allocated,
            the ring is full at its current size. None: 256 MiB, or a size that holds a saved step, within
            1/16 of the available memory of the machine (ring_sizes.py).
        slots: Maximum number of records that are not written yet; a power of two.
        names_bytes: Maximum size of the table of tensor names; a power of two. The table grows with new
            names.
        when_full: "block": wait for the flusher, at most block_timeout, then drop. "drop": drop immediately.
            "degrade": keep the statistics and drop the payload. Each drop is counted with its reason.
        block_timeout: Maximum time that "block" waits.
        threads: Threads that copy and reduce large tensors, including the training thread. None: a quarter of
            the CPUs, from 2 to 4 (1 if there is one CPU).
        device_lanes: Number of accelerators whose tensors are captured, 0 to 8. None: the NVIDIA devices that
            are visible to this process, counted without a CUDA call.
        device_ring_bytes: Maximum host memory for each accelerator, like ring_bytes; a power of two. It is
            allocated and pinned at the first use of the device. None: as for ring_bytes.
        device_arena_bytes: Memory of each device for payloads that are not copied to the host yet. None: 64
            MiB, or a size that holds a saved step, within 1/50 of the free memory of the device.

    Raises:
        ConfigError: A value is invalid.
    """

    ring_bytes: int | None = None
    slots: int = 16384
    names_bytes: int = 256 * _MIB
    when_full: Literal["block", "drop", "degrade"] = "block"
    block_timeout: timedelta = timedelta(seconds=30)
    threads: int | None = None
    device_lanes: int | None = None
    device_ring_bytes: int | None = None
    device_arena_bytes: int | None = None

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        if self.when_full not in ("block", "drop", "degrade"):
            raise ConfigError(f"when_full must be 'block', 'drop' or 'degrade', got {self.when_full!r}")
        if self.block_timeout < timedelta():
            raise ConfigError(f"block_timeout must not be negative, got {self.block_timeout}")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads must be at least 1 (or None), got {self.threads}")
        if self.device_lanes is not None and not 0 <= self.device_lanes <= _MOST_LANES:
            raise ConfigError(
                f"device_lanes must be from 0 to {_MOST_LANES} (or None), got {self.device_lanes}"
            )
        size = self.device_ring_bytes
        if size is not None and (not _LEAST_RING <= size <= _MOST_RING or size & (size - 1)):
            raise ConfigError(
                f"device_ring_bytes must be a power of two from {_LEAST_RING} to {_MOST_RING}, got {size}"
            )
        if self.device_arena_bytes is not None and self.device_arena_bytes < _MIB:
            raise ConfigError(f"device_arena_bytes must be at least {_MIB}, got {self.device_arena_bytes}")

    def resolved_threads(self) -> int:
        """The number of threads to use on this machine."""
        cpus = len(os.sched_getaffinity(0))
        return self.threads or min(cpus, max(2, min(4, cpus // 4)))

    def resolved_device_lanes(self) -> int:
        """Number of accelerators to prepare for on this machine."""
        if self.device_lanes is not None:
            return self.device_lanes
        return min(visible_nvidia_devices(), _MOST_LANES)


def make_ring(config: RingConfig, *, step_times: bool = False, processes: int = 1) -> _core.Ring:
    """Create the ring with its memory. Raises ConfigError, or CaptureError if there is no shared memory.

    Args:
        config: Its sizes. A size of None begins with the least size, which RingSizes raises.
        step_times: Whether the memory has a queue for times of steps.
        processes: Number of capturing processes on this machine.
    """
    from tdcore import _core  # not at the top: RingConfig also exists if tdcore is disabled

    most = most_ring_bytes(_core.available_memory_bytes(), processes)
    try:
        return _core.Ring(
            data_bytes=config.ring_bytes or most,
            limit_bytes=0 if config.ring_bytes else LEAST_RING,
            slots=config.slots,
            names_bytes=config.names_bytes,
            policy=config.when_full,
            block_timeout_seconds=config.block_timeout.total_seconds(),
            threads=config.resolved_threads(),
            device_lanes=config.resolved_device_lanes(),
            device_lane_bytes=config.device_ring_bytes or most,
            device_lane_limit=0 if config.device_ring_bytes else LEAST_RING,
            device_lane_slots=config.slots,
            device_arena_bytes=config.device_arena_bytes or LEAST_ARENA,
            step_times=step_times,
        )
    except ValueError as error:
        raise ConfigError(f"RingConfig: {error}") from error
    except (OSError, MemoryError) as error:
        size = config.ring_bytes or LEAST_RING
        raise CaptureError(
            f"cannot set up {size / _MIB:.0f} MiB of shared memory for capture: {error}; "
            "lower RingConfig.ring_bytes, or allow memfd_create() in this container"
        ) from error
