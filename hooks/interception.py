"""Interception: functions of a framework report to the collector of their thread while a saved step runs.

Functions of classes are replaced for all threads, and call the original function in threads without a
collector. The replacement ends when the last saved step that runs has ended, so nothing of it remains between
saved steps, in models, or in saved files. Independent of the framework. Threads: any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["Interception", "Patch", "collecting", "current_collector", "instance_attribute"]

# (object, name of its attribute, function that takes the attribute's value and returns its replacement)
Patch = tuple[Any, str, Callable[[Any], Any]]
_MISSING = object()


class _OfThread(threading.local):
    collector: Any = None


_of_thread = _OfThread()


def current_collector() -> Any:
    """The collector of the thread, or None."""
    return _of_thread.collector


@contextmanager
def collecting(collector: Any) -> Iterator[None]:
    """Make this the collector of the thread within the block. None: there is no collector in the block."""
    before, _of_thread.collector = _of_thread.collector, collector
    try:
        yield
    finally:
        _of_thread.collector = before


class Interception:
    """Functions that are replaced while at least one user needs the replacement."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._installed: ExitStack | None = None

    def install(self, patches: Iterable[Patch]) -> None:
        """Replace functions, if this is the first user. Each call is followed by a remove()."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                with ExitStack() as stack:
                    for patch in patches:
                        stack.enter_context(_replaced(patch))
                    self._installed = stack.pop_all()

    def remove(self) -> None:
        """Restore the functions, if this was the last user."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._installed is not None:
                self._installed.close()
                self._installed = None

    @contextmanager
    def installed(self, patches: Iterable[Patch]) -> Iterator[None]:
        """Replace functions within the block."""
        self.install(patches)
        try:
            yield
        finally:
            self.remove()


@contextmanager
def instance_attribute(target: Any, name: str, value: Any) -> Iterator[None]:
    """Give one object an attribute of its own within the block, past a framework's tracking of attributes."""
    own = vars(target)
    before = own.get(name, _MISSING)
    own[name] = value
    try:
        yield
    finally:
        if before is _MISSING:
            own.pop(name, None)
        else:
            own[name] = before


@contextmanager
def _replaced(patch: Patch) -> Iterator[None]:
    owner, name, make = patch
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
