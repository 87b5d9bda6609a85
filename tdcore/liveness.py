"""Liveness: whether a process of a run is still alive. Any thread."""

from __future__ import annotations

import socket

__all__ = ["process_is_gone"]

_SLACK_SECONDS = 60.0  # between the start of a process and its first file; clocks may also be changed


def process_is_gone(host: str, pid: int, noted_ns: int) -> bool | None:
    """Whether a process of a run has ended. A zombie process counts as ended.

    Args:
        host: The machine of the process.
        pid: The process ID. If the current process with this ID started after `noted_ns`, the ID was reused,
            so the process of the run has ended.
        noted_ns: Time at which a file recorded the process.

    Returns:
        None for a process of another machine, and for pid 0.
    """
    if pid == 0 or host != socket.gethostname():
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        later = process.create_time() > noted_ns / 1e9 + _SLACK_SECONDS
        return bool(later or process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
