"""td.watch(): capture a model with one line, `td.watch(model, out="runs/demo")`.

The call imports the hook of the model's framework. An import of this module does not import the hook.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from tdcore.config.defaults import COLLECTIONS, SAVE_INTERVAL

if TYPE_CHECKING:
    from tdcore.hooks.pytorch import Hook

__all__ = ["watch"]


def watch(
    model: Any,
    out: str | os.PathLike[str],
    *,
    loss: Any = None,
    optimizer: Any = None,
    save_interval: int = SAVE_INTERVAL,
    include_collections: Iterable[str] = COLLECTIONS,
    **options: Any,
) -> Hook:
    """Capture a training: statistics of weights, gradients, outputs and losses, at every 10th step.

    The model keeps the hook alive. The capture ends with the model, or earlier with close().

    Args:
        model: A torch.nn.Module.
        out: Folder of the run, or s3://bucket/prefix.
        loss: The loss module; None if the loss is not a module.
        optimizer: The optimizer. None: the hook finds the optimizer automatically.
        save_interval: Steps between two captured steps.
        include_collections: Names of the collections to capture.
        options: Further arguments of the framework's Hook. `save_config` and `reduction_config` replace the
            defaults above; `rules` adds the tensors that these rules need.

    Returns:
        The hook, registered on the model.
    """
    from tdcore.config.settings import disabled
    from tdcore.errors import ConfigError

    if disabled():
        from tdcore.hooks.inert import Hook as InertHook

        return cast("Hook", InertHook(out))
    if not any(base.__module__.startswith("torch.nn.") for base in type(model).__mro__):
        raise ConfigError(f"watch() needs a torch.nn.Module, got {type(model).__name__}")
    from tdcore.config.reduction_config import ReductionConfig
    from tdcore.config.save_config import SaveConfig
    from tdcore.hooks.pytorch import Hook

    options.setdefault("save_config", SaveConfig(save_interval=save_interval))
    options.setdefault("reduction_config", ReductionConfig())
    hook = Hook(out, include_collections=include_collections, **options)
    try:
        hook.register_module(model)
        if loss is not None:
            hook.register_loss(loss)
        if optimizer is not None:
            hook.register_optimizer(optimizer)
    except BaseException:
        hook.close()
        raise
    return hook
