"""Close the earlier hook of a model when a second hook registers the model, because a model has one hook.

A notebook cell that runs again creates a second hook for the same model. If the first hook were not closed,
both would record, and each would keep a flusher process and its descriptors. Threads: the training thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import nn

from tdcore.hooks.pytorch.model.wrappers import WRAPPERS, class_name, innermost

if TYPE_CHECKING:
    from tdcore.hooks.base import BaseHook

__all__ = ["take_over"]

_log = logging.getLogger("tdcore")
_OF_TORCH = tuple(wrapper for wrapper in WRAPPERS if wrapper.module.startswith("torch."))


def take_over(hook: BaseHook, module: nn.Module, others: Iterable[BaseHook]) -> None:
    """Close other hooks with which this model, or a wrapper of it, is registered as a root.

    Waits for the data of each hook, like close(). Errors are logged and not raised.
    """
    model = innermost(module, _OF_TORCH)
    for other in others:
        if other is hook or other._off:
            continue
        roots = [root.reference() for root in getattr(other, "_roots", ())]
        if not any(root is not None and innermost(root, _OF_TORCH) is model for root in roots):
            continue
        other._notes["taken_over_by"] = hook.out_dir
        _log.warning(
            "tdcore: a new hook is registered on %s and writes to %s; the hook that wrote to %s is closed",
            class_name(model),
            hook.out_dir,
            other.out_dir,
        )
        try:
            other.close()
        except Exception as error:
            _log.warning("tdcore: the hook that wrote to %s did not close: %s", other.out_dir, error)
