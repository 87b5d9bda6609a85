"""CPU time and memory of processes, read from /proc. Threads: the flusher's only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psutil

__all__ = ["ProcessTree"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SEARCH_SECONDS = 2.0  # between two searches for new children


class ProcessTree:
    """A process and its children at all levels, such as DataLoader workers.

    The CPU time of a process that ends between two samples is lost; that of a new one counts from its start.

    Args:
        pid: The process.
        leave_out: Processes that do not count, with all their children.
    """

    def __init__(self, pid: int, leave_out: tuple[int, ...] = ()) -> None:
        self._pid = pid
        self._leave_out = leave_out
        self._pids: list[int] = []
        self._search_at = 0.0
        self._ticks: dict[int, tuple[int, int]] | None = None  # by process: start time, CPU time

    def sample(self, now: float) -> tuple[int, int, float | None]:
        """Number of processes, resident bytes, and CPU seconds since the previous sample (None in the first).

        Resident bytes count shared memory once for each process that uses it. now: monotonic seconds.
        """
        if now >= self._search_at:
            self._search_at = now + _SEARCH_SECONDS
            self._pids = [self._pid, *_children(self._pid, self._leave_out)]
        before, self._ticks = self._ticks, {}
        memory = ticks = 0
        for pid in self._pids:
            found = _stat(pid)
            if found is None:
                continue
            start, used, resident = found
            memory += resident
            self._ticks[pid] = (start, used)
            earlier = (before or {}).get(pid)
            ticks += used - earlier[1] if earlier is not None and earlier[0] == start else used
        return len(self._ticks), memory, None if before is None else ticks / _TICKS

    def age(self) -> float | None:
        """Seconds since the start of the process, as of the last sample; None if it has ended."""
        found = (self._ticks or {}).get(self._pid)
        return None if found is None else time.clock_gettime(time.CLOCK_BOOTTIME) - found[0] / _TICKS


def _stat(pid: int) -> tuple[int, int, int] | None:
    """Start time and CPU time in ticks, and resident bytes; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) < 22 or fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19]), int(fields[11]) + int(fields[12]), int(fields[21]) * _PAGE


def _children(pid: int, leave_out: tuple[int, ...]) -> Iterator[int]:
    """All descendants of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found = [int(each) for each in file.read().split()]
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):  # a kernel without CONFIG_PROC_CHILDREN
                yield from _children_by_parent(pid, leave_out)
                return
            continue
        except OSError:
            continue
        for child in found:
            if child not in leave_out:
                yield child
                yield from _children(child, leave_out)


def _children_by_parent(pid: int, leave_out: tuple[int, ...]) -> Iterator[int]:
    """The same from the parents of all processes."""
    try:
        found = psutil.Process(pid).children()
    except psutil.Error:
        return
    for child in found:
        if child.pid not in leave_out:
            yield child.pid
            yield from _children_by_parent(child.pid, leave_out)
