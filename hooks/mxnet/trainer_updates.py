"""Calls hooks around each update of a gluon.Trainer.

While a hook listens, the class gluon.Trainer has another `_update`, the method that step() and update() call
when gradients are final. Trainer objects are not changed, so their copies and checkpoints are as without a
hook. Threads: the training thread.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

from mxnet import gluon

__all__ = ["UpdateListener", "listen", "unlisten"]


class UpdateListener(Protocol):
    """Object that is called before and after each update of any trainer. Its methods must not raise."""

    def before_update(self, trainer: Any) -> None:
        """Called when gradients are final."""

    def after_update(self, trainer: Any) -> None:
        """Called when the weights have changed."""


_listeners: weakref.WeakSet[Any] = weakref.WeakSet()
_original = gluon.Trainer._update


@functools.wraps(_original)
def _update(trainer: Any, *args: Any, **options: Any) -> Any:
    listeners = list(_listeners)
    for listener in listeners:
        listener.before_update(trainer)
    result = _original(trainer, *args, **options)
    for listener in listeners:
        listener.after_update(trainer)
    return result


def listen(listener: UpdateListener) -> None:
    """Call the listener around updates. It is not kept alive."""
    _listeners.add(listener)
    if gluon.Trainer._update is _original:
        gluon.Trainer._update = _update


def unlisten(listener: UpdateListener) -> None:
    """No longer call the listener. After the last one, gluon.Trainer is as before."""
    _listeners.discard(listener)
    if not _listeners and gluon.Trainer._update is _update:
        gluon.Trainer._update = _original
