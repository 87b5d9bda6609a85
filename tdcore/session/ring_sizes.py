"""Sizes of the ring, of device lanes and of arenas that RingConfig leaves open.

A size follows from the bytes of a saved step and from the memory of the machine:

- The size is never below the least size, which is enough for models of up to about 20 million parameters.
- The size is the smallest power of two that holds a saved step with an eighth more for headers and gaps.
- All rings and lanes above their least size take together at most 1/16 of the available memory of the
  machine, divided by the number of capturing processes on the machine. Available memory is the least of
  MemAvailable and the room in the cgroups of the process (version 1 and 2).
- An arena takes at most 1/50 of the free memory of its device when the device is set up (csrc/device/).

The size is a limit. A ring allocates its memory as records need it. A lane is pinned, so its memory is
allocated when the device is set up; if the system refuses to pin the chosen size, the lane gets its least
size.

Threads: the thread that registers models and begins steps.
"""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcore.session.ring_config import RingConfig

__all__ = [
    "HOST",
    "LEAST_ARENA",
    "LEAST_RING",
    "MACHINE_SHARE",
    "RingSizes",
    "capturing_processes",
    "most_ring_bytes",
    "wanted_bytes",
]

_log = logging.getLogger("tdcore")

_MIB = 1024 * 1024
LEAST_RING = 256 * _MIB
LEAST_ARENA = 64 * _MIB
MACHINE_SHARE = 16
_MOST_RING = 64 * 1024 * _MIB
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")

HOST = -1  # key of the host's memory, among numbers of devices


def capturing_processes(workers: int, world_size: int, environment: Mapping[str, str] = os.environ) -> int:
    """Largest possible number of capturing processes on this machine.

    Args:
        workers: Number of capturing workers of the job.
        world_size: Number of processes of the job.
        environment: LOCAL_WORLD_SIZE of torchrun, or the variable of Open MPI or Intel MPI, has the number of
            processes on this machine. Without them, all processes may be on this machine.
    """
    local = world_size
    for name in _LOCAL_SIZES:
        text = environment.get(name, "")
        if text.isdecimal() and int(text) > 0:
            local = int(text)
            break
    return max(1, min(workers or 1, local))


def machine_share(available: int, processes: int) -> int:
    """Bytes that this process may use for rings and lanes above their least sizes."""
    return available // MACHINE_SHARE // processes


def most_ring_bytes(available: int, processes: int) -> int:
    """Address space of a ring whose size is left open: the largest size that it may get later.

    The result is the least size if the process has a limit for its address space, or for the size of a file,
    which is also a limit for a memfd.
    """
    limits = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)
    limited = any(resource.getrlimit(each)[0] != resource.RLIM_INFINITY for each in limits)
    most, share = LEAST_RING, 0 if limited else machine_share(available, processes)
    while most * 2 <= min(share, _MOST_RING):
        most *= 2
    return most


def wanted_bytes(step_bytes: int) -> int:
    """Size of a ring that holds a saved step with values of `step_bytes`, and headers and gaps."""
    return step_bytes + step_bytes // 8


class RingSizes:
    """Chooses sizes for one ring when models are registered and after saved steps.

    Args:
        ring: The `_core.Ring`.
        config: Sizes that the user has set are not changed.
        processes: Result of capturing_processes().
        available: Returns the bytes of available memory.
    """

    def __init__(
        self, ring: Any, config: RingConfig, *, processes: int, available: Callable[[], int]
    ) -> None:
        self._ring = ring
        self._config = config
        self._processes = processes
        self._available = available
        self._first_share = machine_share(available(), processes)
        self._expected = {HOST: 0}  # bytes of a saved step of all registered models, by device
        self._largest = 0  # the largest saved step so far
        self._granted: dict[int, int] = {}  # chosen sizes above the least size, by device
        self._notes: dict[int, str] = {}

    def expect(self, step_bytes: Mapping[int, int]) -> None:
        """Add a model. step_bytes: bytes of the values of its saved steps, by device number or HOST.

        Call it before the devices of the model are set up.
        """
        for device, size in step_bytes.items():
            self._expected[device] = self._expected.get(device, 0) + size
            if not size:
                continue
            if device == HOST:
                self._grow_ring(self._expected[HOST])
                self._ring.expect(self._expected[HOST])
            else:
                self._wish_lane(device, self._expected[device])

    def measured(self, step_bytes: int) -> None:
        """Record the size of a saved step, of all devices together.

        This is how the size of outputs, and of tensors that are saved without a model, becomes known. A lane
        that is in use keeps its size.
        """
        if step_bytes <= self._largest:
            return
        self._largest = step_bytes
        on_devices = sum(size for device, size in self._expected.items() if device != HOST)
        if step_bytes - on_devices > self._expected[HOST]:
            self._grow_ring(step_bytes - on_devices)

    def as_note(self) -> dict[str, list[str]]:
        """Sizes above the least size, with the reason, for collections.json; empty if there are none."""
        return {"ring_sizes": list(self._notes.values())} if self._notes else {}

    def _grow_ring(self, step_bytes: int) -> None:
        if self._config.ring_bytes is not None:
            return
        size = self._choose(HOST, step_bytes)
        if size > self._ring.limit_bytes:
            self._grant(HOST, self._ring.raise_limit(size), step_bytes, "ring of up to")

    def _wish_lane(self, device: int, step_bytes: int) -> None:
        size = 0 if self._config.device_ring_bytes is not None else self._choose(device, step_bytes)
        arena = 0 if self._config.device_arena_bytes is not None else wanted_bytes(step_bytes)
        if self._ring.wish_device_sizes(device, size, arena) and size > LEAST_RING:
            self._grant(device, size, step_bytes, f"pinned ring of cuda:{device} of up to")

    def _choose(self, device: int, step_bytes: int) -> int:
        """The size for a saved step, a power of two, within the share of the machine's memory."""
        available = self._available() + self._ring.memory_bytes
        share = min(self._first_share, machine_share(available, self._processes))
        most = share - sum(size for other, size in self._granted.items() if other != device)
        size = LEAST_RING
        while size < wanted_bytes(step_bytes) and size * 2 <= most:
            size *= 2
        return size

    def _grant(self, device: int, size: int, step_bytes: int, what: str) -> None:
        self._granted[device] = size
        shared = f" of {self._processes} processes" if self._processes > 1 else ""
        self._notes[device] = (
            f"{what} {_binary(size)} (the default is {_binary(LEAST_RING)}): a saved step has "
            f"{_binary(step_bytes)}, and the rings{shared} may take 1/{MACHINE_SHARE} of the available memory"
        )
        _log.info("tdcore: %s", self._notes[device])


def _binary(size: int) -> str:
    return f"{size / 1024 / _MIB:.3g} GiB" if size >= 1024 * _MIB else f"{size / _MIB:.4g} MiB"
