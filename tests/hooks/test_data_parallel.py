"""nn.DataParallel around a registered module: only its replicas run, and not the module itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tdcore as td
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun
from .models import Net
from .test_survive import replicate


def losses_of(hook: Hook | None) -> list[float]:
    """Train a model whose forwards run in a replica, as on DataParallel's first device; return the losses."""
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hook is not None:
        hook.register_module(model)
    losses = []
    for _ in range(3):
        loss = replicate(model)(torch.randn(5, 4)).square().mean()
        for parameter in model.parameters():  # stands for a backward through the replica
            parameter.grad = torch.full_like(parameter, float(loss))
        optimizer.step()
        losses.append(float(loss))
    return losses


@pytest.mark.supports("DataParallel", "values")
@pytest.mark.supports("DataParallel", "losses")
@pytest.mark.supports("DataParallel", "breaks")
def test_parameters_are_captured_and_outputs_are_noted_as_missing_when_only_the_inner_module_is_registered(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook(save_all=True)
    losses = losses_of(hook)
    assert losses == losses_of(None)
    run = read_run(hook)
    for step in range(3):
        gradient = run.value("gradient/Net_fc1.weight", step)
        assert np.array_equal(gradient, np.full_like(gradient, losses[step]))
    assert run.steps("Net_fc1.weight") == [0, 1, 2]
    assert not [name for name in run.names() if "_output_" in name]
    (note,) = run.trial.notes()["not_captured"]
    assert "register the nn.DataParallel" in note
    assert not hook._faults


@pytest.mark.supports("DataParallel", "cost")
def test_a_copy_s_forward_in_a_step_that_is_not_saved_captures_nothing_and_leaves_no_hook(
    make_hook: MakeHook,
) -> None:
    hook, model = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=10)), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        replicate(model)(torch.randn(5, 4))
        optimizer.step()
    before = hook.counters().captures
    replicate(model)(torch.randn(5, 4))
    assert hook.global_step == 2
    assert hook.counters().captures == before
    assert not any(one._forward_hooks for one in model.modules())
    assert not any(one._backward_hooks for one in model.parameters())


@pytest.mark.supports("DataParallel", "values")
def test_with_the_clock_of_the_older_library_each_forward_of_the_first_copy_is_a_step(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["weights"], clock="forward"), Net()
    hook.register_module(model)
    for _ in range(3):
        replicate(model)(torch.randn(5, 4))
    assert hook.global_step == 2
    assert read_run(hook).steps("Net_fc1.weight") == [0, 1, 2]
