"""Whether a process that a run names is still alive. Any thread."""

from __future__ import annotations

import socket

__all__ = ["process_is_gone"]

_SLACK_SECONDS = 60.0  # between the start of a process and its first note; clocks may be set, too


def process_is_gone(host: str, pid: int, noted_ns: int) -> bool | None:
    """Whether the process `pid` of `host`, which a file noted at `noted_ns`, has ended.

    None for processes of other machines, and for pid 0. A process that started later than `noted_ns` has
    reused the number. A zombie has ended.
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
