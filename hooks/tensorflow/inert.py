"""The Hook of a switched-off tdcore (TDCORE_DISABLED=1) for TensorFlow: it compiles functions, and no more.

Threads: any.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from tdcore.hooks import inert

__all__ = ["Hook", "create_from_json_file", "get_hook"]


class Hook(inert.Hook):
    """See inert.Hook."""

    def wrap_tape(self, tape: Any) -> Any:
        """Return the tape."""
        return tape

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Return the optimizer."""
        return optimizer

    def register_model(self, model: Any) -> None:
        """Do nothing: the model is not changed."""

    def capture_step(  # type: ignore[override]  # the arguments of the hook for TensorFlow
        self, function: Callable[..., Any] | None = None, *, mode: Any = None, **options: Any
    ) -> Callable[..., Any]:
        """Compile the function with tf.function, as the hook does."""
        if function is None:
            return functools.partial(self.capture_step, mode=mode, **options)
        if hasattr(function, "get_concrete_function"):
            return function
        import tensorflow as tf

        compiled: Callable[..., Any] = tf.function(function, **options)
        return compiled


def create_from_json_file(json_file_path: str | os.PathLike[str] | None = None, **options: Any) -> Hook:
    """Return a hook that does nothing. The file is not read."""
    return Hook.create_from_json_file(json_file_path, **options)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """Return the hook of set_hook(), or a new one with create_if_not_exists, or None."""
    known = inert.get_hook()
    if known is not None or not create_if_not_exists:
        return known  # type: ignore[return-value]  # of the class above
    return Hook()
