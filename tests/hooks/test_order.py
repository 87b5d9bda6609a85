"""The order of rows within a step is the order of execution, in forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.config.save_config import SaveConfig

from .conftest import Captured, MakeHook, ReadRun
from .models import Net, train

ORDER = "order of execution"


class Backwards(nn.Module):
    """A model whose parameters are registered in a different order than they are used."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.middle(self.first(x).tanh()).tanh())


def arrivals(model: nn.Module) -> list[str]:
    """Record, by PyTorch's post-accumulate-grad hooks, the order in which gradients become ready."""
    seen: list[str] = []
    for name, parameter in model.named_parameters():

        def note(_: torch.Tensor, name: str = name) -> None:
            seen.append(f"gradient/{type(model).__name__}_{name}")

        parameter.register_post_accumulate_grad_hook(note)
    return seen


def gradients(run: Captured, step: int) -> list[str]:
    return [name for name in run.names(step) if name.startswith("gradient/")]


@pytest.mark.supports(ORDER, "values")
def test_gradients_stand_in_the_order_in_which_backward_made_them(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["weights", "gradients", "outputs"]), Backwards()
    hook.register_module(model)
    seen = arrivals(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    run = read_run(hook)
    unused = ["gradient/Backwards_unused.weight", "gradient/Backwards_unused.bias"]
    assert gradients(run, 0) == [*seen[:6], *unused]
    assert gradients(run, 1) == [*seen[6:], *unused]
    assert [name for name in run.names(1) if "_output_" in name] == [
        f"{name}_output_0" for name in ("first", "middle", "last", "Backwards")
    ]


def test_the_value_of_a_gradient_is_its_own_whatever_its_place(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["weights", "biases", "gradients"]), Backwards()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train(model, optimizer, steps=2)
    run = read_run(hook)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found = run.value(f"gradient/Backwards_{name}", 1)
            assert np.array_equal(found, parameter.grad.numpy()), name
        assert np.array_equal(run.value(f"Backwards_{name}", 1), parameter.detach().numpy()), name


def test_products_go_with_their_tensors(make_hook: MakeHook, read_run: ReadRun) -> None:
    from tdcore.config.reduction_config import ReductionConfig

    reductions = ReductionConfig(reductions=["prod"])
    hook = make_hook(include_collections=["gradients", "biases"], reduction_config=reductions)
    model = Backwards()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.0))
    run = read_run(hook)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            product = run.value(f"gradient/Backwards_{name}/prod", 0)
            assert np.allclose(product, parameter.grad.to(torch.float64).prod().item(), rtol=1e-12), name


def test_a_gradient_that_two_backwards_make_counts_by_the_last(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.body = nn.Linear(4, 1), nn.Linear(4, 1), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.body(x)
            return self.one(y), self.two(y)

    hook, model = make_hook(include_collections=["gradients"]), Heads()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one, two = model(torch.randn(3, 4))
    one.sum().backward(retain_graph=True)
    two.sum().backward()
    optimizer.step()
    modules = [name.split("_")[1].split(".")[0] for name in read_run(hook).names(0)]
    assert list(dict.fromkeys(modules)) == ["one", "two", "body"]


@pytest.mark.supports(ORDER, "cost")
def test_parameters_carry_hooks_only_from_a_saved_forward_to_its_payment(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["gradients"], save_config=SaveConfig(save_interval=2))
    model = Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def carried() -> int:
        return sum(len(parameter._backward_hooks or ()) for parameter in model.parameters())

    counts = []
    for _ in range(3):
        loss = model(torch.randn(3, 4)).square().mean()
        counts.append(carried())
        loss.backward()
        optimizer.step()
        counts.append(carried())
    assert counts == [4, 0, 0, 0, 4, 0]
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


def test_only_parameters_whose_gradients_are_wanted_carry_a_hook(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_regex="gradient/Net_fc2.bias"), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    model(torch.randn(3, 4))
    assert [name for name, one in model.named_parameters() if one._backward_hooks] == ["fc2.bias"]


def test_the_users_own_hooks_on_parameters_stay(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    called: list[str] = []
    early = model.fc1.weight.register_hook(lambda gradient: called.append("early"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(torch.randn(3, 4))
    late = model.fc2.weight.register_hook(lambda gradient: called.append("late"))
    output.square().mean().backward()
    optimizer.step()
    train(model, optimizer, steps=2)
    assert called == ["late", "early"] * 3
    early.remove()
    late.remove()
    train(model, optimizer)
    assert called == ["late", "early"] * 3
    run = read_run(hook)
    assert {row["status"] for row in run.rows} == {"ok"}
    assert [len(run.names(step)) for step in range(4)] == [4] * 4


def test_a_closed_hook_leaves_nothing_on_the_parameters(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    model(torch.randn(3, 4)).sum().backward()
    hook.close()
    assert all(parameter._backward_hooks is None for parameter in model.parameters())


@pytest.mark.supports(ORDER, "breaks")
def test_a_model_saved_between_forward_and_step_carries_nothing_of_ours(
    make_hook: MakeHook, tmp_path: Any
) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    model(torch.randn(3, 4))
    torch.save(model.state_dict(), tmp_path / "state.pt")
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert all(not parameter._backward_hooks for parameter in loaded.parameters())


@pytest.mark.supports(ORDER, "losses")
def test_losses_are_the_same_bits_with_the_order_noted(make_hook: MakeHook) -> None:
    losses = []
    for captured in (True, False):
        torch.manual_seed(5)
        model = Backwards()
        if captured:
            make_hook(include_collections=["gradients", "outputs"]).register_module(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses.append(torch.stack(train(model, optimizer, steps=6)))
    assert torch.equal(losses[0], losses[1])


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_lazy_parameters_switch_nothing_off(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["weights", "gradients"])
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.Linear(3, 2))
    hook.register_module(model)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert not hook._faults
