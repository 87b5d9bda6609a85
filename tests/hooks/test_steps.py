"""The rule of steps: training loops of public programs, rebuilt small. tests/loops generates many more."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tdcore.modes import ModeKeys

from .conftest import MakeHook, ReadRun
from .models import Net

WEIGHT, GRADIENT = "Net_fc1.weight", "gradient/Net_fc1.weight"


def x() -> torch.Tensor:
    return torch.randn(2, 4)


@pytest.mark.parametrize("interval", [1, 2, 10])
def test_rows_of_a_closure_are_those_of_its_step_at_every_interval(
    make_hook: MakeHook, read_run: ReadRun, interval: int
) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=interval))
    hook.register_module(model)
    seen: list[list[tuple[Any, Any]]] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        weight = model.fc1.weight.detach().clone()
        loss: torch.Tensor = model(data).square().mean()
        hook.record_tensor_value("loss", loss)
        loss.backward()
        assert model.fc1.weight.grad is not None
        seen[-1].append((weight, model.fc1.weight.grad.clone()))
        return loss

    for _ in range(interval + 1):
        seen.append([])
        data = x()
        optimizer.step(closure)
    run = read_run(hook)
    assert sorted(set(run.steps(GRADIENT))) == [0, interval]
    for step in (0, interval):
        assert np.array_equal(run.value(WEIGHT, step), seen[step][0][0].numpy())
        assert [row["call"] for row in run.of(GRADIENT) if row["step"] == step] == list(
            range(len(seen[step]))
        )
        assert len([row for row in run.of("loss_output_0") if row["step"] == step]) == len(seen[step])
        for call, (_, gradient) in enumerate(seen[step]):
            assert np.array_equal(run.value(GRADIENT, step, call), gradient.numpy())


def by_hand_data(model: Net) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)


def by_hand_no_grad(model: Net) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.1 * parameter.grad)


def clear_none(model: Net) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def clear_in_place(model: Net) -> None:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()


@pytest.mark.parametrize("clear", [clear_none, clear_in_place, Net.zero_grad])
@pytest.mark.parametrize("update", [by_hand_data, by_hand_no_grad])
@pytest.mark.parametrize("first", [True, False])
def test_gradients_of_updates_by_hand_are_those_of_each_backward(
    make_hook: MakeHook, read_run: ReadRun, clear: Any, update: Any, first: bool
) -> None:
    model, hook, seen = Net(), make_hook(include_collections=["weights", "gradients"]), []
    hook.register_module(model)
    for _ in range(3):
        if first:
            clear(model)
        weight = model.fc1.weight.detach().clone()
        model(x()).square().mean().backward()
        assert model.fc1.weight.grad is not None
        seen.append((weight, model.fc1.weight.grad.clone()))
        update(model)
        if not first:
            clear(model)
    run = read_run(hook)
    assert run.steps(GRADIENT) == [0, 1, 2]
    for step, (weight, gradient) in enumerate(seen):
        assert np.array_equal(run.value(GRADIENT, step), gradient.numpy())
        assert np.array_equal(run.value(WEIGHT, step), weight.numpy())
    assert "no optimizer is known" in run.trial.notes()["not_captured"][0]


def test_a_model_that_is_gone_before_the_hook_is_closed_keeps_its_last_gradients(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model, hook = Net(), make_hook(include_collections=["gradients"])
    hook.register_module(model)
    model(x()).square().mean().backward()
    gradient = model.fc1.weight.grad
    del model
    assert gradient is not None
    assert np.array_equal(read_run(hook).value(GRADIENT, 0), gradient.numpy())


def test_parameters_of_any_name_are_weights(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.cls_token = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.zeros(3))
            self.in_bias = nn.Parameter(torch.zeros(3))

        def forward(self, value: torch.Tensor) -> Any:
            return value @ self.kernel + self.cls_token + self.in_bias

    model, hook = Named(), make_hook(include_collections=["weights"])
    hook.register_module(model)
    model(x()).sum().backward()
    assert read_run(hook).names() == ["Named_kernel", "Named_cls_token"]


def test_an_average_inside_of_the_model_has_no_gradient_rows_and_one_note(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.average = copy.deepcopy(self.net)

        def forward(self, value: torch.Tensor) -> Any:
            return self.net(value)

    model, hook = Averaged(), make_hook(save_all=True)
    optimizer = torch.optim.SGD(model.net.parameters(), lr=0.1)
    hook.register_module(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(x()).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, one in zip(model.average.parameters(), model.net.parameters(), strict=True):
                mean.lerp_(one, 0.1)
    run = read_run(hook)
    assert not [name for name in run.names() if name.startswith("gradient/Averaged_average")]
    assert run.steps("Averaged_average.fc1.weight") == [0, 1, 2]
    notes = run.trial.notes()
    assert list(notes["never_called"]) == ["average"]
    assert "not_captured" not in notes
    assert "Averaged_average.fc1.weight" in notes["not_owned"]
    assert "no optimizer holds" in run.trial.why_absent("gradient/Averaged_average.fc1.weight", 1)


def test_rollouts_and_generation_are_steps_of_their_own(make_hook: MakeHook, read_run: ReadRun) -> None:
    model, hook = (
        Net(),
        make_hook(include_collections=["gradients", "outputs"], save_config=td.SaveConfig(save_interval=2)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    for _ in range(4):
        for _ in range(5):
            with torch.no_grad():
                model(x())
        model.eval()
        with torch.no_grad():
            model(x())
        model.train()
        optimizer.zero_grad()
        model(x()).sum().backward()
        optimizer.step()
    run = read_run(hook)
    assert run.trial.steps(mode=ModeKeys.TRAIN) == [0, 2]
    assert run.trial.steps(mode=ModeKeys.EVAL) == [0, 2]
    assert len(run.trial.steps(mode=ModeKeys.PREDICT)) == 10
    assert all(row["status"] == "ok" for row in run.of(GRADIENT))


def test_evaluations_with_gradients_between_forward_and_backward_of_networks_in_turns_stay_evaluations(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    models, hook = [Net(), Net()], make_hook(include_collections=["outputs"])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for model in models:
        hook.register_module(model)
    for turn in range(8):
        loss = models[turn % 2](x()).sum()
        for model in models:
            model.eval()(x())
            model.train()
        loss.backward()
        optimizers[turn % 2].step()
    run = read_run(hook)
    assert len(run.trial.steps(mode=ModeKeys.TRAIN)) == 8
    assert len(run.trial.steps(mode=ModeKeys.EVAL)) == 8


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("clear_first", [True, False])
def test_roots_may_be_registered_and_run_in_any_order(
    make_hook: MakeHook, read_run: ReadRun, order: tuple[int, ...], clear_first: bool
) -> None:
    parts = [nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)]
    optimizers = [torch.optim.Adam(part.parameters(), lr=0.1) for part in parts]
    hook, seen = make_hook(save_all=True), []
    for at in order:
        hook.register_module(parts[at])
    names = {at: "Linear" + f"_{place}" * (place > 0) for place, at in enumerate(order)}
    for _ in range(3):
        if clear_first:
            for optimizer in optimizers:
                optimizer.zero_grad()
        value = x()
        for part in parts:
            value = part(value)
        value.square().mean().backward()
        seen.append([part.weight.grad.clone() for part in parts if part.weight.grad is not None])
        for optimizer in optimizers:
            optimizer.step()
            if not clear_first:
                optimizer.zero_grad()
    run = read_run(hook)
    for step, gradients in enumerate(seen):
        for at, gradient in enumerate(gradients):
            assert np.array_equal(run.value(f"gradient/{names[at]}_weight", step), gradient.numpy())
    states = [name for name in run.names() if "/exp_avg/" in name]
    assert {name.rpartition("/")[2] for name in states} == {
        f"{name}_{end}" for name in names.values() for end in ("weight", "bias")
    }


def test_an_optimizer_class_of_the_script_s_own_has_its_gradients(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Own:
        def __init__(self, parameters: Any) -> None:
            self.parameters = list(parameters)

        def step(self) -> None:
            for parameter in self.parameters:
                parameter.data -= 0.1 * parameter.grad.data

        def zero_grad(self) -> None:
            for parameter in self.parameters:
                parameter.grad = None

    model, hook, seen = Net(), make_hook(include_collections=["gradients"]), []
    optimizer = Own(model.parameters())
    hook.register_module(model)
    for _ in range(4):
        model(x()).square().mean().backward()
        assert model.fc1.weight.grad is not None
        seen.append(model.fc1.weight.grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    run = read_run(hook)
    assert run.steps(GRADIENT) == [0, 1, 2, 3]
    assert all(np.array_equal(run.value(GRADIENT, at), one.numpy()) for at, one in enumerate(seen))


def test_a_model_that_is_called_twice_before_a_backward_has_one_step_per_update(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model, criterion = Net(), nn.MSELoss()
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(4):
        optimizer.zero_grad()
        criterion(model(x()), model(x())).backward()
        optimizer.step()
    run = read_run(hook)
    assert run.steps(GRADIENT) == run.steps("MSELoss_output_0") == [0, 2]
    assert [(row["step"], row["call"]) for row in run.of("Net_output_0")] == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_a_forward_that_calls_itself_is_one_step(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(4, 4)

        def forward(self, value: torch.Tensor, again: bool = True) -> Any:
            return self.fc1(self(value, again=False) if again else value)

    model, hook = Twice(), make_hook(include_collections=["gradients", "outputs"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    for _ in range(3):
        optimizer.zero_grad()
        model(x()).sum().backward()
        optimizer.step()
    run = read_run(hook)
    assert run.steps("gradient/Twice_fc1.weight") == [0, 1, 2]
    assert run.steps("fc1_output_0") == run.steps("Twice_output_0") == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("forward_too", [True, False])
def test_a_model_that_trains_through_another_method_has_rows_of_every_step(
    make_hook: MakeHook, read_run: ReadRun, forward_too: bool
) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, value: torch.Tensor) -> Any:
            return self.head(self.body(value))

        def compute_loss(self, value: torch.Tensor) -> Any:
            return self.head(self.body(value).relu()).square().mean()

    model, hook, seen = Policy(), make_hook(include_collections=["weights", "gradients", "outputs"]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    for _ in range(4):
        optimizer.zero_grad()
        model.compute_loss(x()).backward()
        assert model.body.weight.grad is not None
        seen.append(model.body.weight.grad.clone())
        optimizer.step()
        if forward_too:
            with torch.no_grad():
                model.eval()(x())
            model.train()
    run = read_run(hook)
    found = [row["mode_step"] for row in run.of("gradient/Policy_body.weight")]
    assert found == [0, 1, 2, 3]
    for step, gradient in enumerate(seen):
        value = run.trial.tensor("gradient/Policy_body.weight").value(step, mode=ModeKeys.TRAIN)
        assert np.array_equal(value, gradient.numpy())
    outputs = [row["mode_step"] for row in run.of("body_output_0") if row["mode"] == "TRAIN"]
    assert outputs == [0, 1, 2, 3]


def test_a_loss_of_the_training_is_not_that_of_an_evaluation_in_between(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model, criterion, hook = Net(), nn.MSELoss(), make_hook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    hook.register_loss(criterion)
    expected: list[tuple[str, float]] = []
    for _ in range(3):
        optimizer.zero_grad()
        output = model(x())
        model.eval()
        with torch.no_grad():
            expected.append(("EVAL", criterion(model(x()), torch.zeros(2, 3)).item()))
        model.train()
        loss = criterion(output, torch.zeros(2, 3))
        expected.append(("TRAIN", loss.item()))
        loss.backward()
        optimizer.step()
    run = read_run(hook)
    found = [(row["mode"], row["max"]) for row in run.of("MSELoss_output_0")]
    assert sorted(found) == sorted(expected)


def test_an_optimizer_that_steps_in_no_saved_step_is_named(make_hook: MakeHook, read_run: ReadRun) -> None:
    one, two = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1), torch.optim.Adam(two.parameters(), lr=0.1)]
    hook = make_hook(include_collections=["gradients"], save_config=td.SaveConfig(save_interval=2))
    hook.register_module(one)
    hook.register_module(two)
    for _ in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
            two(one(x())).sum().backward()
            optimizer.step()
    notes = read_run(hook).trial.notes()["not_captured"]
    assert any("the Adam of Linear_1 did not step in the first" in note for note in notes)


def test_compiling_after_registering_leaves_the_weights_that_the_forward_saw(
    make_hook: MakeHook, read_run: ReadRun, fresh_compiler: None
) -> None:
    model, hook, seen = Net(), make_hook(include_collections=["weights", "gradients"]), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        optimizer.zero_grad()
        seen.append(model.fc1.weight.detach().clone())
        compiled(x()).sum().backward()
        optimizer.step()
    run = read_run(hook)
    for step, weight in enumerate(seen):
        assert np.array_equal(run.value(WEIGHT, step), weight.numpy())


def test_the_clock_of_the_older_library_counts_forwards(make_hook: MakeHook, read_run: ReadRun) -> None:
    model, hook = Net(), make_hook(include_collections=["gradients"], clock="forward")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            model(x()).sum().backward()
        optimizer.step()
    run = read_run(hook)
    assert [(row["step"], row["status"], row["reason"]) for row in run.of(GRADIENT)] == [
        (0, "absent", "accumulated"),
        (1, "ok", None),
        (2, "absent", "accumulated"),
        (3, "ok", None),
    ]


def test_an_unknown_clock_is_refused() -> None:
    with pytest.raises(ConfigError, match='clock must be "update" or "forward", got \'epoch\''):
        Hook("runs/never", clock="epoch", dry_run=True)  # type: ignore[arg-type]
