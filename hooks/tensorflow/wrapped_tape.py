"""wrapped(): gives one tape a class that calls a hook when it starts, stops and computes gradients.

The tape remains the same object, and an instance of its class. Threads: the training thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from tdcore.hooks.interception import collecting

__all__ = ["TapeListener", "wrapped"]


class TapeListener(Protocol):
    """Object that a wrapped tape calls. Its methods must not raise, except StopTraining in enter_tape()."""

    def enter_tape(self) -> None:
        """Called before the tape starts to record."""

    def exit_tape(self, tape: Any) -> None:
        """Called when the tape has stopped."""

    def tape_gradient(self, tape: Any, target: Any, sources: Any, gradients: Any) -> None:
        """Called when the tape has computed gradients."""


class _WrappedTape:
    """Methods of a wrapped tape. Its class is made of this one and the tape's own."""

    _tdcore_listener: TapeListener
    _tdcore_quiet = False

    def __enter__(self) -> Any:
        self._tdcore_listener.enter_tape()
        try:
            return super().__enter__()  # type: ignore[misc]  # of the tape's own class
        except BaseException:
            self._tdcore_listener.exit_tape(self)
            raise

    def __exit__(self, *error: Any) -> Any:
        try:
            return super().__exit__(*error)  # type: ignore[misc]
        finally:
            self._tdcore_listener.exit_tape(self)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tdcore_quiet:
            return super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        with collecting(None):
            found = super().gradient(target, sources, *args, **kwargs)  # type: ignore[misc]
        self._tdcore_listener.tape_gradient(self, target, sources, found)
        return found

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        with self._quiet():
            return super().jacobian(*args, **kwargs)  # type: ignore[misc]

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        with self._quiet():
            return super().batch_jacobian(*args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """A block in which gradient() is called by another method."""
        before, self._tdcore_quiet = self._tdcore_quiet, True
        try:
            with collecting(None):
                yield
        finally:
            self._tdcore_quiet = before


_classes: dict[type, type] = {}  # by the tape's own class


def _wrapped_class(own: type) -> type:
    if own not in _classes:
        attributes = {"__module__": own.__module__, "__doc__": own.__doc__}
        _classes[own] = type(own.__name__, (_WrappedTape, own), attributes)
    return _classes[own]


def wrapped(tape: Any, listener: TapeListener) -> Any:
    """The tape, which calls the listener from now on."""
    if not isinstance(tape, _WrappedTape):
        tape.__class__ = _wrapped_class(type(tape))
    tape._tdcore_listener = listener
    return tape
