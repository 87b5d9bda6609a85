"""Removal of tdcore's hooks during torch.jit.script(), which cannot compile them.

torch.jit.script() compiles the hooks of a module. A script that trains and then exports its model must not
fail because the training is recorded. Therefore the hooks of tdcore, and the functions that replace them in
copies of a model, are removed while torch reads the list of hooks. The list comes from one private function
of torch; without that function torch.jit.script() may fail. Threads: any.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tdcore.hooks.pytorch.model.pickling import InertInCopies

__all__ = ["hide_hooks_from_torchscript"]

_NOTHING = contextlib.nullcontext.__exit__


def hide_hooks_from_torchscript() -> None:
    """Hide the hooks until the process ends. A second call has no effect."""
    recursive = getattr(torch.jit, "_recursive", None)
    stubs = getattr(recursive, "get_hook_stubs", None)
    if callable(stubs) and not hasattr(stubs, "__wrapped__"):
        setattr(recursive, "get_hook_stubs", _without_ours(stubs))  # noqa: B010  # mypy: private, may be absent


def _without_ours(stubs: Callable[[nn.Module], Any]) -> Callable[[nn.Module], Any]:
    @functools.wraps(stubs)
    def without_ours(module: nn.Module) -> Any:
        with contextlib.ExitStack() as undo:
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                there = dict(hooks)
                ours = [key for key, hook in there.items() if _is_ours(hook)]
                if ours:
                    undo.callback(_put_back, hooks, there)
                    for key in ours:
                        del hooks[key]
            return stubs(module)

    return without_ours


def _is_ours(hook: object) -> bool:
    return isinstance(hook, InertInCopies) or getattr(hook, "__func__", None) is _NOTHING


def _put_back(hooks: dict[int, Any], there: dict[int, Any]) -> None:
    hooks.clear()  # so that their order is unchanged
    hooks.update(there)
