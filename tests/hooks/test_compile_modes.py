"""Models compiled by inductor or replayed by CUDA graphs: values, graphs, variants, an unchanged training."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from .compiling import Forward, captured, eager, net, train, wrapped
from .conftest import MakeHook, ReadRun

pytestmark = pytest.mark.usefixtures("fresh_compiler")

ROWS = {"default": "torch.compile, default", "max-autotune": "torch.compile, max-autotune"}


def shows(mode: str) -> Any:
    marks = [pytest.mark.supports(ROWS[mode], column) for column in ("values", "losses", "breaks", "cost")]
    return pytest.param(mode, marks=marks)


@pytest.mark.parametrize("mode", [shows("default"), shows("max-autotune")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
@pytest.mark.filterwarnings("ignore:Not enough SMs:UserWarning")
def test_inductor_keeps_every_capture_and_its_order_and_all_losses(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any, mode: str
) -> None:
    build = partial(wrapped, backend="inductor", fullgraph=mode != "default", mode=mode)
    model = net()
    plain_losses = train(build(model, nn.MSELoss()), model, 5)
    torch._dynamo.reset()
    counters.clear()
    expected, _ = captured(make_hook, read_run, eager, tmp_path / "eager", "before")
    run, losses = captured(make_hook, read_run, build, tmp_path / "compiled", "before")
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 2  # with module hooks and without
    outputs = [name for name in expected.names(0) if "_output_" in name]
    assert [name for name in run.names(0) if "_output_" in name] == outputs
    assert sorted(run.names()) == sorted(expected.names())
    for row in expected.rows:
        name, step = row["name"], row["step"]
        assert np.allclose(run.value(name, step), expected.value(name, step), rtol=1e-5, atol=1e-7), name
    assert list(map(torch.equal, losses, plain_losses)) == [True] * 5


class Replayed(torch.autograd.Function):
    """Stand-in for a forward of make_graphed_callables: calls no module, writes its output into a buffer."""

    @staticmethod
    def forward(ctx: Any, buffer: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            ctx.inputs = x, w1, b1, w2, b2 = [one.detach().requires_grad_() for one in inputs]
            ctx.result = nn.functional.linear(nn.functional.linear(x, w1, b1).relu(), w2, b2)
        return buffer.copy_(ctx.result.detach()).detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, *torch.autograd.grad(ctx.result, ctx.inputs, gradients)


def replayed(model: nn.Module, criterion: nn.Module) -> Forward:
    buffer, parameters = torch.zeros(5, 3), tuple(model.parameters())
    model.forward = lambda x: Replayed.apply(buffer, x, *parameters)  # type: ignore[no-untyped-call]
    return eager(model, criterion)


def test_a_forward_that_replays_gives_its_ends_and_the_gradients_and_names_what_it_does_not_call(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    model = net()
    plain_losses = train(replayed(model, nn.MSELoss()), model, 5)
    expected, _ = captured(make_hook, read_run, eager, tmp_path / "eager", "before")
    run, losses = captured(make_hook, read_run, replayed, tmp_path / "replayed", "before")
    silent = {"fc1", "relu", "fc2"}
    assert set(run.trial.notes()["never_called"]) == silent
    names = {name for name in expected.names() if name.split("_")[0] not in silent}
    assert set(run.names()) == names
    assert {"Net_output_0", "Net_input_0", "gradient/Net_fc1.weight", "MSELoss_output_0"} <= names
    for row in run.rows:
        name, step = row["name"], row["step"]
        assert np.allclose(run.value(name, step), expected.value(name, step), rtol=1e-6, atol=1e-7), name
    assert list(map(torch.equal, losses, plain_losses)) == [True] * 5


def test_a_registered_model_is_refused_by_make_graphed_callables_until_the_hook_is_closed(
    make_hook: MakeHook,
) -> None:
    model, hook = net(), make_hook()
    hook.register_module(model)
    with pytest.raises((AssertionError, RuntimeError), match="must not have hooks registered"):
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, 4),))
    hook.close()
    assert not model._forward_pre_hooks
