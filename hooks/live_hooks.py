"""All hooks of the process: switched off in a forked child, and closed at the end of the program.

base.py registers both functions, after the modules of the session have registered their own. Threads: any.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from typing import TYPE_CHECKING

from tdcore.hooks.profile_windows import ending_profiles

if TYPE_CHECKING:
    from tdcore.hooks.base import BaseHook

__all__ = ["LIVE_HOOKS", "close_hooks_at_exit", "disable_hooks_in_child"]

LIVE_HOOKS: weakref.WeakSet[BaseHook] = weakref.WeakSet()
_LONGEST_ERROR = 500  # characters
_DEFAULT_SECONDS = 30.0  # to wait for the profile of a deleted hook


def disable_hooks_in_child() -> None:
    """Stop all hooks in a forked child: the ring belongs to the parent."""
    for hook in list(LIVE_HOOKS):
        hook._off = True
        hook._profiles.forget_in_child()
    for profiles in ending_profiles():
        profiles.forget_in_child()


def close_hooks_at_exit() -> None:
    """Capture the rest of the last step and write the newest collections, before the sessions close."""
    error = (
        None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    )  # the exception that ended the program
    for hook in list(LIVE_HOOKS):
        if error is not None:
            text = str(error)  # "" for KeyboardInterrupt
            text = f"{type(error).__name__}: {text}" if text else type(error).__name__
            hook._notes["exception"] = text[:_LONGEST_ERROR]
        hook._end_capture()
    profiles = {hook._profiles: hook._close_timeout.total_seconds() for hook in list(LIVE_HOOKS)}
    for each in ending_profiles():
        with contextlib.suppress(Exception):
            each.end_at_exit()
        profiles.setdefault(each, _DEFAULT_SECONDS)
    begin = time.monotonic()  # all profiles are stored at the same time
    for each, seconds in profiles.items():
        each.wait(max(begin + seconds - time.monotonic(), 0.0))
