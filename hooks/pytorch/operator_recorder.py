"""OperatorRecorder: records the operators of a window with torch.profiler.

A second torch.profiler in a thread would end the process, because PyTorch does not check for it. So the
recorder does not start while another one is active. While the recorder runs, it replaces the functions that
PyTorch's profilers call at their start: a profiler of the script then ends the window first.

Threads: the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tdcore.hooks.profile_recorders import ProfileError
from tdcore.hooks.pytorch.model.introspection import live_instances
from tdcore.session.profile_writer import TRACE_FILE

__all__ = ["OperatorRecorder"]

_STARTS = ("_prepare_profiler", "_enable_profiler")  # functions in torch.autograd.profiler


class OperatorRecorder:
    """Recorder of the operators of the current thread and of its backward passes, and of the GPUs."""

    part = "operators"

    def __init__(self) -> None:
        self._profile: Any = None
        self._thread = 0
        self._plain: dict[str, Any] = {}
        self._replaced: dict[str, Any] = {}

    def start(self, interrupted: Callable[[str], None]) -> None:
        """See Recorder."""
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled() or _is_prepared(profile):
            raise ProfileError("another torch.profiler is active")
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        profiler.start()
        self._profile = profiler
        self._thread = threading.get_ident()
        self._guard(lambda: interrupted("the script started torch.profiler"))

    def stop(self, folder: Path | None) -> None:
        """See Recorder."""
        self._take_guard_off()
        if threading.get_ident() != self._thread:
            raise ProfileError("torch.profiler cannot be stopped by another thread than the training's")
        profiler, self._profile = self._profile, None
        profiler.stop()
        if folder is not None:
            profiler.export_chrome_trace(str(folder / TRACE_FILE))

    def forget(self) -> None:
        """See Recorder. The profiler itself stays as it is: its threads do not exist in the child."""
        self._take_guard_off()

    def _guard(self, before: Callable[[], None]) -> None:
        module: Any = torch.autograd.profiler
        for name in _STARTS:
            plain = getattr(module, name, None)
            if plain is None:
                continue
            self._plain[name] = plain
            self._replaced[name] = _after(before, plain)
            setattr(module, name, self._replaced[name])

    def _take_guard_off(self) -> None:
        module: Any = torch.autograd.profiler
        for name, replaced in self._replaced.items():
            if getattr(module, name) is replaced:
                setattr(module, name, self._plain[name])
        self._plain.clear()
        self._replaced.clear()


def _is_prepared(kind: type) -> bool:
    """Whether a torch.profiler of the script is in the steps before its records, for which it is prepared."""
    from torch.profiler import ProfilerAction

    return any(each.current_action is ProfilerAction.WARMUP for each in live_instances(kind))


def _after(before: Callable[[], None], plain: Callable[..., Any]) -> Callable[..., Any]:
    def start(*args: Any, **kwargs: Any) -> Any:
        before()
        return plain(*args, **kwargs)

    return start
