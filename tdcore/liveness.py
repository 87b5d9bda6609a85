"""Whether a process that a run names is still alive. Any thread."""

from __future__ import annotations

import socket

__all__ = ["process_is_gone"]

_SLACK_SECONDS = 60.0  # between a process's start and its first note of it; and clocks are set


def process_is_gone(host: str, pid: int, noted_ns: int) -> bool | None:
    """Whether the process `pid` of `host`, of which somebody made a note at `noted_ns`, is no more.

    None for those of other machines, and for pid 0. A process that began later was given the number anew;
    one that has ended, and that nobody has asked after, is no more.
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
