"""Calls of hooks before and after each update of a gluon.Trainer.

While a hook is registered here, `_update` of the class gluon.Trainer is replaced. step() and update() call
this method when gradients are final. Trainer objects are not changed, so their copies and checkpoints are the
same as without a hook. Threads: the training thread.
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
        """Handle the start of an update, when gradients are final."""

    def after_update(self, trainer: Any) -> None:
        """Handle the end of an update, when the weights have changed."""


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
    """Call the listener before and after each update. The listener is not kept alive."""
    _listeners.add(listener)
    if gluon.Trainer._update is _original:
        gluon.Trainer._update = _update


def unlisten(listener: UpdateListener) -> None:
    """Stop calling the listener. Without listeners, gluon.Trainer has its original method."""
    _listeners.discard(listener)
    if not _listeners and gluon.Trainer._update is _update:
        gluon.Trainer._update = _original
