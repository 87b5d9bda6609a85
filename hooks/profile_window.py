"""One window of a profile: its state, and the functions that stop its recorders.

Threads: see profile_windows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tdcore.config.profile_window import ProfileWindow
from tdcore.hooks.profile_recorders import ProfileError, Recorder

__all__ = ["DueWindow", "OpenWindow", "failure_text", "halt", "is_over", "new_folder", "succeeds"]

_MAX_OPEN_SECONDS = 3600  # a window is ended at the next step after this time


@dataclass(slots=True, eq=False)
class DueWindow:
    """A window that has not begun. request: number of its request, None for the configuration."""

    window: ProfileWindow
    request: int | None = None
    by: str = ""
    reason: str = ""


@dataclass(slots=True, eq=False)
class OpenWindow:
    """A window that has begun."""

    due: DueWindow
    recorders: list[Recorder]
    mode: int
    first_step: int
    steps: int | None
    begin_ns: int
    messages: list[str]
    begun_steps: int = 1  # training steps that have begun
    start_ns: int = 0  # time that the start of the recorders took
    stop_ns: int = 0  # time that the stop of the recorders took
    ending: str | None = None  # the training thread ends the window as soon as it can; the reason
    failed: list[Recorder] = field(default_factory=list)  # recorders whose stop raised an exception


def halt(window: OpenWindow) -> bool:
    """Stop the recorders of the window. Return False if only the training thread can stop them."""
    before, stopped = time.perf_counter_ns(), True
    for recorder in reversed(window.recorders):
        if recorder in window.failed:
            continue
        try:
            stopped = recorder.halt() and stopped
        except Exception as error:
            window.messages.append(f"{recorder.part} were not recorded: {failure_text(error)}")
            window.failed.append(recorder)
    window.stop_ns += time.perf_counter_ns() - before
    return stopped


def new_folder() -> Path | OSError:
    """A new temporary folder for the files of a profile; the error if there is none."""
    try:
        return Path(tempfile.mkdtemp(prefix="tdcore-profile-"))
    except OSError as error:
        return error


def is_over(window: OpenWindow) -> tuple[bool, str]:
    """Whether the window ends before the next training step begins, and the reason if this is early."""
    if window.ending is not None:
        return True, window.ending
    if window.steps is not None and window.begun_steps >= window.steps:
        return True, ""
    passed = time.time() - window.begin_ns / 1e9
    if window.due.window.duration is not None:
        return passed >= window.due.window.duration, ""
    return passed >= _MAX_OPEN_SECONDS, f"it was open for {passed:.0f} s"


def succeeds(messages: list[str], recorder: Recorder, call: Callable[[Recorder], None]) -> bool:
    """Call the function with the recorder. After an exception, add a message and return False."""
    try:
        call(recorder)
    except Exception as error:
        messages.append(f"{recorder.part} were not recorded: {failure_text(error)}")
        return False
    return True


def failure_text(error: Exception) -> str:
    """The reason of a failure, for the document of the profile."""
    return str(error) if isinstance(error, ProfileError) else f"{type(error).__name__}: {error}"[:1000]
