"""make_graphed_callables: the values of the root's ends and the gradients; an unchanged training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcore as td
from tests.gpu.conftest import MakeHook
from tests.hooks.compiling import net, train
from tests.hooks.conftest import Captured


@pytest.mark.supports("make_graphed_callables", "values")
@pytest.mark.supports("make_graphed_callables", "losses")
def test_graphed_callables_give_the_ends_and_gradients_of_the_model_that_is_not_graphed(
    make_hook: MakeHook,
) -> None:
    def losses_of(graphed: bool, hooked: bool) -> tuple[list[torch.Tensor], Any]:
        model = net().cuda()
        if graphed:
            torch.cuda.make_graphed_callables(model, (torch.zeros(5, 4, device="cuda"),))
        hook = make_hook(include_collections=["outputs", "gradients"]) if hooked else None
        if hook is not None:
            hook.register_module(model)
        losses = train(lambda x: model(x.cuda()).square().mean(), model, 3)
        if hook is not None:
            hook.close()
        return losses, Captured(Path(hook.out_dir)) if hook is not None else None

    plain, _ = losses_of(graphed=True, hooked=False)
    losses, run = losses_of(graphed=True, hooked=True)
    assert list(map(torch.equal, losses, plain)) == [True] * 3
    model = net().cuda()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).cuda()
    output = model(x)
    output.square().mean().backward()
    weight = model.fc1.weight.grad
    assert weight is not None
    assert np.allclose(run.value("Net_output_0", 0), output.detach().cpu().numpy(), rtol=1e-5, atol=1e-6)
    assert np.allclose(run.value("gradient/Net_fc1.weight", 0), weight.cpu().numpy(), rtol=1e-4, atol=1e-6)


def test_a_registered_model_is_graphed_with_the_statistics_of_the_modules_inside(make_hook: MakeHook) -> None:
    hook = make_hook(include_regex="_output_0$", reduction_config=td.ReductionConfig())
    model = net().cuda()
    hook.register_module(model)
    with hook.graphing():
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, 4, device="cuda"),))
    first = model.fc1.weight.detach().clone(), model.fc1.bias.detach().clone()
    train(lambda x: model(x.cuda()).square().mean(), model, 3)
    hook.close()
    rows = td.create_trial(str(hook.out_dir)).tensor("fc1_output_0").stats().to_pylist()
    assert [row["step"] for row in rows] == [0, 1, 2]
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).cuda()
    wanted = torch.nn.functional.linear(x, *first).double().mean().item()
    assert rows[0]["mean"] == pytest.approx(wanted, rel=1e-4, abs=1e-6)
