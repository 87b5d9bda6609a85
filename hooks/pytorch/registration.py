"""Checks of the objects that a script registers, so that a mistake raises an error immediately.

Threads: the training thread.
"""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from tdcore.errors import ConfigError
from tdcore.hooks.pytorch.compile.code_variants import original
from tdcore.hooks.pytorch.forward.unhookable import refuses_hooks
from tdcore.hooks.pytorch.parameters.grad_scaler import GRAD_SCALER

__all__ = ["check_clock", "check_loss", "check_optimizer", "check_scaler", "root_of"]


def root_of(module: object) -> nn.Module:
    """Return the module to register: the module itself, or the model inside a result of torch.compile()."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"register_module needs a torch.nn.Module, got {type(module).__name__}")
    module = original(module)
    if refuses_hooks(module):
        raise ConfigError(
            f"a {type(module).__name__} computes other numbers when it has its own hook; "
            "register the model that contains it, or nn.Sequential(layer)"
        )
    return module


def check_loss(loss_module: object) -> None:
    """Raise ConfigError if a loss is not a module."""
    if not isinstance(loss_module, nn.Module):
        raise ConfigError(
            f"register_loss needs a torch.nn.Module such as nn.CrossEntropyLoss(), got "
            f"{type(loss_module).__name__}; pass the value of a functional loss to record_tensor_value()"
        )


def check_optimizer(optimizer: object) -> None:
    """Raise ConfigError if an optimizer is not derived from torch.optim.Optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(f"register_optimizer needs a torch.optim.Optimizer, got {type(optimizer).__name__}")


def check_scaler(scaler: object) -> None:
    """Raise ConfigError if a scaler is not torch's GradScaler."""
    if not isinstance(scaler, GRAD_SCALER):
        raise ConfigError(f"register_scaler needs a torch.amp.GradScaler, got {type(scaler).__name__}")


def check_clock(clock: object) -> None:
    """Raise ConfigError for an unknown clock."""
    if clock not in ("update", "forward"):
        raise ConfigError(f'clock must be "update" or "forward", got {clock!r}')
