"""Outputs, inputs and losses of modules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tdcore.config.save_config import SaveConfig

from .conftest import MakeHook, ReadRun
from .models import Net, train


def hooks_on(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks)
        for module in model.modules()
    )


def test_modules_carry_hooks_only_while_a_saved_forward_runs(make_hook: MakeHook) -> None:
    model, criterion, during = Net(), nn.MSELoss(), []

    class Looks(nn.ReLU):
        def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- as in nn.ReLU
            during.append((hooks_on(model), hooks_on(criterion)))
            return super().forward(input)

    model.relu = Looks()
    hook = make_hook(include_collections=["outputs"], save_config=SaveConfig(save_interval=2))
    hook.register_module(model)
    hook.register_loss(criterion)
    optimizer, left = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        output = model(torch.randn(2, 4))
        left.append(hooks_on(model))
        output.sum().backward()
        optimizer.step()
    # In the first training step, modules have hooks until its end: to detect recomputation in backward, and
    # modules that the script itself calls, whose hooks remain.
    assert left == [13, 1, 1]
    # 4 modules with an output hook, the root's forward end hook and pre-hook; at first 3 other modules, too.
    assert during == [(9, 1), (1, 0), (6, 1)]


def test_only_modules_that_a_collection_selects_carry_hooks(make_hook: MakeHook, read_run: ReadRun) -> None:
    model, during = Net(), []
    hook = make_hook(include_regex="relu_output")
    hook.register_module(model)
    model.fc2.register_forward_hook(lambda *_: during.append(hooks_on(model)))
    model(torch.randn(2, 4))
    # This hook, relu's hook, the root's output hook, end hook and pre-hook; at first 3 other modules, too.
    assert during == [8]
    assert set(read_run(hook).names()) == {"relu_output_0"}


def test_a_module_called_twice_gives_two_rows_with_the_call_index(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.relu = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: torch.Tensor) -> Any:
            return self.relu(self.fc(self.relu(self.fc(x))))

    hook, model = make_hook(include_collections=["outputs", "inputs"]), Twice()
    hook.register_module(model)
    for _ in range(2):
        hook.step()
        y = model(torch.randn(2, 4))
    run = read_run(hook)
    assert [(row["step"], row["call"]) for row in run.of("relu_output_0")] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["call"] for row in run.of("fc_input_0")] == [0, 1, 0, 1]
    assert np.array_equal(run.value("relu_output_0", 1, call=1), y.detach().numpy())


def test_a_module_that_is_first_called_later_is_captured_from_then_on(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"logits": x * 2}

    class Warms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.ready = Head(), False

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(x) if self.ready else x

    hook, model = make_hook(include_regex="head_output_logits"), Warms()
    hook.register_module(model)
    for step in range(4):
        model.ready = step >= 1
        hook.step()
        model(torch.ones(2))
    assert read_run(hook).steps("head_output_logits") == [1, 2, 3]


def test_inputs_are_those_before_the_module_changes_them(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=["inputs", "outputs"]), Net()
    hook.register_module(model)
    x = torch.randn(5, 4)
    before = model.fc1(x).detach().numpy()
    model(x)
    run = read_run(hook)
    assert (before < 0).any()
    assert np.array_equal(run.value("fc1_output_0", 0), before)
    assert np.array_equal(run.value("relu_input_0", 0), before)
    assert np.array_equal(run.value("relu_output_0", 0), np.maximum(before, 0))


def test_inputs_given_by_keyword_go_by_their_name(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return x * mask * scale

    hook, model = make_hook(include_collections=["inputs"]), Named()
    hook.register_module(model)
    model(torch.ones(2), mask=torch.zeros(2), scale=2.0)
    assert read_run(hook).names() == ["Named_input_0", "Named_input_mask"]


def test_a_pattern_for_a_name_that_only_the_forward_tells_is_found(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 2), nn.Identity()

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"logits": self.head(self.body(x)), "seventh": (0, 0, 0, 0, 0, 0, x)}

    hook, model, during = make_hook(include_regex=["output_logits", "seventh.6"]), Named(), []
    hook.register_module(model)
    model.body.register_forward_hook(lambda *_: during.append(hooks_on(model)))
    for _ in range(3):
        hook.step()
        model(torch.ones(1, 2))
    run = read_run(hook)
    assert run.steps("Named_output_logits") == run.steps("Named_output_seventh.6") == [0, 1, 2]
    # all modules in the first step, then only those with a selected output
    assert during[0] > during[1] == during[2]


def test_a_loss_that_the_model_returns_is_a_loss(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.fc(x)
            return {"loss": y.square().mean(), "logits": y}

    hook, model = make_hook(), Own()
    hook.register_module(model)
    model(torch.randn(2, 4))
    run = read_run(hook)
    assert [(row["name"], row["kind"]) for row in run.rows] == [("Own_output_loss", "loss")]


def test_two_criteria_of_one_class_have_names_of_their_own(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model, one, two = make_hook(), Net(), nn.MSELoss(), nn.MSELoss()
    hook.register_module(model)
    hook.register_loss(one)
    hook.register_loss(two)
    y = model(torch.randn(2, 4))
    one(y, torch.zeros_like(y))
    two(y, torch.ones_like(y))
    two(y, torch.ones_like(y))
    run = read_run(hook)
    assert [row["call"] for row in run.of("MSELoss_output_0")] == [0]
    assert [row["call"] for row in run.of("MSELoss_1_output_0")] == [0, 1]
    assert set(run.trial.tensor_names(collection="losses")) == {"MSELoss_output_0", "MSELoss_1_output_0"}


def test_a_criterion_inside_the_model_is_captured_under_both_names(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.objective = nn.Linear(4, 2), nn.MSELoss()

        def forward(self, x: torch.Tensor) -> Any:
            y = self.fc(x)
            return self.objective(y, torch.zeros_like(y))

    hook, model = make_hook(include_collections=["outputs"]), Whole()
    hook.register_module(model)
    hook.register_loss(model.objective)
    model(torch.randn(2, 4))
    names = read_run(hook).names()
    assert "MSELoss_output_0" in names
    assert "objective_output_0" in names


def test_a_model_that_is_its_own_loss_is_both(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Energy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().mean()

    hook, model = make_hook(include_collections=["outputs"]), Energy()
    hook.register_module(model)
    hook.register_loss(model)
    for _ in range(2):
        hook.step()
        model(torch.randn(2, 4))
    run = read_run(hook)
    assert {(row["name"], row["kind"], row["step"]) for row in run.rows} >= {("Energy_output_0", "loss", 1)}
    assert hooks_on(model) == 0


class Checkpointed(nn.Module):
    """A model that recomputes its block in backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_in_backward_is_not_captured_again(
    make_hook: MakeHook, read_run: ReadRun, reentrant: bool
) -> None:
    hook, model = make_hook(include_collections=["outputs"]), Checkpointed(reentrant)
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    run = read_run(hook)
    for name in ("block.0_output_0", "block.1_output_0", "block.2_output_0", "block_output_0"):
        assert [(row["step"], row["call"]) for row in run.of(name)] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("private_api", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_inside_the_forward_captures_each_module_once(
    make_hook: MakeHook,
    read_run: ReadRun,
    monkeypatch: pytest.MonkeyPatch,
    reentrant: bool,
    private_api: bool,
) -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Checkpointed(reentrant)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.inner(x)
            y.sum().backward()  # as for a gradient penalty: recomputes while module hooks are attached
            return y.detach()

    if not private_api:
        monkeypatch.setattr("tdcore.hooks.pytorch.forward.module_hooks.graph_task", None)
    hook, model = make_hook(include_collections=["outputs"]), Penalty()
    hook.register_module(model)
    model(torch.randn(2, 4))
    run = read_run(hook)
    for name in ("inner.block.0_output_0", "inner.block.1_output_0", "inner.block.2_output_0"):
        assert [row["call"] for row in run.of(name)] == [0]


def test_a_checkpointed_root_is_one_step(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["outputs"]), Net()
    hook.register_module(model)
    x = torch.randn(2, 4, requires_grad=True)
    checkpoint(model, x, use_reentrant=False).sum().backward()
    assert hook.global_step == 0


def test_a_forward_that_fails_leaves_no_hook_behind_when_its_step_is_over(make_hook: MakeHook) -> None:
    class Fails(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.fc1(x)
            raise RuntimeError("the user's own")

    save = SaveConfig(save_steps=[0], end_step=0)
    hook, model = make_hook(include_collections=["outputs"], save_config=save), Fails()
    hook.register_module(model)
    with pytest.raises(RuntimeError, match="the user's own"):
        model(torch.randn(2, 4))
    hook.step()
    assert hooks_on(model) == 1
