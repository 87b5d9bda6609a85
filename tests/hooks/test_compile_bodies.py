"""Compiled code that capture cannot reach: bodies of operators, compiled backwards and optimizers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from .compiling import net, train
from .conftest import MakeHook, ReadRun

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Outer(nn.Module):
    """Calls its block once directly, and once inside of a higher-order operator."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.out = nn.Linear(4, 3)
        self.operator = operator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inside(self.block(x))
        z: torch.Tensor = self.out(y)
        return z

    def inside(self, x: torch.Tensor) -> Any:
        if self.operator == "checkpoint":
            return checkpoint(self.block, x, use_reentrant=False)
        if self.operator == "cond":
            return torch.cond(x.sum() > 0, lambda x: self.block(x), lambda x: self.block(x) * 2, (x,))
        return torch.func.vmap(self.block)(x)


def outer(operator: str) -> Outer:
    torch.manual_seed(0)
    return Outer(operator)


@pytest.mark.supports("torch.compile, fullgraph", "losses")
@pytest.mark.supports("torch.compile, fullgraph", "breaks")
@pytest.mark.parametrize("operator", ["checkpoint", "cond", "vmap"])
def test_calls_inside_of_an_operator_are_noted_and_break_nothing(
    make_hook: MakeHook, read_run: ReadRun, operator: str
) -> None:
    model = outer(operator)
    plain: Any = torch.compile(model, fullgraph=True, backend="eager")
    plain_losses = train(lambda x: plain(x).square().mean(), model, 2)
    torch._dynamo.reset()
    counters.clear()
    model = outer(operator)
    faster: Any = torch.compile(model, fullgraph=True, backend="eager")
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(model)
    losses = train(lambda x: faster(x).square().mean(), model, 2)
    assert not hook._faults
    assert not counters["graph_break"]
    assert list(map(torch.equal, losses, plain_losses)) == [True] * 2
    run = read_run(hook)
    noted = run.trial.notes()["not_in_compiled_code"]
    assert set(noted) == {"block", "block.0", "block.1"}
    assert {"checkpoint": operator, "cond": operator, "vmap": "transform"}[operator] in noted["block"]
    modules = ["block.0", "block.1", "block", "out", "Outer"]
    assert run.names(0) == [f"{module}_output_0" for module in modules]


def test_a_model_that_is_only_called_inside_of_an_operator_is_noted(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model, criterion = net(), nn.MSELoss()

    def forward(x: torch.Tensor) -> Any:
        def loss_of(x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = criterion(model(x), torch.zeros(5, 3))
            return loss

        return torch.cond(x.sum() > 0, loss_of, lambda x: loss_of(x) * 2, (x,))

    hook = make_hook(include_collections=["outputs", "losses"])
    faster = torch.compile(forward, fullgraph=True, backend="eager")
    hook.register_module(model)
    hook.register_loss(criterion)
    train(faster, model, 2)
    assert not hook._faults
    run = read_run(hook)
    assert run.rows == []
    noted = run.trial.notes()["not_in_compiled_code"]
    assert {"Net", "fc1", "MSELoss"} <= set(noted)
    assert "inside cond" in run.trial.why_absent("fc1_output_0")


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch warns about its own code
def test_compiled_autograd_leaves_the_training_alone_and_gives_every_gradient(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    def losses_of(folder: Any, compiling: bool, hooked: bool = True) -> tuple[list[torch.Tensor], Any]:
        model = net()
        hook = make_hook(out_dir=folder, include_collections=["gradients", "backward_gradients"])
        if hooked:
            hook.register_module(model)
        if compiling:
            with compiled_autograd._enable(torch.compile(backend="eager")):
                losses = train(lambda x: model(x).square().mean(), model, 2)
        else:
            losses = train(lambda x: model(x).square().mean(), model, 2)
        assert not hook._faults
        return losses, read_run(hook)

    plain_losses, _ = losses_of(tmp_path / "plain", compiling=True, hooked=False)
    _, expected = losses_of(tmp_path / "eager", compiling=False)
    counters.clear()
    losses, run = losses_of(tmp_path / "compiled", compiling=True)
    assert counters["compiled_autograd"]["captures"]
    assert list(map(torch.equal, losses, plain_losses)) == [True] * 2
    assert sorted(run.names()) == sorted(expected.names())
    assert "backward_gradient/Net_fc1.weight" in run.names(1)
    for row in expected.rows:
        name, step = row["name"], row["step"]
        assert np.array_equal(run.value(name, step), expected.value(name, step)), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
def test_a_compiled_step_of_the_optimizer_gives_weights_and_gradients(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    def losses_of(folder: Any, compiler: Any, hooked: bool = True) -> tuple[list[torch.Tensor], Any]:
        model = net()
        hook = make_hook(out_dir=folder, include_collections=["weights", "gradients"])
        if hooked:
            hook.register_module(model)
        losses = train(lambda x: model(x).square().mean(), model, 2, compiler)
        assert not hook._faults
        return losses, read_run(hook)

    def compiler(step: Any) -> Any:
        return torch.compile(step, backend="eager")

    plain_losses, _ = losses_of(tmp_path / "plain", compiler, hooked=False)
    _, expected = losses_of(tmp_path / "eager", None)
    counters.clear()
    losses, run = losses_of(tmp_path / "compiled", compiler)
    assert counters["stats"]["unique_graphs"]
    assert list(map(torch.equal, losses, plain_losses)) == [True] * 2
    assert run.names() == expected.names()
    for row in expected.rows:
        name, step = row["name"], row["step"]
        assert np.array_equal(run.value(name, step), expected.value(name, step)), name


@pytest.mark.supports("torch.compile, default", "breaks")
def test_a_compiled_model_that_is_dropped_without_close_takes_its_hook_with_it(make_hook: MakeHook) -> None:
    from tdcore.hooks.pytorch import Hook

    made = make_hook()

    def dropped() -> list[weakref.ref[Any]]:
        hook, model = Hook(made.out_dir + "_dropped", dry_run=True), net()
        faster: Any = torch.compile(model, backend="eager")
        hook.register_module(model)
        train(lambda x: faster(x).square().mean(), model, 2)
        assert "forward" in vars(model)
        return [weakref.ref(model), weakref.ref(hook)]

    seen = dropped()
    gc.collect()
    assert [one() for one in seen] == [None, None]


def test_a_forward_that_was_patched_is_there_again_after_close(make_hook: MakeHook) -> None:
    model = net()

    def forward(x: torch.Tensor) -> Any:
        return model(x)

    faster: Any = torch.compile(forward, backend="eager")
    inner = model.forward

    def patched(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 2

    model.forward = patched  # type: ignore[method-assign]
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(model)
    x = torch.ones(5, 4)
    assert torch.equal(faster(x), inner(x) * 2)
    assert model.forward is not patched
    hook.close()
    assert model.forward is patched
