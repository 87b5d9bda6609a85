"""Gradients of outputs, when they are requested: captured in backward, in the order of backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tdcore.config.save_config import SaveConfig
from tdcore.rules.library.first_non_finite import FirstNonFinite
from tests.rules.trainings import judge_run

from .conftest import MakeHook, ReadRun
from .models import Net, train

ORDER = "order of execution"
ASKED = ["output_gradients"]


class Reused(nn.Module):
    """A layer that runs twice, an in-place ReLU after it, a nested output, and a part without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.relu, self.spare = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.relu(self.fc(self.relu(self.fc(x))))
        return {"main": (y, y.sum()), "spare": self.spare(y)}


def reference(model: Reused, x: torch.Tensor) -> dict[str, npt.NDArray[Any]]:
    """Return the gradients of fc's two outputs and of the last ReLU, without in-place operations."""
    first = model.fc(x)
    second = model.fc(first.relu())
    last = second.relu()
    found = torch.autograd.grad(last.square().sum(), [first, second, last])
    return {name: one.numpy() for name, one in zip(("first", "second", "last"), found, strict=True)}


@pytest.mark.supports(ORDER, "values")
def test_gradients_of_outputs_are_those_of_autograd_by_call(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=[*ASKED, "gradients"]), Reused()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(2):
        x = torch.randn(3, 4)
        optimizer.zero_grad()
        model(x)["main"][0].square().sum().backward()
        optimizer.step()
    assert not hook._faults
    run, expected = read_run(hook), reference(model, x)
    assert np.array_equal(run.value("output_gradient/fc_output_0", 1, call=0), expected["first"])
    assert np.array_equal(run.value("output_gradient/fc_output_0", 1, call=1), expected["second"])
    assert np.array_equal(run.value("output_gradient/relu_output_0", 1, call=1), expected["last"])
    assert np.array_equal(run.value("output_gradient/Reused_output_main.0", 1), expected["last"])
    calls = [
        (row["name"].split("/")[1], row["call"])
        for row in run.rows
        if row["step"] == 1 and row["status"] == "ok"
    ]
    assert [call for call in calls if call[0] in ("fc_output_0", "relu_output_0", "Reused_fc.weight")] == [
        ("relu_output_0", 1),
        ("fc_output_0", 1),
        ("relu_output_0", 0),
        ("fc_output_0", 0),
        ("Reused_fc.weight", 0),
    ]


def test_an_output_that_no_loss_reaches_is_absent_which_is_not_zero(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=ASKED), Reused()
    hook.register_module(model)
    model(torch.randn(3, 4))["main"][1].backward()
    rows = read_run(hook).of("output_gradient/spare_output_0")
    assert [(row["step"], row["status"]) for row in rows] == [(0, "absent")]


def test_a_gradient_that_comes_after_its_step_is_counted_and_leaves_the_order_alone(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=[*ASKED, "outputs"]), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    late = model(torch.randn(2, 4))
    optimizer.step()  # there are no gradients yet: the step ends, and no weight changes
    model(torch.randn(2, 4)).sum().backward()
    late.sum().backward()
    assert hook._notes["output_gradients_missed"]["output_gradient/fc1_output_0"] == 1
    run = read_run(hook)
    found = [(row["step"], row["status"]) for row in run.of("output_gradient/fc1_output_0")]
    assert found == [(0, "absent"), (1, "ok")]
    assert [row["seq"] for row in run.rows if row["step"] == 1] == list(range(len(run.names(1))))


def test_they_are_captured_only_when_asked_for(make_hook: MakeHook, read_run: ReadRun, tmp_path: Any) -> None:
    asked: dict[str, dict[str, Any]] = {
        "all": {"save_all": True},
        "pattern": {"include_regex": "fc1"},
        "word": {"include_regex": "output_gradient/fc1"},
    }
    found = {}
    for name, options in asked.items():
        hook, model = make_hook(out_dir=tmp_path / name, **options), Net()
        hook.register_module(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
        found[name] = {one for one in read_run(hook).names(1) if one.startswith("output_gradient/")}
    assert found == {"all": set(), "pattern": set(), "word": {"output_gradient/fc1_output_0"}}


def test_a_module_returning_a_leaf_carries_its_hook_no_longer_than_a_step(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(3))

        def forward(self) -> torch.Tensor:
            return self.table

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Table()

        def forward(self, x: torch.Tensor) -> Any:
            return x * self.inner()

    hook, model = make_hook(include_collections=ASKED, save_config=SaveConfig(save_interval=2)), Uses()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.full((3,), 2.0)).sum().backward()
        optimizer.step()
        assert len(model.inner.table._backward_hooks or ()) <= 1
    run = read_run(hook)
    assert run.steps("output_gradient/inner_output_0") == [0, 2, 4]
    assert np.array_equal(run.value("output_gradient/inner_output_0", 4), np.full(3, 2.0, np.float32))


def test_of_several_backwards_the_first_is_captured_and_the_others_are_counted(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=ASKED), Net()
    hook.register_module(model)
    output = model(torch.randn(2, 4))
    output.sum().backward(retain_graph=True)
    (2 * output).sum().backward()
    del output
    assert hook._notes["output_gradients_missed"]["output_gradient/Net_output_0"] == 1
    run = read_run(hook)
    assert [row["call"] for row in run.of("output_gradient/Net_output_0")] == [0]
    assert np.array_equal(run.value("output_gradient/Net_output_0", 0), np.ones((2, 3), np.float32))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_does_not_ask_again(make_hook: MakeHook, read_run: ReadRun, reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    hook, model = make_hook(include_collections=ASKED), Checkpointed()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    run = read_run(hook)
    expected = [] if reentrant else [(0, 0), (1, 0)]
    assert [(row["step"], row["call"]) for row in run.of("output_gradient/block.0_output_0")] == expected
    assert [row["call"] for row in run.of("output_gradient/first_output_0")] == [0, 0]


@pytest.mark.supports(ORDER, "losses")
def test_losses_are_the_same_bits(make_hook: MakeHook) -> None:
    losses = []
    for captured in (True, False):
        torch.manual_seed(5)
        model = Net()
        if captured:
            make_hook(include_collections=ASKED).register_module(model)
        losses.append(torch.stack(train(model, torch.optim.Adam(model.parameters(), lr=0.1), steps=6)))
    assert torch.equal(losses[0], losses[1])


def test_modules_carry_nothing_after_the_forward(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=ASKED), Net()
    hook.register_module(model)
    optimizer, carried = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        output = model(torch.randn(2, 4))
        carried.append(sum(len(module._forward_hooks) for module in model.modules()))
        output.sum().backward()
        optimizer.step()
    # In the first step, hooks detect recomputation in backward and modules that the script calls itself.
    assert carried == [10, 0, 0]


class Breaks(torch.autograd.Function):
    """The identity, whose backward returns NaN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.nan


class Chain(nn.Module):
    """Four layers, registered in arbitrary order; backward turns to NaN between the third and the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fourth, self.second, self.third = (nn.Linear(4, 4) for _ in range(4))
        self.broken = False

    def forward(self, x: torch.Tensor) -> Any:
        y = self.second(self.first(x))
        breaks: Any = Breaks
        return self.fourth(self.third(breaks.apply(y) if self.broken else y))


@pytest.mark.parametrize(
    ("asked", "guilty"),
    [
        (["gradients"], {"gradient/Chain_second.weight", "gradient/Chain_second.bias"}),
        (["gradients", "output_gradients"], {"output_gradient/second_output_0"}),
    ],
)
def test_the_rule_names_the_tensor_that_went_bad_first(
    make_hook: MakeHook, read_run: ReadRun, asked: list[str], guilty: set[str]
) -> None:
    hook, model = make_hook(include_collections=[*asked, "outputs", "weights"]), Chain()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=2)
    model.broken = True
    train(model, optimizer, steps=2)
    run = read_run(hook)
    findings, _ = judge_run(FirstNonFinite(skipped_steps=0), Path(run.trial.path))
    assert [(finding.step, finding.tensor in guilty) for finding in findings] == [(2, True)]
    assert findings[0].numbers["where"] == "backward pass"
