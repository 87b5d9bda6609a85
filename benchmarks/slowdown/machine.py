"""CPU time, memory and load of a process, its descendants and all other processes, from the kernel.

Reads /proc of Linux, and needs the standard library only. Times are in seconds, sizes in bytes. Kernel
threads are not counted, because they execute writes of processes. The processes of leave_out() are not
counted either: a server of this benchmark, which represents another machine.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_KTHREADD = 2
_QUIET_SHARE, _QUIET_SECONDS = 0.05, 0.3
_left_out: set[int] = set()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """CPU seconds so far. The part of `busy` that is in no other field belongs to other processes."""

    at: float
    tree: float  # this process and its descendants, including ended processes that were waited for
    nobody: float  # threads of the kernel, and processes of leave_out()
    busy: float  # the whole machine without interrupts, with the time that the hypervisor used (steal)


@dataclass(frozen=True, kw_only=True)
class _Process:
    pid: int
    parent: int
    cpu: float  # with its ended children


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = _stat_fields(f"/proc/{entry}/stat")
        except OSError:
            continue  # ended in between
        cpu = sum(int(field) for field in fields[11:15]) / _TICK
        found[int(entry)] = _Process(pid=int(entry), parent=int(fields[1]), cpu=cpu)
    return found


def _stat_fields(path: str) -> list[str]:
    """Fields of a stat file after the command, which may contain spaces."""
    text = Path(path).read_text()
    return text[text.rindex(")") + 2 :].split()


def _tree(processes: dict[int, _Process], root: int) -> list[_Process]:
    children: dict[int, list[_Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    out, rest = [], [processes[root]]
    while rest:
        process = rest.pop()
        out.append(process)
        rest += [child for child in children.get(process.pid, []) if child.pid not in _left_out]
    return out


def leave_out(root: int) -> None:
    """Count this descendant and its descendants neither to this process nor to other processes."""
    _left_out.add(root)


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds of a process, its descendants, and children that it has waited for; 0 if it has ended."""
    processes = _processes()
    return sum(process.cpu for process in _tree(processes, root)) if root in processes else 0.0


def usage() -> Usage:
    """CPU seconds of this process and its descendants, of the kernel's threads, and of the machine."""
    processes = _processes()
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = ticks
    return Usage(
        at=time.perf_counter(),
        tree=sum(process.cpu for process in _tree(processes, os.getpid())),
        nobody=sum(process.cpu for process in processes.values() if process.parent == _KTHREADD)
        + sum(tree_cpu_seconds(root) for root in _left_out),
        busy=(user + nice + system + steal) / _TICK,
    )


def share_of_others(before: Usage, after: Usage) -> float:
    """The share of all cores that other processes used between two moments, 0 to 1."""
    known = after.tree - before.tree + after.nobody - before.nobody
    seconds = max(after.at - before.at, 1e-9) * (os.cpu_count() or 1)
    return max(0.0, after.busy - before.busy - known) / seconds


def memory() -> int:
    """Resident bytes of this process and its descendants. Shared pages count once (PSS)."""
    return sum(_proportional_bytes(process.pid) for process in _tree(_processes(), os.getpid()))


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # ended in between
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def settle(timeout: float = 60.0) -> float:
    """Wait until this process, its descendants and the disk are idle. Returns the seconds.

    So the work of a tool after a block does not affect the next block, and is measured here.
    """
    start = time.perf_counter()
    quiet_since, last, last_cpu = start, start, _cpu_of_the_rest()
    while time.perf_counter() - start < timeout:
        time.sleep(0.1)
        now, cpu = time.perf_counter(), _cpu_of_the_rest()
        if (cpu - last_cpu) / (now - last) > _QUIET_SHARE:
            quiet_since = now
        last, last_cpu = now, cpu
        if now - quiet_since >= _QUIET_SECONDS:
            break
    os.sync()
    return max(0.0, time.perf_counter() - start - _QUIET_SECONDS)


def _cpu_of_the_rest() -> float:
    """CPU seconds of the other threads of this process and of its descendants."""
    total, rest = 0, [(os.getpid(), threading.get_native_id())]
    while rest:
        pid, without = rest.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                if int(thread) != without:
                    fields = _stat_fields(f"/proc/{pid}/task/{thread}/stat")
                    total += int(fields[11]) + int(fields[12])
                children = Path(f"/proc/{pid}/task/{thread}/children").read_text().split()
                rest += [(int(child), 0) for child in children if int(child) not in _left_out]
        except OSError:
            continue  # ended in between
    return total / _TICK


def files_under(folder: Path) -> tuple[int, int]:
    """Number of files below a folder, and their bytes."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
