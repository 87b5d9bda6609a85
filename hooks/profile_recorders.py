"""Recorders of a profile window, and CProfileRecorder, which works with every framework.

A recorder runs from the start of a step to the start of a later step, in the thread of the training. Other
profilers have priority: a recorder does not start while another profiler of its kind is active, and stops
before the script starts one.

Threads: start() in the training thread. halt() by any thread: it stops the profiler only in the training
thread, because torch.profiler, and cProfile before Python 3.12, belong to the thread that started them.
write() by any thread.
"""

from __future__ import annotations

import cProfile
import marshal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tdcore.errors import TdcoreError
from tdcore.hooks.main_thread import call_in_main_thread
from tdcore.session.profile_writer import PSTATS_FILE

__all__ = ["CProfileRecorder", "ProfileError", "Recorder"]


class ProfileError(TdcoreError):
    """A part of a profile cannot be recorded; the message is the reason."""


class Recorder(Protocol):
    """Recorder of one part of a profile."""

    part: str  # for messages: "operators" or "Python functions"

    def start(self, interrupted: Callable[[str], None]) -> None:
        """Start to record. Raises ProfileError, or any exception of the profiler.

        interrupted: called with a reason before the script starts a profiler of this kind, by the thread that
            starts it. The call stops the recorder if this thread is the training thread.
        """

    def halt(self) -> bool:
        """Stop to record. Return False if only the training thread can do it. May be called again."""

    def call_later(self, call: Callable[[], None]) -> None:
        """Have the training thread call the function soon, so that it can stop the recorder."""

    def write(self, folder: Path) -> None:
        """Write the file of the recorder into the folder. Raises ProfileError, or any exception.

        A profile of Python functions that its thread has not stopped is written as it is.
        """

    def forget(self) -> None:
        """Stop without a file, in a forked child or at the end of the program. Never raises.

        In a thread other than the training thread, only the functions that the recorder replaced are
        restored.
        """


_PER_THREAD = sys.version_info < (3, 12)  # later versions of cProfile record all threads


def _off_cpu_time() -> float:
    return time.perf_counter() - time.process_time()


_CLOCKS: dict[str, Callable[[], float] | None] = {
    "total_time": None,
    "cpu_time": time.process_time,
    "off_cpu_time": _off_cpu_time,
}


class CProfileRecorder:
    """Recorder of the Python functions of the current thread. timer: one of profile_window.TIMERS."""

    part = "Python functions"

    def __init__(self, timer: str) -> None:
        clock = _CLOCKS[timer]
        self._profile = cProfile.Profile() if clock is None else cProfile.Profile(clock)
        self._guard = _EnableGuard()
        self._thread = threading.current_thread()
        self._stopped = False

    def start(self, interrupted: Callable[[str], None]) -> None:
        """See Recorder."""
        active = _active_profiler()
        if active:
            raise ProfileError(f"another profiler of Python functions is active ({active})")
        try:
            self._profile.enable()
        except ValueError as error:
            raise ProfileError(f"another profiler of Python functions is active ({error})") from error
        self._guard.put_on(lambda: interrupted("the script started a profiler of Python functions"))

    def halt(self) -> bool:
        """See Recorder."""
        if self._stopped:
            return True
        if self._elsewhere() and self._thread.is_alive():
            return False
        self._stopped = True
        self._guard.take_off()
        if not self._elsewhere():
            self._disable()
        return True

    def call_later(self, call: Callable[[], None]) -> None:
        """See Recorder. Without an effect if the training thread is not the main thread."""
        if self._thread is threading.main_thread():
            call_in_main_thread(call)

    def write(self, folder: Path) -> None:
        """See Recorder. The method dump_stats() would end a profile of the script in the current thread."""
        profile: Any = self._profile
        profile.snapshot_stats()
        with (folder / PSTATS_FILE).open("wb") as file:
            marshal.dump(profile.stats, file)

    def forget(self) -> None:
        """See Recorder."""
        self._guard.take_off()
        if not self._stopped and not self._elsewhere():
            self._disable()

    def _elsewhere(self) -> bool:
        """Whether the profile belongs to another thread than the current one."""
        return _PER_THREAD and threading.current_thread() is not self._thread

    def _disable(self) -> None:
        """End the profile, and keep a profile function that the script has set in the meantime."""
        active: Any = sys.getprofile()
        self._profile.disable()
        if active is not None and active is not self._profile:
            sys.setprofile(active)


class _EnableGuard:
    """Calls a function before the script enables a cProfile.Profile, as Python 3.12 allows only one."""

    def __init__(self) -> None:
        self._replaced: Any = None

    def put_on(self, before: Callable[[], None]) -> None:
        plain = cProfile.Profile.enable

        def enable(profile: Any, *args: Any, **kwargs: Any) -> Any:
            before()
            return plain(profile, *args, **kwargs)

        self._replaced = enable
        profile_class: Any = cProfile.Profile
        profile_class.enable = enable

    def take_off(self) -> None:
        if self._replaced is not None and cProfile.Profile.__dict__.get("enable") is self._replaced:
            del cProfile.Profile.enable  # the method of the base class is visible again
        self._replaced = None


def _active_profiler() -> str:
    """Name of the active profiler of Python functions; "" if there is none."""
    function = sys.getprofile()
    if function is not None:
        return f"sys.setprofile: {type(function).__name__}"
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is not None:
        return str(monitoring.get_tool(monitoring.PROFILER_ID) or "")
    return ""
