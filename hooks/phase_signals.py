"""PhaseSignals: functions of libraries that report the start and end of a phase to the stopwatches of hooks.

While at least one hook measures the times of steps, some functions are replaced by functions that call the
original ones: those that return the next batch, run a backward, or save a checkpoint. The last hook that is
closed restores them. If another program has replaced such a function in between, the replacement stays in the
chain and has no effect. Pauses of Python's garbage collector come from gc.callbacks.

Threads: any; a stopwatch ignores the calls of other threads than the training's. A forked child, such as a
worker of a DataLoader, reports nothing.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from tdcore.hooks.step_timer import BACKWARD, COMPILE

__all__ = ["PhaseSignals", "Signal", "begin_compilation", "end_compilation"]


class Signal(NamedTuple):
    """A function that is one phase.

    Attributes:
        module: Name of its module. The function is replaced if the module is imported.
        path: Its name in the module, with its class: "DataLoader.__iter__".
        phase: The phase.
    """

    module: str
    path: str
    phase: int


_active: list[Any] = []  # stopwatches of open hooks


class PhaseSignals:
    """The replaced functions of this process, for one framework's list of signals."""

    def __init__(self, signals: Iterable[Signal], unseen: Callable[[Any], object]) -> None:
        """signals: The functions. unseen: Hides a replacement from the framework's compiler."""
        self._signals = tuple(signals)
        self._unseen = unseen
        self._lock = threading.Lock()
        self._users = 0
        self._installed: dict[Signal, tuple[Any, str, Any, Any]] = {}  # owner, name, original, replacement

    def install(self, timer: Any) -> None:
        """Report phases to this stopwatch, until remove()."""
        with self._lock:
            self._users += 1
            _active.append(timer)
            if len(_active) == 1:
                gc.callbacks.append(_on_gc)
            self._replace()

    def look_again(self) -> None:
        """Replace functions of modules that were imported since install()."""
        with self._lock:
            if self._users:
                self._replace()

    def replace_timer(self, timer: Any, by: Any) -> None:
        """Report phases to another stopwatch, whose attribute `native` is this one."""
        with self._lock:
            if timer in _active:
                _active[_active.index(timer)] = by

    def remove(self, timer: Any) -> Any:
        """Report no more phases to this stopwatch, or to the one that has replaced it.

        A further call has no effect.

        Returns:
            The stopwatch that got the reports.
        """
        with self._lock:
            found = next((each for each in _active if getattr(each, "native", each) is timer), None)
            if found is None:
                return timer
            _active.remove(found)
            if not _active and _on_gc in gc.callbacks:
                gc.callbacks.remove(_on_gc)
            self._users -= 1
            if self._users == 0:
                self._restore()
        return found

    def _replace(self) -> None:
        known = {id(original): replacement for _, _, original, replacement in self._installed.values()}
        for signal in self._signals:
            if signal in self._installed or signal.module not in sys.modules:
                continue
            owner: Any = sys.modules[signal.module]
            *outer, name = signal.path.split(".")
            for each in outer:
                owner = getattr(owner, each, None)
            original = None if owner is None else vars(owner).get(name)
            if not callable(original):
                continue  # another version of the library
            replacement = known.get(id(original))  # a module can import a function of another one
            if replacement is None:
                make = _backward if signal.phase == BACKWARD else _phase
                replacement = functools.wraps(original)(make(original, signal.phase))
                known[id(original)] = replacement
                self._unseen(replacement)
            setattr(owner, name, replacement)
            self._installed[signal] = (owner, name, original, replacement)

    def _restore(self) -> None:
        for owner, name, original, replacement in self._installed.values():
            if vars(owner).get(name) is replacement:
                setattr(owner, name, original)
        self._installed.clear()


def _phase(original: Callable[..., Any], phase: int) -> Callable[..., Any]:
    """A function that reports its time as a phase."""

    def timed(*arguments: Any, **options: Any) -> Any:
        if len(_active) != 1:
            return _timed_by_all(phase, original, arguments, options)
        timer = _active[0]
        interrupted = timer.enter(phase)
        try:
            return original(*arguments, **options)
        finally:
            timer.leave(interrupted)

    return timed


def _backward(original: Callable[..., Any], phase: int) -> Callable[..., Any]:
    """The same for autograd's backward. torch.autograd.grad() only interrupts the phase of its caller."""

    def timed(*arguments: Any, **options: Any) -> Any:
        if len(_active) != 1:
            return _timed_by_all(phase, original, arguments, options)
        timer = _active[0]
        interrupted = timer.enter(phase)
        try:
            return original(*arguments, **options)
        finally:
            if options.get("accumulate_grad", True):
                timer.end_backward(interrupted)
            else:
                timer.leave(interrupted)

    return timed


def _timed_by_all(
    phase: int, original: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """Call a function, and report its time to all stopwatches."""
    interrupted = [(timer, timer.enter(phase)) for timer in _active]
    try:
        return original(*arguments, **options)
    finally:
        returns = phase == BACKWARD and options.get("accumulate_grad", True)
        for timer, before in interrupted:
            (timer.end_backward if returns else timer.leave)(before)


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
    _active.clear()
    _compiling.clear()


os.register_at_fork(after_in_child=_forget_in_child)
