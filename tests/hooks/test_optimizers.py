"""Optimizers of every kind: their state, their parameters, their steps, and the replacement of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tdcore as td
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun
from .models import Net
from .twins import Record, check_values, run_twins

GRADIENT = "gradient/Net_fc1.weight"
WEIGHT = "Net_fc1.weight"
BOTH = ["weights", "biases", "gradients"]
STATE = [*BOTH, "optimizer_variables", "hyperparameters"]
FLAVOURS: dict[str, Any] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    "adam, foreach": (torch.optim.Adam, {"lr": 0.01, "foreach": True}),
    "adamw, fused": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
}


def note_all(record: Record, step: int, model: nn.Module, *what: str) -> None:
    """Record weights, gradients or both, under the names that the hook uses."""
    for name, parameter in model.named_parameters():
        if "weights" in what:
            record.note(f"Net_{name}", step, parameter)
        if "gradients" in what:
            record.note(f"gradient/Net_{name}", step, parameter.grad)


@pytest.mark.parametrize(("kind", "settings"), FLAVOURS.values(), ids=FLAVOURS)
@pytest.mark.supports("optimizer state", "values")
@pytest.mark.supports("optimizer state", "losses")
@pytest.mark.supports("fused optimizer", "values")
@pytest.mark.supports("fused optimizer", "losses")
@pytest.mark.supports("foreach optimizer", "values")
@pytest.mark.supports("foreach optimizer", "losses")
def test_state_is_that_which_enters_the_step_and_the_rate_that_of_the_scheduler(
    make_hook: MakeHook, read_run: ReadRun, kind: Any, settings: dict[str, Any]
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = kind(model.parameters(), **settings)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=5)
        if hook is not None:
            hook.register_module(model)
        for step in range(4):
            optimizer.zero_grad()
            note_all(record, step, model, "weights")
            for name, parameter in model.named_parameters():
                for key, value in optimizer.state.get(parameter, {}).items():
                    record.note(f"optimizer/{key}/Net_{name}", step, value)
            record.values["optimizer/group_0/lr", step] = np.float64(optimizer.param_groups[0]["lr"])
            loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            note_all(record, step, model, "gradients")
            optimizer.step()
            scheduler.step()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=STATE)
    reference = run_twins(training, hook)
    assert any("exp_avg_sq" in name or "momentum_buffer" in name for name, _ in reference.values)
    check_values(read_run(hook), reference)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.supports("set_to_none", "values")
@pytest.mark.supports("set_to_none", "losses")
def test_a_gradient_that_was_set_to_zero_is_a_value_and_one_set_to_none_is_absent(
    make_hook: MakeHook, read_run: ReadRun, set_to_none: bool
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        for step in range(3):
            optimizer.zero_grad(set_to_none=set_to_none)
            loss = model(torch.randn(5, 4)).square().mean()
            if step == 1:
                loss = loss.detach() + model.fc2.bias.sum()  # the other parameters get no gradient
            loss.backward()
            note_all(record, step, model, "gradients")
            optimizer.step()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=BOTH)
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    assert [row["status"] for row in run.of(GRADIENT)] == ["ok", "absent" if set_to_none else "ok", "ok"]
    assert set_to_none or not run.value(GRADIENT, 1).any()


@pytest.mark.parametrize("saved", [[0, 2], [0, 1, 2, 3, 4]])
@pytest.mark.supports("gradient accumulation", "values")
def test_a_step_without_a_backward_has_weights_and_no_gradient_of_another_step(
    make_hook: MakeHook, read_run: ReadRun, saved: list[int]
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        for step in range(5):
            record.note("Net_fc1.weight", step, model.fc1.weight)
            loss = model(torch.randn(5, 4)).square().mean()
            record.losses.append(loss.detach())
            optimizer.zero_grad()
            if step != 2:
                loss.backward()
                record.note("gradient/Net_fc1.weight", step, model.fc1.weight.grad)
            optimizer.step()

    hook = make_hook(
        include_collections=["weights", "gradients"], save_config=td.SaveConfig(save_steps=saved, end_step=0)
    )
    reference = run_twins(training, hook)
    run = read_run(hook)
    assert run.steps("gradient/Net_fc1.weight") == run.steps("Net_fc1.weight") == saved
    rows = run.of("gradient/Net_fc1.weight")
    assert [row["step"] for row in rows if row["status"] == "absent"] == [2]
    assert {row["reason"] for row in rows if row["step"] == 2} == {"no_backward"}
    for step in saved:
        assert np.array_equal(run.value("Net_fc1.weight", step), reference.of("Net_fc1.weight")[step])
        if step != 2:
            own = reference.of("gradient/Net_fc1.weight")[step]
            assert np.array_equal(run.value("gradient/Net_fc1.weight", step), own)


@pytest.mark.supports("gradient accumulation", "values")
def test_a_forward_without_a_backward_is_a_further_call_of_the_step_that_follows(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        step = 0
        for iteration in range(5):
            note_all(record, step, model, "weights")
            loss = model(torch.randn(5, 4)).square().mean()
            record.losses.append(loss.detach())
            if iteration != 2:
                optimizer.zero_grad()
                loss.backward()
                note_all(record, step, model, "gradients")
                optimizer.step()
                step += 1

    hook = make_hook(include_collections=[*BOTH, "outputs"])
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    assert run.steps(WEIGHT) == run.steps(GRADIENT) == [0, 1, 2, 3]
    calls = [(row["step"], row["call"]) for row in run.of("Net_output_0")]
    assert calls == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)]


@pytest.mark.supports("optimizer with a closure", "values")
@pytest.mark.supports("optimizer with a closure", "losses")
def test_a_closure_optimizer_trains_the_same_and_gradients_of_every_evaluation_are_captured(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.1)
        if hook is not None:
            hook.register_module(model)
        for step in range(2):
            x, evaluations = torch.randn(5, 4), iter(range(100))
            note_all(record, 100 * step, model, "weights")

            def closure(
                x: torch.Tensor = x, step: int = step, evaluations: Iterator[int] = evaluations
            ) -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = model(x).square().mean()
                torch.autograd.backward(loss)
                note_all(record, 100 * step + next(evaluations), model, "gradients")
                record.losses.append(loss.detach())
                return loss

            optimizer.step(closure)

    hook = make_hook(include_collections=BOTH)
    reference = run_twins(training, hook)
    run = read_run(hook)
    assert len(reference.losses) > 4
    for (name, key), value in reference.values.items():
        step, call = divmod(key, 100)
        assert np.array_equal(run.value(name, step, call=call), value), (name, step, call)
    assert run.steps(WEIGHT) == [0, 1]
    assert len(run.of(GRADIENT)) == len(reference.losses)


@pytest.mark.supports("several optimizers", "values")
def test_an_optimizer_that_gets_the_parameters_after_its_first_step_updates_the_model_from_then_on(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model, other = make_hook(include_collections=BOTH), Net(), nn.Linear(4, 1)
    hook.register_module(model)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    other(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert hook.global_step == -1
    optimizer.add_param_group({"params": list(model.parameters())})
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    run = read_run(hook)
    assert run.steps(WEIGHT) == run.steps(GRADIENT) == [0, 1, 2]
    assert {row["status"] for row in run.of(GRADIENT)} == {"ok"}


class Pair(nn.Module):
    """A generator and a discriminator in one root."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Linear(2, 4)
        self.judge = nn.Linear(4, 1)

    def forward(self, noise: torch.Tensor) -> Any:
        return self.judge(torch.tanh(self.make(noise)))


@pytest.mark.supports("several optimizers", "values")
@pytest.mark.supports("several optimizers", "losses")
def test_two_optimizers_in_turn_give_the_gradients_that_each_steps_with(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Pair()
        judge = torch.optim.Adam(model.judge.parameters(), lr=0.1)
        groups: list[dict[str, Any]] = [
            {"params": [model.make.weight]},
            {"params": [model.make.bias], "lr": 0.5},
        ]
        make = torch.optim.Adam(groups, lr=0.1)
        if hook is not None:
            hook.register_module(model)
            hook.register_optimizer(judge)
            hook.register_optimizer(make)
        for step in range(6):
            turn, part, sign = (judge, "judge", 1.0) if step % 2 == 0 else (make, "make", -1.0)
            judge.zero_grad()
            make.zero_grad()
            loss = sign * model(torch.randn(5, 2)).mean()
            loss.backward()
            for name, parameter in getattr(model, part).named_parameters():
                record.note(f"Pair_{part}.{name}", step, parameter)
                record.note(f"gradient/Pair_{part}.{name}", step, parameter.grad)
            turn.step()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=STATE)
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    assert run.steps("optimizer_1/exp_avg/Pair_make.weight") == [3, 5]
    assert run.steps("optimizer/exp_avg/Pair_judge.weight") == [2, 4]
    assert [run.value(f"optimizer_1/group_{group}/lr", 1) for group in (0, 1)] == [0.1, 0.5]


@pytest.mark.supports("optimizer in backward", "values")
@pytest.mark.supports("optimizer in backward", "losses")
def test_optimizers_inside_backward_train_the_same_and_give_every_gradient(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        if hook is not None:
            hook.register_module(model)
        for name, parameter in model.named_parameters():
            optimizer = torch.optim.Adam([parameter], lr=0.1)

            def step(
                one: torch.Tensor, name: str = name, optimizer: torch.optim.Optimizer = optimizer
            ) -> None:
                record.note(f"gradient/Net_{name}", len(record.losses), one.grad)
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=[*BOTH, "microbatch_gradients"])
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    assert np.array_equal(run.value("microbatch_gradient/Net_fc1.weight", 2), run.value(GRADIENT, 2))


class Words(nn.Module):
    """An embedding whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 3, sparse=True)
        self.fc = nn.Linear(3, 1)

    def forward(self, words: torch.Tensor) -> Any:
        return self.fc(self.table(words)).mean()


@pytest.mark.supports("sparse gradients", "values")
@pytest.mark.supports("sparse gradients", "losses")
def test_a_sparse_gradient_is_skipped_by_name_and_its_values_stand_beside_it(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Words()
        optimizer = torch.optim.SparseAdam(model.table.parameters(), lr=0.1)
        rest = torch.optim.SGD(model.fc.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        for step in range(2):
            optimizer.zero_grad()
            rest.zero_grad()
            loss = model(torch.tensor([7, 3, 7, 7, 11 + step]))
            loss.backward()
            gradient = model.table.weight.grad
            assert gradient is not None
            assert not gradient.is_coalesced()
            dense = gradient.to_dense()
            record.note("dense", step, dense)
            record.note("gradient/Words_table.weight/values", step, dense[[3, 7, 11 + step]])
            record.note("gradient/Words_table.weight/indices", step, torch.tensor([[3, 7, 11 + step]]))
            optimizer.step()
            rest.step()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=BOTH, include_regex="/indices$")
    reference = run_twins(training, hook)
    run = read_run(hook)
    name = "gradient/Words_table.weight"
    check_values(run, reference, f"{name}/values", f"{name}/indices")
    assert {(row["status"], row["reason"]) for row in run.of(name)} == {("skipped", "sparse")}
    norms = np.sqrt([row["square_sum"] for row in run.of(f"{name}/values")])
    dense = [np.linalg.norm(value.astype(np.float64)) for value in reference.of("dense").values()]
    np.testing.assert_allclose(norms, dense, rtol=1e-12)


def test_a_dry_run_goes_over_sparse_gradients(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_all=True, dry_run=True), nn.Sequential(nn.Embedding(8, 3, sparse=True))
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([2])).sum().backward()
    optimizer.step()
    assert not hook._faults


@pytest.mark.supports("EMA copies", "values")
@pytest.mark.supports("EMA copies", "losses")
def test_an_averaged_copy_is_neither_captured_nor_counted(make_hook: MakeHook, read_run: ReadRun) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        for step in range(3):
            optimizer.zero_grad()
            note_all(record, step, model, "weights")
            loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            note_all(record, step, model, "gradients")
            optimizer.step()
            average.update_parameters(model)
            with torch.no_grad():
                record.losses.append(loss.detach() + average(torch.ones(1, 4)).sum())

    hook = make_hook(include_collections=[*BOTH, "outputs"])
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    assert hook.global_step == 2
    assert {name for name in run.names() if "module" in name} == set()
    assert len(run.of("fc1_output_0")) == 3


@pytest.mark.supports("several optimizers", "cost")
@pytest.mark.supports("GradScaler", "cost")
@pytest.mark.supports("fused optimizer", "cost")
def test_weights_of_a_step_are_one_native_call_and_scale_state_and_gradients_another(
    make_hook: MakeHook,
) -> None:
    hook, model = make_hook(include_collections=STATE, save_config=td.SaveConfig(save_interval=2)), Net()
    hook.register_module(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    hook.register_optimizer(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    calls = []
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        calls.append(hook.counters().captures)
    assert calls == [2, 2, 4, 4]


@pytest.mark.parametrize("saved", [1, 3])
def test_weights_that_a_script_changes_before_the_step_are_those_that_the_forward_saw(
    make_hook: MakeHook, read_run: ReadRun, saved: int
) -> None:
    def training(
        hook: Hook | None, record: Record
    ) -> None:  # sharpness-aware: moves uphill, then steps from the old weights
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if hook is not None:
            hook.register_module(model)
        for step, climbs in ((step, climbs) for step in range(6) for climbs in (True, False)):
            if climbs:
                note_all(record, step, model, "weights")
            loss = model(torch.randn(5, 4)).square().mean()
            loss.backward()
            if climbs:
                before = [parameter.detach().clone() for parameter in model.parameters()]
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.add_(parameter.grad, alpha=0.5)  # type: ignore[arg-type]
            else:
                for parameter, old in zip(model.parameters(), before, strict=True):
                    parameter.data = old
                note_all(record, step, model, "gradients")
                optimizer.step()
            optimizer.zero_grad()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=[*BOTH, "outputs"], save_config=td.SaveConfig(save_interval=saved))
    reference = run_twins(training, hook)
    run = read_run(hook)
    steps = list(range(0, 6, saved))
    assert run.steps(WEIGHT) == run.steps(GRADIENT) == steps
    for step in steps:
        for name in (WEIGHT, GRADIENT):
            assert np.array_equal(run.value(name, step), reference.values[name, step]), (name, step)
    assert [(row["step"], row["call"]) for row in run.of("Net_output_0")] == [
        (step, call) for step in steps for call in (0, 1)
    ]
