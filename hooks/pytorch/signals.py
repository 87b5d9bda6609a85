"""What sits on the root module and on all optimizers between steps, and calls the hook.

Threads: those of the training, replicas' included. The module keeps the hook alive, the optimizers do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.optim import Optimizer

from tdcore.hooks.pytorch.tap import InertInCopies

if TYPE_CHECKING:
    from tdcore.hooks.pytorch.hook import Hook
    from tdcore.hooks.pytorch.parameters import ParameterCapture

__all__ = ["StepSignal", "optimizer_signals"]


class Watcher(Protocol):
    """What optimizers call: a hook, or one of its further roots."""

    @property
    def _off(self) -> bool: ...

    @property
    def _parameters(self) -> ParameterCapture | None: ...

    @property
    def _asked(self) -> Callable[[], bool]: ...

    def _before_optimizer(
        self, parameters: ParameterCapture, optimizer: Optimizer, arguments: tuple[object, ...], /
    ) -> None: ...

    def _after_optimizer(self, parameters: ParameterCapture, optimizer: Optimizer, /) -> None: ...


class StepSignal(InertInCopies):
    """The root's forward pre-hook. Holds the hook: the model keeps it alive."""

    __slots__ = ("hook",)

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    def __call__(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """As a forward pre-hook."""
        self.hook._on_forward(module, args, kwargs)


def optimizer_signals(hook_ref: weakref.ref[Any]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Hooks for all optimizers of the process. They do not keep the hook alive."""

    def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook: Watcher | None = hook_ref()
        if hook is None or hook._off or hook._parameters is None:
            return
        parameters = hook._parameters
        if parameters.owed is not None or len(args) > 1 or kwargs:
            hook._before_optimizer(parameters, optimizer, (*args[1:], *kwargs.values()))

    def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hook: Watcher | None = hook_ref()
        if hook is None or hook._off or hook._parameters is None:
            return
        parameters = hook._parameters
        parameters.inside_step = False
        if parameters.owed is not None or parameters.updates.pending or hook._asked():
            hook._after_optimizer(parameters, optimizer)

    return before, after
