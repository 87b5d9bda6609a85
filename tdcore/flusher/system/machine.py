"""CPU, memory, disk and network of the machine, as rates and amounts since the previous sample.

Source: psutil, which reads /proc. Threads: the flusher's only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil

from tdcore.flusher.system.cgroup import Cgroup

__all__ = ["Machine"]

_IGNORED_INTERFACES = ("lo",)


class Machine:
    """Samples of the machine. The first sample has no rates."""

    def __init__(self) -> None:
        self._cgroup = Cgroup()
        self._cores: Sequence[tuple[float, float, float]] = ()
        self._disk: tuple[int, int] | None = None
        self._network: tuple[int, int] | None = None

    def sample(self) -> dict[str, Any]:
        """Values by column of system_schema(). A value that the system does not have is missing."""
        return {**self._cpu(), **self._memory(), **self._traffic()}

    def _cpu(self) -> dict[str, Any]:
        before, self._cores = self._cores, [_times(core) for core in psutil.cpu_times(percpu=True)]
        if len(before) != len(self._cores):  # the first sample, or a core went on- or offline
            return {}
        spent = [
            tuple(max(0.0, new - old) for new, old in zip(*pair, strict=True))
            for pair in zip(self._cores, before, strict=True)
        ]
        total, busy, iowait = (sum(column) for column in zip(*spent, strict=True))
        return {
            "cpu_percent": _percent(busy, total),
            "iowait_percent": _percent(iowait, total),
            "core_percent": [_percent(core[1], core[0]) for core in spent],
            "core_iowait_percent": [_percent(core[2], core[0]) for core in spent],
        }

    def _memory(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        return {
            "memory_total": memory.total,
            "memory_available": memory.available,
            **self._cgroup.sample(),
        }

    def _traffic(self) -> dict[str, Any]:
        disk, network = (
            psutil.disk_io_counters(nowrap=False),
            psutil.net_io_counters(pernic=True, nowrap=False),
        )
        values: dict[str, Any] = {}
        new_disk = (disk.read_bytes, disk.write_bytes) if disk is not None else None
        if new_disk and self._disk:
            values["disk_read_bytes"], values["disk_written_bytes"] = _since(new_disk, self._disk)
        cards = [card for name, card in network.items() if name not in _IGNORED_INTERFACES]
        new_network = (sum(card.bytes_recv for card in cards), sum(card.bytes_sent for card in cards))
        if self._network:
            received, sent = _since(new_network, self._network)
            values["network_received_bytes"], values["network_sent_bytes"] = received, sent
        self._disk, self._network = new_disk, new_network
        return values


def _times(core: Any) -> tuple[float, float, float]:
    """Seconds of one core: all, busy, waiting for I/O. Guests are contained in "user" and "nice"."""
    iowait = getattr(core, "iowait", 0.0)
    busy = core.user + core.nice + core.system
    busy += sum(getattr(core, name, 0.0) for name in ("irq", "softirq", "steal"))
    return busy + core.idle + iowait, busy, iowait


def _percent(part: float, whole: float) -> float | None:
    return 100.0 * part / whole if whole > 0 else None


def _since(new: tuple[int, int], old: tuple[int, int]) -> tuple[int, int]:
    """Growth of two counters; 0 for a counter that was reset."""
    return max(0, new[0] - old[0]), max(0, new[1] - old[1])
