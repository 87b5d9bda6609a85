"""PhaseSignals: functions of libraries that report the start and end of a phase to the stopwatches of hooks.

While at least one hook measures the times of steps, some functions are replaced by functions that call the
original ones: functions that return the next batch, run a backward, or save a checkpoint. The last hook that
is closed restores the original functions. If another program has replaced such a function in between, the
replacement stays in the chain and has no effect. Several lists can contain the same function, which is
replaced once. Pauses of Python's garbage collector come from gc.callbacks.

Threads: any; a stopwatch ignores calls in threads other than the training thread. A forked child, such as a
worker of a DataLoader, reports nothing.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tdcore.hooks.recorder import Recorder
from tdcore.hooks.step_timer import BACKWARD, COMPILE, COMPUTE, REST, NullStepTimer

__all__ = [
    "PhaseSignals",
    "Signal",
    "active_timers",
    "begin_compilation",
    "cancel_wait",
    "end_compilation",
    "time_phases",
]


class Signal(NamedTuple):
    """A function whose calls are a phase of a step.

    Attributes:
        module: Name of its module. The function is replaced if the module is imported.
        path: Its name in the module, with its class: "DataLoader.__iter__".
        phase: The phase.
        is_epoch: It returns the batches of one epoch. Its StopIteration is the end of the epoch, and no wait.
        is_part: It ends the work of another function of this phase, and is not counted again.
    """

    module: str
    path: str
    phase: int
    is_epoch: bool = False
    is_part: bool = False


class _Replaced(NamedTuple):
    """A function that was replaced. lists: The PhaseSignals that need it."""

    owner: Any
    name: str
    original: Any
    replacement: Any
    lists: list[PhaseSignals]


_active: list[Any] = []  # stopwatches of open hooks
_installed: dict[Signal, _Replaced] = {}  # under _lock
_all_signals: weakref.WeakSet[PhaseSignals] = weakref.WeakSet()
_ended: list[PhaseSignals] = []  # a user of each has ended, and _settle() has not handled it yet
# No function waits for the lock while the garbage collector runs: the collector may run in the thread that
# holds the lock, and delete a hook.
_lock = threading.Lock()


def active_timers() -> list[Any]:
    """The stopwatches of open hooks. The caller does not change the list."""
    return _active


class PhaseSignals:
    """The replaced functions of this process, for one framework's list of signals."""

    def __init__(
        self, signals: Iterable[Signal], unseen: Callable[[Any], object] = lambda replacement: None
    ) -> None:
        """signals: The functions. unseen: Hides a replacement from the framework's compiler."""
        self._signals = tuple(signals)
        self._unseen = unseen
        self._users = 0  # under _lock
        _all_signals.add(self)

    def install(self, timer: Any) -> None:
        """Report phases to this stopwatch, until remove()."""
        with _lock:
            self._users += 1
            _active.append(timer)
            if _on_gc not in gc.callbacks:
                gc.callbacks.append(_on_gc)
            self._replace()
        _settle()

    def look_again(self) -> None:
        """Replace functions of modules that were imported since install()."""
        with _lock:
            if self._users:
                self._replace()
        _settle()

    def replace_timer(self, timer: Any, by: Any) -> None:
        """Report phases to another stopwatch, whose attribute `native` is this one."""
        with _lock:
            if timer in _active:
                _active[_active.index(timer)] = by
        _settle()

    def remove(self, timer: Any) -> Any:
        """Stop reports to this stopwatch, or to the stopwatch that has replaced it. Never waits.

        A further call has no effect.

        Returns:
            The stopwatch that got the reports.
        """
        found = next((each for each in _active if getattr(each, "native", each) is timer), None)
        if found is None:
            return timer
        try:
            _active.remove(found)
        except ValueError:  # another thread has removed it
            return found
        _ended.append(self)
        _settle()
        return found

    def _replace(self) -> None:
        for signal in self._signals:
            installed = _installed.get(signal)
            if installed is None and signal.module in sys.modules:
                installed = self._replaced(signal)
            if installed is not None and self not in installed.lists:
                installed.lists.append(self)
                self._unseen(installed.replacement)

    def _replaced(self, signal: Signal) -> _Replaced | None:
        """Replace one function. Returns None if another version of the library does not have it."""
        owner: Any = sys.modules[signal.module]
        *outer, name = signal.path.split(".")
        for each in outer:
            owner = getattr(owner, each, None)
        original = None if owner is None else vars(owner).get(name)
        if not callable(original):
            return None
        # A module can import a function of another module.
        known = (each.replacement for each in _installed.values() if each.original is original)
        replacement = next(known, None)
        if replacement is None:
            replacement = functools.wraps(original)(_timed(original, signal))
        setattr(owner, name, replacement)
        _installed[signal] = _Replaced(owner, name, original, replacement, [])
        return _installed[signal]

    def _restore(self) -> None:
        for signal, each in list(_installed.items()):
            if self in each.lists:
                each.lists.remove(self)
                if not each.lists:
                    del _installed[signal]
                    if vars(each.owner).get(each.name) is each.replacement:
                        setattr(each.owner, each.name, each.original)


def _settle() -> None:
    """Restore the functions of lists without a user. If the lock is held, its holder does this afterwards."""
    while _ended and _lock.acquire(blocking=False):
        try:
            while _ended:
                signals = _ended.pop()
                signals._users -= 1
                if signals._users == 0:
                    signals._restore()
            if not _active and _on_gc in gc.callbacks:
                gc.callbacks.remove(_on_gc)
        finally:
            _lock.release()


def time_phases(hook: Any, timer: Any, recorder: Recorder, signals: PhaseSignals) -> Callable[[], object]:
    """Report phases to the stopwatch of a hook. Returns a function that ends the last step and the reports.

    The function is called when the hook is deleted, if it was not called before.
    """
    if isinstance(timer, NullStepTimer):
        return lambda: None
    signals.install(timer)
    return weakref.finalize(hook, _end, signals, timer, recorder)


def _end(signals: PhaseSignals, timer: Any, recorder: Recorder) -> None:
    signals.remove(timer).finish(recorder.spent_ns)


def _timed(original: Callable[..., Any], signal: Signal) -> Callable[..., Any]:
    """A function that calls the original one, and reports its time as a phase.

    A step calls it several times, so each kind of signal is a branch here and not a further function.
    """
    phase = signal.phase
    first = REST if signal.is_part else phase  # leave() then begins the phase without counting it

    def timed(*arguments: Any, **options: Any) -> Any:
        interrupted = []
        for timer in _active:
            interrupted.append((timer, timer.enter(first)))
            if first != phase:
                timer.leave(phase)
        try:
            return original(*arguments, **options)
        except StopIteration:
            if signal.is_epoch:
                for timer, _ in interrupted:
                    cancel_wait(timer)
            raise
        finally:
            # torch.autograd.grad() only interrupts the phase of its caller.
            is_backward = phase == BACKWARD and options.get("accumulate_grad", True)
            for timer, before in interrupted:
                (timer.end_backward if is_backward else timer.leave)(before)

    return timed


def cancel_wait(timer: Any) -> None:
    """Add the last reported wait for data to the current step, because there was no further batch."""
    timer.enter(COMPUTE)  # a wait is the start of the next step unless the current one continues
    timer.enter(REST)


def _on_gc(phase: str, info: dict[str, int]) -> None:
    for timer in _active:
        timer.gc_callback(phase, info)


def begin_compilation(*arguments: object) -> None:
    """Report the start of a compilation to all stopwatches."""
    _compiling.extend((timer, timer.enter(COMPILE)) for timer in _active)


def end_compilation(*arguments: object) -> None:
    """Report the end of the compilation."""
    while _compiling:
        timer, before = _compiling.pop()
        timer.leave(before)


_compiling: list[tuple[Any, int]] = []  # stopwatches, and the phases that the compilation has interrupted


def _forget_in_child() -> None:
    """Restore all functions: the stopwatches belong to the parent. Another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()
    _active.clear()
    _ended.clear()
    _compiling.clear()
    for signals in list(_all_signals):
        signals._users = 0
        signals._restore()
    if _on_gc in gc.callbacks:
        gc.callbacks.remove(_on_gc)


os.register_at_fork(after_in_child=_forget_in_child)
