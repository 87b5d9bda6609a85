"""Trainings of compiled models, shared by the tests of torch.compile, and the contents of their runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

import tdcore as td

from .conftest import MakeHook, ReadRun
from .models import Net

__all__ = ["EVERYTHING", "Build", "Forward", "captured", "eager", "net", "train", "wrapped"]

EVERYTHING = ("weights", "gradients", "inputs", "outputs", "losses")
Forward = Callable[[torch.Tensor], torch.Tensor]
Build = Callable[[nn.Module, nn.Module], Forward]


def train(
    forward: Forward, model: nn.Module, steps: int, compiler: Callable[..., Any] | None = None
) -> list[torch.Tensor]:
    """Train on data that depend only on the step; return the losses.

    compiler: compiles the optimizer's step.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    take_step = compiler(optimizer.step) if compiler is not None else optimizer.step
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        loss = forward(torch.randn(5, 4, generator=generator))
        loss.backward()
        take_step()
        optimizer.zero_grad()
        losses.append(loss.detach().clone())
    return losses


def wrapped(model: nn.Module, criterion: nn.Module, **options: Any) -> Forward:
    """Compile the model; the loss is not compiled."""
    faster = torch.compile(model, **{"fullgraph": True, "backend": "aot_eager", **options})
    return lambda x: criterion(faster(x), torch.zeros(5, 3))


def eager(model: nn.Module, criterion: nn.Module) -> Forward:
    """Compile nothing."""
    return lambda x: criterion(model(x), torch.zeros(5, 3))


def net() -> Net:
    """Return a network whose weights are always the same."""
    torch.manual_seed(0)
    return Net()


def captured(make_hook: MakeHook, read_run: ReadRun, build: Build, folder: Any, when: str) -> tuple[Any, Any]:
    """Return the run and the losses of a training of five steps; steps 0, 2 and 4 are saved."""
    model, criterion = net(), nn.MSELoss()
    hook = make_hook(
        out_dir=folder, include_collections=EVERYTHING, save_config=td.SaveConfig(save_interval=2)
    )
    forward = build(model, criterion)
    if when == "after":
        with torch.no_grad():
            forward(torch.zeros(5, 4))
        forward(torch.zeros(5, 4))
        counters.clear()
    hook.register_module(model)
    hook.register_loss(criterion)
    losses = train(forward, model, 5)
    assert not hook._faults
    return read_run(hook), losses
