"""ProfileWindows: starts and ends the profiles of a hook. Independent of the framework.

A window begins when a training step begins, and ends when a later training step begins. Steps before a window
cost nothing, because the clock calls the object at its first step. While a window is open, or waits for a
time, the object replaces the hook's method `_begin_step`. An error never reaches the training: the profile
gets the state "failed" with the reason.

Threads: the training thread. Another thread may call finish(), and start a profiler in a window: the window
is then ending, until the training thread stops its recorders at the next step, call of a module, or close().
"""

from __future__ import annotations

import shutil
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.config.profile_window import ProfileWindow
from tdcore.config.profiler_config import ProfilerConfig
from tdcore.format.profile_request import ProfileRequest
from tdcore.hooks.profile_recorders import CProfileRecorder, Recorder
from tdcore.hooks.profile_window import (
    DueWindow,
    OpenWindow,
    failure_text,
    halt,
    is_over,
    new_folder,
    succeeds,
)
from tdcore.modes import ModeKeys
from tdcore.session import Session

if TYPE_CHECKING:
    from tdcore.hooks.base import BaseHook

__all__ = ["ProfileWindows", "ending_profiles"]

_TRAINING = (ModeKeys.TRAIN.value, ModeKeys.GLOBAL.value)

_ENDING: list[ProfileWindows] = []  # objects with ending windows; their hooks may be deleted


def ending_profiles() -> list[ProfileWindows]:
    """The objects with windows that wait for their thread, also of deleted hooks."""
    return list(_ENDING)


class ProfileWindows:
    """The due and open windows of a hook.

    Args:
        hook: The hook. The object does not keep it alive.
        session: Session of the hook; None: nothing is recorded.
        warn: Logs a warning once.
    """

    def __init__(self, hook: BaseHook, session: Session | None, warn: Callable[[str], None]) -> None:
        self._hook = weakref.ref(hook)
        self._store = session.profiles if session is not None else None
        self._worker = session.worker if session is not None else ""
        self._framework = hook.framework
        self._warn = warn
        self._due: list[DueWindow] = []
        self._open: list[OpenWindow] = []

    def configure(self, config: ProfilerConfig) -> None:
        """Record the windows of a configuration. Log a warning about settings without an effect."""
        without = config.without_effect()
        if without:
            self._warn(f"these settings of the profiler configuration have no effect: {', '.join(without)}")
        windows = config.windows()
        if self._store is not None and windows:
            self._due += map(DueWindow, windows)
            self._arm()

    def request(self, number: int, request: ProfileRequest) -> dict[str, Any]:
        """Record the next steps. Return the note about the request."""
        if request.workers and self._worker not in request.workers:
            return {"kind": "profile", "skipped": f"it is for {', '.join(request.workers)}"}
        window = ProfileWindow(operators=request.operators, python=request.python, num_steps=request.steps)
        self._due.append(DueWindow(window, number, request.by, request.reason))
        self._arm()
        return {
            "kind": "profile",
            "steps": request.steps,
            "operators": request.operators,
            "python": request.python,
            "by": request.by,
            "reason": request.reason,
        }

    def finish(self, reason: str) -> None:
        """End open windows early and keep their records. Report windows that are still due as failed."""
        for window in list(self._open):
            early = window.steps is None or window.begun_steps < window.steps
            self._end(window, reason if early else "")
        for due in self._due:
            if due.request is not None or due.window.start_time is None:
                self._fail(due, f"the window did not begin: {reason}")
        self._due.clear()
        self._arm()

    def forget_in_child(self) -> None:
        """Stop in a forked child: the profile belongs to the parent process."""
        for window in self._open:
            for recorder in window.recorders:
                recorder.forget()
        self._open.clear()
        if self in _ENDING:
            _ENDING.remove(self)
        self._due.clear()

    def wait(self, seconds: float) -> None:
        """Wait until all profiles are stored. Log a warning after a timeout."""
        if self._store is not None and not self._store.wait(seconds):
            self._warn(f"profiles are still being stored after {seconds:.0f} s; another process continues")

    # Steps ------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Have the hook call this object at the next step that matters."""
        hook = self._hook()
        if hook is None:
            return
        waiting = [due.window for due in self._due]
        if self._open or any(each.start_time is not None for each in waiting):
            self._watch(hook)
        else:
            vars(hook).pop("_begin_step", None)
        steps = [each.start_step or 0 for each in waiting if each.start_time is None]
        hook._clock.on_alarm = self._on_alarm
        hook._clock.set_alarm(min(steps, default=None))

    def _watch(self, hook: BaseHook) -> None:
        """Call _at_step() at each beginning of a step."""
        if "_begin_step" in vars(hook):
            return
        reference = self._hook
        plain = type(hook)._begin_step

        def begin_step(mode: int) -> Any:
            hook = reference()
            assert hook is not None, "a method of the hook runs"
            hook._guarded("profile", self._at_step, mode)
            return plain(hook, mode)

        vars(hook)["_begin_step"] = begin_step

    def _on_alarm(self, mode: int, step: int) -> None:
        hook = self._hook()
        if hook is not None:
            hook._guarded("profile", self._begin_due, mode, step)

    def _at_step(self, mode: int) -> None:
        """End windows before a step of the mode begins, and begin windows that waited for a time."""
        hook = self._hook()
        if hook is None or mode not in _TRAINING:
            return
        for window in list(self._open):
            over, reason = is_over(window)
            if over:
                self._end(window, reason)
            else:
                window.begun_steps += 1
        if any(due.window.start_time is not None for due in self._due):
            self._begin_due(mode, hook._clock.mode_steps[mode] + 1)
        if not self._open:
            self._arm()

    def _begin_due(self, mode: int, step: int) -> None:
        """Begin the windows whose first step this is."""
        for due in list(self._due):
            start_step, start_time = due.window.start_step, due.window.start_time
            if start_time is not None:
                begins = time.time() >= start_time
            else:
                begins = start_step is None or step >= start_step
            if begins:
                self._due.remove(due)
                self._begin(due, mode, step)
        self._arm()

    def _begin(self, due: DueWindow, mode: int, step: int) -> None:
        window = due.window
        steps = window.num_steps
        if window.start_step is not None and steps is not None and step > window.start_step:
            steps = window.start_step + steps - step  # the training continued after the first steps
            if steps < 1:
                self._fail(due, f"the training began at step {step}, after these steps")
                return
        messages: list[str] = []
        before = time.perf_counter_ns()
        started = [
            recorder
            for recorder in self._recorders(window, messages)
            if succeeds(messages, recorder, lambda each: each.start(self._interrupt))
        ]
        if not started:
            self._fail(due, "; ".join(messages))
            return
        for message in messages:
            self._warn(f"profile: {message}")
        opened = OpenWindow(due, started, mode, step, steps, time.time_ns(), messages)
        opened.start_ns = time.perf_counter_ns() - before
        self._open.append(opened)

    def _recorders(self, window: ProfileWindow, messages: list[str]) -> list[Recorder]:
        """New recorders of a window; Python functions last, so that they do not contain the start."""
        hook = self._hook()
        found: list[Recorder] = []
        if window.operators and hook is not None:
            operators = hook._operator_recorder()
            if operators is None:
                messages.append(
                    f"operators were not recorded: this is not supported by the framework {self._framework}; "
                    "request Python functions instead (--python --no-operators)"
                )
            else:
                found.append(operators)
        if window.python:
            found.append(CProfileRecorder(window.timer))
        return found

    def _interrupt(self, reason: str) -> None:
        """End the open windows, because the script starts a profiler of its own."""
        for window in list(self._open):
            self._end_guarded(window, reason)

    # The end of a window ----------------------------------------------------------------------------------

    def _end(self, window: OpenWindow, reason: str = "") -> None:
        """Stop the recorders and pass their files on. reason: why the window ends early.

        In a thread other than the training thread, the window only becomes an ending window.
        """
        if window.ending is not None:
            reason = window.ending
        if window not in self._open:
            return
        if not halt(window):
            self._end_later(window, reason)
            return
        self._store_window(window, reason)

    def _end_later(self, window: OpenWindow, reason: str) -> None:
        """Have the training thread end the window."""
        if window.ending is not None:
            return
        window.ending = reason
        if self not in _ENDING:
            _ENDING.append(self)
        # The first recorder is that of operators, if the window has operators.
        window.recorders[0].call_later(lambda: self._end_guarded(window, reason))

    def _end_guarded(self, window: OpenWindow, reason: str) -> None:
        """End the window, also of a deleted hook. Never raises an Exception."""
        hook = self._hook()
        if hook is not None:
            hook._guarded("profile", self._end, window, reason)
            return
        try:
            self._end(window, reason)
        except Exception as error:
            self._warn(f"profile: {failure_text(error)}")

    def end_at_exit(self) -> None:
        """End the windows when the program ends. Operators of a thread that still runs are discarded."""
        for window in list(self._open):
            self._end(window)
            if window in self._open:
                self._store_window(window, window.ending or "")
                for recorder in window.recorders:
                    recorder.forget()

    def _store_window(self, window: OpenWindow, reason: str) -> None:
        """Pass the files of the recorders on."""
        try:
            self._open.remove(window)
        except ValueError:  # another thread has stored the window
            return
        if not self._open and self in _ENDING:
            _ENDING.remove(self)
        end_ns, before = time.time_ns(), time.perf_counter_ns()
        folder, messages = new_folder(), window.messages
        if isinstance(folder, OSError):
            raise folder
        # A list, so that all recorders write.
        kept = [
            succeeds(messages, recorder, lambda each: each.write(folder))
            for recorder in reversed(window.recorders)
            if recorder not in window.failed
        ]
        stop_ns = window.stop_ns + time.perf_counter_ns() - before
        if not any(kept):
            self._fail(window.due, "; ".join(messages), folder)
            return
        if reason:
            self._warn(f"profile: the window ended early, after {window.begun_steps} steps: {reason}")
        last = window.first_step + max(window.begun_steps - 1, 0)
        self._pass_on(
            window.due,
            folder,
            state="partial" if reason else "complete",
            reason=reason,
            mode=ModeKeys(window.mode).name,
            first_step=window.first_step,
            last_step=last,
            begin_ns=window.begin_ns,
            end_ns=end_ns,
            messages=messages,
            cost_ns={"start": window.start_ns, "stop": stop_ns},
        )

    def _fail(self, due: DueWindow, reason: str, folder: Path | OSError | None = None) -> None:
        """Report a profile without records."""
        self._warn(f"profile: {reason}")
        now = time.time_ns()
        folder = folder or new_folder()
        if isinstance(folder, OSError):
            raise folder
        self._pass_on(
            due,
            folder,
            state="failed",
            reason=reason,
            begin_ns=now,
            end_ns=now,
            messages=[],
        )

    def _pass_on(self, due: DueWindow, folder: Path, **fields: Any) -> None:
        assert self._store is not None, "windows are recorded with a session only"
        window = due.window
        document = {
            "number": self._store.next_number(),
            "framework": self._framework,
            "request": due.request,
            "by": due.by,
            "requested_reason": due.reason,
            "operators": window.operators,
            "python": window.python,
            "steps": window.num_steps,
            **fields,
        }
        try:
            self._store.store(folder, document)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
