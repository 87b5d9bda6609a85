"""Weights, gradients, optimizer state: when they are captured, for which step, under which name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore import modes
from tdcore.config.reduction_config import ReductionConfig
from tdcore.config.save_config import SaveConfig
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun
from .models import Net, train

GRADIENT = "gradient/Net_fc1.weight"
WEIGHT = "Net_fc1.weight"
BOTH = ["weights", "gradients"]


def notes(hook: Hook) -> dict[str, Any]:
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    found: dict[str, Any] = document["attempts"]["0"]
    return found


def test_weights_of_a_step_are_one_native_call_and_gradients_another(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    train(model, optimizer, steps=3)
    assert hook.counters().captures == 3 * 2


def test_an_optimizer_is_found_by_itself(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    train(model, torch.optim.AdamW(model.parameters()), steps=2)
    run = read_run(hook)
    assert run.steps(GRADIENT) == [0, 1]
    assert run.steps(WEIGHT) == [0, 1]


def test_an_optimizer_of_another_model_pays_for_nothing(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model, other = make_hook(include_collections=BOTH), Net(), Net()
    hook.register_module(model)
    foreign = torch.optim.SGD(other.parameters(), lr=0.1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 4)).sum().backward()
    other(torch.randn(2, 4)).sum().backward()
    foreign.step()
    assert hook.counters().tensors == 2  # the weights at the end of the forward
    assert model.fc1.weight.grad is not None
    gradient = model.fc1.weight.grad.clone()
    own.step()
    assert np.array_equal(read_run(hook).value(GRADIENT, 0), gradient.numpy())


def test_accumulated_gradients_are_captured_whole_under_the_step_whose_optimizer_used_them(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH, save_config=SaveConfig(save_interval=2)), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    wholes = []
    for _ in range(3):
        optimizer.zero_grad()
        for _ in range(4):
            model(torch.randn(5, 4)).square().mean().backward()
        assert model.fc1.weight.grad is not None
        wholes.append(model.fc1.weight.grad.clone().numpy())
        optimizer.step()
    run = read_run(hook)
    assert run.steps(GRADIENT) == run.steps(WEIGHT) == [0, 2]
    assert np.array_equal(run.value(GRADIENT, 0), wholes[0])
    assert np.array_equal(run.value(GRADIENT, 2), wholes[2])


def test_a_parameter_without_gradient_is_absent_and_not_zero(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.used(x)

    hook, model = make_hook(include_collections=BOTH), Partly()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    (row,) = run.of("gradient/Partly_unused.weight")
    assert (row["status"], row["count"]) == ("absent", None)
    assert run.of("gradient/Partly_used.weight")[0]["status"] == "ok"
    assert run.of("Partly_unused.weight")[0]["status"] == "ok"


def test_a_frozen_parameter_is_listed_and_has_no_gradient_row_until_it_trains(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    model.fc1.requires_grad_(False)
    hook.register_module(model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1)
    train(model, optimizer)
    assert hook._notes["frozen"] == ["Net_fc1.weight", "Net_fc1.bias"]
    model.fc1.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.fc1.parameters())})
    train(model, optimizer)
    run = read_run(hook)
    assert run.steps(WEIGHT) == [0, 1]
    assert run.steps(GRADIENT) == [1]
    assert notes(hook)["frozen"] == []


def test_two_optimizers_pay_for_their_own_parameters(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=[*BOTH, "hyperparameters"]), Net()
    hook.register_module(model)
    one = torch.optim.SGD(model.fc1.parameters(), lr=0.1)
    two = torch.optim.SGD(model.fc2.parameters(), lr=0.2)
    hook.register_optimizer(one)
    hook.register_optimizer(two)
    for _ in range(2):
        one.zero_grad()
        two.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        one.step()
        two.step()
    run = read_run(hook)
    for name in (WEIGHT, GRADIENT, "Net_fc2.weight", "gradient/Net_fc2.weight"):
        assert run.steps(name) == [0, 1]
        assert {row["status"] for row in run.of(name)} == {"ok"}
    assert run.value("optimizer/group_0/lr", 0) == 0.1
    assert run.value("optimizer_1/group_0/lr", 0) == 0.2


def test_an_optimizer_inside_backward_gives_every_gradient(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    seen: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def step(one: torch.Tensor, name: str = name, optimizer: torch.optim.Optimizer = optimizer) -> None:
            assert one.grad is not None
            seen[name] = one.grad.clone()
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        seen.clear()
        model(torch.randn(5, 4)).square().mean().backward()
    run = read_run(hook)
    for name, gradient in seen.items():
        assert run.steps(f"gradient/Net_{name}") == [0, 1]
        assert np.array_equal(run.value(f"gradient/Net_{name}", 1), gradient.numpy())


def test_without_any_optimizer_gradients_are_those_that_the_last_backward_of_a_step_left(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    gradients, weights = [], []
    for _ in range(3):
        weights.append(model.fc1.weight.detach().clone().numpy())
        output = model(torch.randn(5, 4))
        model.zero_grad()
        output.square().mean().backward()
        assert model.fc1.weight.grad is not None
        gradients.append(model.fc1.weight.grad.clone().numpy())
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-0.1)
    run = read_run(hook)
    for step in range(3):
        assert np.array_equal(run.value(GRADIENT, step), gradients[step])
        assert np.array_equal(run.value(WEIGHT, step), weights[step])
    assert run.steps(GRADIENT) == run.steps(WEIGHT) == [0, 1, 2]
    assert sum("no optimizer is known for Net" in message for message in caplog.messages) == 1


def test_a_backward_that_no_update_followed_belongs_to_the_step_of_the_next_update(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    for skipped in (False, True, False):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        if not skipped:
            optimizer.step()
    assert model.fc1.weight.grad is not None
    run = read_run(hook)
    assert [(row["step"], row["status"]) for row in run.of(GRADIENT)] == [(0, "ok"), (1, "ok")]
    assert np.array_equal(run.value(GRADIENT, 1), model.fc1.weight.grad.numpy())
    assert run.steps(WEIGHT) == [0, 1]


@pytest.mark.parametrize("cleared", [False, True])
def test_a_gradient_that_no_update_used_has_a_value_while_it_is_there_and_else_the_reason(
    make_hook: MakeHook, read_run: ReadRun, cleared: bool
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    gradients = []
    for skipped in (False, True, False):
        hook.step()
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        assert model.fc1.weight.grad is not None
        gradients.append(model.fc1.weight.grad.clone().numpy())
        if not skipped:
            optimizer.step()
        elif cleared:
            optimizer.zero_grad()
    run = read_run(hook)
    found = [(row["step"], row["status"], row["reason"]) for row in run.of(GRADIENT)]
    assert found == [
        (0, "ok", None),
        (1, "absent", "cleared") if cleared else (1, "ok", None),
        (2, "ok", None),
    ]
    for step in (0, 2) if cleared else (0, 1, 2):
        assert np.array_equal(run.value(GRADIENT, step), gradients[step])
    assert run.steps(WEIGHT) == [0, 1, 2]


def test_weights_of_evaluation_steps_come_with_the_forward(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    with torch.no_grad():
        model(torch.randn(1, 4))
    model.eval()
    model(torch.randn(1, 4))
    model.train()
    train(model, optimizer)
    run = read_run(hook)
    assert run.steps(WEIGHT) == [0, 1, 2, 3]
    assert run.steps(GRADIENT) == [0, 3]
    assert [row["mode"] for row in run.of(WEIGHT)] == ["TRAIN", "PREDICT", "EVAL", "TRAIN"]


def test_evaluation_between_forward_and_step_does_not_take_the_gradients_label(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_optimizer(optimizer)
    model(torch.randn(5, 4)).square().mean().backward()
    hook.set_mode(modes.EVAL)
    with torch.no_grad():
        model(torch.randn(5, 4))
    optimizer.step()
    assert [(row["step"], row["mode"]) for row in read_run(hook).of(GRADIENT)] == [(0, "TRAIN")]


def test_gradients_of_each_evaluation_of_a_closure_and_weights_of_the_first_are_captured(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.1)
    x = torch.randn(5, 4)
    start, gradients = model.fc1.weight.detach().clone(), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        torch.autograd.backward(loss)
        assert model.fc1.weight.grad is not None
        gradients.append(model.fc1.weight.grad.clone())
        return loss

    optimizer.step(closure)
    assert len(gradients) > 2
    run = read_run(hook)
    assert [(row["step"], row["call"]) for row in run.of(GRADIENT)] == [
        (0, call) for call in range(len(gradients))
    ]
    for call, gradient in enumerate(gradients):
        assert np.array_equal(run.value(GRADIENT, 0, call=call), gradient.numpy())
    assert np.array_equal(run.value(GRADIENT, 0), gradients[0].numpy())
    assert run.steps(WEIGHT) == [0]
    assert np.array_equal(run.value(WEIGHT, 0), start.numpy())


def test_optimizer_state_and_hyperparameters_are_captured_when_asked(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["optimizer_variables", "hyperparameters"]), Net()
    hook.register_module(model)
    groups: list[dict[str, Any]] = [
        {"params": model.fc1.parameters(), "lr": 0.5},
        {"params": model.fc2.parameters()},
    ]
    optimizer = torch.optim.SGD(
        groups,
        lr=0.25,
        momentum=0.9,
        weight_decay=0.01,
    )
    train(model, optimizer)
    entering = optimizer.state[model.fc1.weight]["momentum_buffer"].clone()
    train(model, optimizer)
    run = read_run(hook)
    assert np.array_equal(run.value("optimizer/momentum_buffer/Net_fc1.weight", 1), entering.numpy())
    assert [run.value(f"optimizer/group_{group}/lr", 1) for group in (0, 1)] == [0.5, 0.25]
    assert run.value("optimizer/group_1/momentum", 0) == 0.9
    assert run.value("optimizer/group_1/weight_decay", 0) == 0.01
    assert run.of("optimizer/group_0/lr")[0]["origin"] == "SGD"
    assert WEIGHT not in run.names()


def test_gradients_of_a_fused_step_are_unscaled_and_the_scale_is_recorded(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = Net()
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    except (RuntimeError, TypeError):
        pytest.skip("this version of torch has no fused optimizer for CPU")
    hook = make_hook(include_collections=["gradients"])
    hook.register_module(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
    loss = model(torch.randn(5, 4)).square().mean()
    expected = torch.autograd.grad(loss, [model.fc1.weight], retain_graph=True)[0]
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    run = read_run(hook)
    assert np.array_equal(run.value(GRADIENT, 0), expected.numpy())
    assert run.value("optimizer/grad_scale", 0) == 2048.0


def test_gradients_of_a_plain_step_with_a_scaler_are_unscaled(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=["gradients"]), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
    loss = model(torch.randn(5, 4)).square().mean()
    expected = torch.autograd.grad(loss, [model.fc1.weight], retain_graph=True)[0]
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    assert np.allclose(read_run(hook).value(GRADIENT, 0), expected.numpy(), rtol=1e-6, atol=0)


def test_tied_parameters_are_captured_once_and_their_other_names_kept(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.decode.weight = self.encode.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.decode(self.encode(x))

    hook, model = make_hook(include_collections=BOTH), Tied()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    run = read_run(hook)
    assert set(run.names()) == {"Tied_encode.weight", "gradient/Tied_encode.weight"}
    assert notes(hook)["aliases"] == {"Tied_encode.weight": ["Tied_decode.weight"]}


def test_replaced_parameters_and_modules_are_captured_as_they_are_now(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=[*BOTH, "outputs"]), Net()
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model.load_state_dict(
        {name: torch.ones_like(value) for name, value in model.state_dict().items()}, assign=True
    )
    train(model, torch.optim.SGD(model.parameters(), lr=0.0))
    model.fc2 = nn.Linear(8, 5)
    model.extra = nn.Linear(1, 1)
    train(model, torch.optim.SGD(model.parameters(), lr=0.0))
    run = read_run(hook)
    assert np.array_equal(run.value(WEIGHT, 1), np.ones((8, 4), dtype=np.float32))
    assert [row["shape"] for row in run.of("gradient/Net_fc2.weight")] == [[3, 8], [3, 8], [5, 8]]
    assert run.steps("Net_extra.weight") == [2]
    assert [row["shape"] for row in run.of("fc2_output_0")] == [[5, 3], [5, 3], [5, 5]]


def test_frozen_parameters_that_no_optimizer_owns_go_with_the_first_that_steps(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    model.fc1.requires_grad_(False)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
    train(model, optimizer, steps=3)
    model.fc1.weight.requires_grad_(True)  # has gradients from here on, but no optimizer holds it
    train(model, optimizer, steps=2)
    run = read_run(hook)
    assert run.steps(WEIGHT) == run.steps("gradient/Net_fc2.weight") == [0, 1, 2, 3, 4]
    assert [(row["step"], row["status"]) for row in run.of(GRADIENT)] == [(3, "ok"), (4, "ok")]


def test_an_optimizer_that_comes_later_pays_for_what_it_owns(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=[*BOTH, "optimizer_variables"]), Net()
    hook.register_module(model)
    one = torch.optim.SGD(model.fc1.parameters(), lr=0.1, momentum=0.9)
    train(model, one, steps=3)
    two = torch.optim.SGD(model.fc2.parameters(), lr=0.1, momentum=0.9)
    hook.register_optimizer(two)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        one.step()
        two.step()
    run = read_run(hook)
    for name in (WEIGHT, GRADIENT, "Net_fc2.weight", "gradient/Net_fc2.weight"):
        assert run.steps(name) == [0, 1, 2, 3, 4, 5]
    assert run.steps("optimizer/momentum_buffer/Net_fc1.weight") == [1, 2, 3, 4, 5]
    assert run.steps("optimizer_1/momentum_buffer/Net_fc2.weight") == [4, 5]


def test_optimizer_state_can_be_reduced_to_its_product(make_hook: MakeHook, read_run: ReadRun) -> None:
    reduction = ReductionConfig(reductions=["prod"])
    hook = make_hook(include_collections=["weights", "optimizer_variables"], reduction_config=reduction)
    model = Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, steps=2)
    entering = optimizer.state[model.fc2.bias]["momentum_buffer"].double().prod()
    train(model, optimizer)
    run = read_run(hook)
    assert run.value("optimizer/momentum_buffer/Net_fc2.bias/prod", 2) == entering.item()


def test_what_the_last_step_owes_is_captured_at_the_end(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    model(torch.randn(5, 4)).square().mean().backward()
    run = read_run(hook)
    assert run.of(GRADIENT)[0]["status"] == "ok"
    assert run.steps(WEIGHT) == [0]
