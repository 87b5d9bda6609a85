"""OperatorRecorder: records the operators of a window with torch.profiler.

A second torch.profiler in a thread would end the process, because PyTorch does not check for it. So the
recorder does not start while another recorder is active. While the recorder runs, it replaces the functions
that PyTorch's profilers call at their start: a profiler of the script then ends the window first.

Threads: start() in the training thread; halt() returns False in another thread. write() by any thread.
"""

from __future__ import annotations

import contextlib
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
        self._stopped = False
        self._handle: Any = None  # of the function of call_later()
        self._replaced_session = False  # by a profiler that the script started in another thread
        self._thread = threading.current_thread()
        self._plain: dict[str, Any] = {}
        self._replaced: dict[str, Any] = {}

    def start(self, interrupted: Callable[[str], None]) -> None:
        """See Recorder."""
        from torch.profiler import ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled() or _is_active_elsewhere() or _is_prepared(profile):
            raise ProfileError("another torch.profiler is active")
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        profiler.start()
        self._profile = profiler

        def interrupt() -> None:
            if threading.current_thread() is not self._thread:
                self._replaced_session = True
            interrupted("the script started torch.profiler")

        self._guard(interrupt)

    def halt(self) -> bool:
        """See Recorder."""
        if threading.current_thread() is not self._thread:
            if self._thread.is_alive():
                return False
            self._take_guard_off()
            self._stopped = True
            _note_end()
            raise ProfileError("the thread that started torch.profiler has ended")
        if self._stopped:
            return True
        if self._replaced_session:
            if _is_active_elsewhere():
                return False
            self._discard()
            raise ProfileError("the script started torch.profiler in another thread")
        self._take_guard_off()
        self._stopped = True
        self._profile.stop()
        return True

    def call_later(self, call: Callable[[], None]) -> None:
        """See Recorder. The thread calls the function before its next call of a module.

        A backward pass restores the state of the profiler at its end, so the call waits for the end.
        """
        from torch.nn.modules.module import register_module_forward_pre_hook

        def before_forward(module: Any, arguments: Any) -> None:
            if torch.compiler.is_compiling():
                return
            if threading.current_thread() is not self._thread:
                if not self._thread.is_alive():
                    self._take_guard_off()
                return
            if not self._stopped and torch._C._current_graph_task_id() == -1:
                call()

        self._handle = register_module_forward_pre_hook(before_forward)

    def write(self, folder: Path) -> None:
        """See Recorder. A part of a file is removed after an exception."""
        if not self._stopped:
            raise ProfileError("torch.profiler was not stopped by the thread that started it")
        path = folder / TRACE_FILE
        try:
            self._profile.export_chrome_trace(str(path))
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    def forget(self) -> None:
        """See Recorder. The child has a copy of the training thread, in which the profiler is on."""
        if threading.current_thread() is self._thread and not self._stopped:
            with contextlib.suppress(Exception):
                self._discard()
        self._take_guard_off()

    def _discard(self) -> None:
        """Stop without the records.

        PyTorch has one session for all threads. The start of a profiler in another thread ends the session of
        this recorder, and PyTorch crashes when it stops a profiler without a session. So a new session is
        prepared first.
        """
        self._take_guard_off()
        self._stopped = True
        if self._replaced_session:
            module: Any = torch.autograd.profiler
            own = self._profile.profiler
            module._prepare_profiler(own.config(), own.kineto_activities)
        torch._C._autograd._disable_profiler()
        _note_end()

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
        if self._handle is not None:
            self._handle.remove()
        module: Any = torch.autograd.profiler
        for name, replaced in self._replaced.items():
            if getattr(module, name) is replaced:
                setattr(module, name, self._plain[name])
        self._plain.clear()
        self._replaced.clear()


def _note_end() -> None:
    """Have PyTorch's Python functions note that no profiler is active."""
    with contextlib.suppress(Exception):
        torch.autograd.profiler._run_on_profiler_stop()


def _is_active_elsewhere() -> bool:
    """Whether a torch.profiler of any thread is active, apart from one whose session was replaced."""
    return bool(getattr(torch.autograd.profiler, "_is_profiler_enabled", False))


def _is_prepared(kind: type) -> bool:
    """Whether a torch.profiler of the script is in the steps before its records, for which it is prepared."""
    from torch.profiler import ProfilerAction

    return any(each.current_action is ProfilerAction.WARMUP for each in live_instances(kind))


def _after(before: Callable[[], None], plain: Callable[..., Any]) -> Callable[..., Any]:
    def start(*args: Any, **kwargs: Any) -> Any:
        before()
        return plain(*args, **kwargs)

    return start
