"""Limits of the container: memory and CPUs of the cgroup (version 1 or 2). Threads: the flusher's only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["Cgroup"]

_UNLIMITED = 1 << 60  # version 1 has a number near 2**63 instead of "max"


class Cgroup:
    """The cgroup of this process. root: the mount point; proc: the folder of this process in /proc."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self")) -> None:
        self._memory: tuple[Path, Path] | None = None  # limit and usage, of the tightest limit
        memory = list(_levels(root, _own_paths(proc), "memory"))
        limits = [(value, *files) for files in memory if (value := _number(files[0])) is not None]
        if limits:
            _, limit, usage = min(limits)
            self._memory = (limit, usage)
        quotas = [_quota(path) for path in _cpu_folders(root, _own_paths(proc))]
        self._cpu = min((cores for cores in quotas if cores is not None), default=None)

    def sample(self) -> dict[str, Any]:
        """memory_limit and memory_limit_used in bytes, cpu_limit in cores; only those that are limited."""
        values: dict[str, Any] = {} if self._cpu is None else {"cpu_limit": self._cpu}
        if self._memory is not None:
            limit, used = (_number(path) for path in self._memory)
            if limit is not None and used is not None:
                values |= {"memory_limit": limit, "memory_limit_used": used}
        return values


def _own_paths(proc: Path) -> dict[str, str]:
    """Path of the process in the hierarchy of each controller; "" is version 2."""
    try:
        lines = (proc / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    paths = {}
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for each in controllers.split(","):
            paths[each] = path
    return paths


def _folders(root: Path, path: str) -> list[Path]:
    """The cgroup of a path and all above it. In a container the path may be one of the host."""
    own = root / path.strip("/")
    return [own, *own.parents[: len(own.parts) - len(root.parts)]] if ".." not in path else [root]


def _levels(root: Path, paths: dict[str, str], controller: str) -> list[tuple[Path, Path]]:
    two = [(at / "memory.max", at / "memory.current") for at in _folders(root, paths.get("", "/"))]
    one = [
        (at / "memory.limit_in_bytes", at / "memory.usage_in_bytes")
        for at in _folders(root / controller, paths.get(controller, "/"))
    ]
    return two + one


def _cpu_folders(root: Path, paths: dict[str, str]) -> list[Path]:
    return _folders(root, paths.get("", "/")) + _folders(root / "cpu", paths.get("cpu", "/"))


def _number(path: Path) -> int | None:
    """The number in a file; None without a limit or without the file."""
    try:
        value = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return value if 0 <= value < _UNLIMITED else None


def _quota(folder: Path) -> float | None:
    """Number of CPUs that a cgroup may use."""
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us else None
