"""Mixed precision: autocast, gradient scalers, and the optimizer steps that scalers skip."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun
from .models import Net
from .twins import Record, check_values, run_twins

GRADIENT = "gradient/Net_fc1.weight"
WEIGHT = "Net_fc1.weight"
BOTH = ["weights", "biases", "gradients"]
SGD: dict[str, Any] = {"kind": torch.optim.SGD, "lr": 0.1, "foreach": False}
FOREACH: dict[str, Any] = {"kind": torch.optim.AdamW, "lr": 0.1, "foreach": True}
FUSED: dict[str, Any] = {"kind": torch.optim.AdamW, "lr": 0.1, "fused": True}
OPTIMIZERS = pytest.mark.parametrize("settings", [SGD, FOREACH, FUSED], ids=["plain", "foreach", "fused"])
OVERFLOWS = 2  # the step at which scaled gradients are infinite
NO_BACKWARD = 4  # the step without a backward
STEPS = 6


class Scaled:
    """A training with a real scaler; its gradients overflow at one step, and another step has no backward."""

    def __init__(self, settings: dict[str, Any], **order: Any) -> None:
        self.settings = dict(settings)
        self.kind = self.settings.pop("kind")
        self.order = order

    def __call__(self, hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = self.kind(model.parameters(), **self.settings)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
        if hook is not None:
            hook.register_module(model)
        if not self.order.get("zero_late"):
            optimizer.zero_grad()
        for step in range(STEPS):
            for name, parameter in model.named_parameters():
                record.note(f"Net_{name}", step, parameter)
            loss = model(torch.randn(5, 4)).square().mean() * (1e4 if step == OVERFLOWS else 1.0)
            if self.order.get("zero_late"):
                optimizer.zero_grad(set_to_none=self.order.get("set_to_none", True))
            record.losses.append(loss.detach())
            if step == NO_BACKWARD:
                optimizer.step()
                continue
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            if step != OVERFLOWS:
                for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
                    record.note(f"gradient/Net_{name}", step, gradient)
            record.note("optimizer/grad_scale", step, scaler.get_scale())
            scaler.scale(loss).backward()
            if self.order.get("unscale"):
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            record.note("optimizer/found_inf", step, 1.0 if step == OVERFLOWS else 0.0)
            if not self.order.get("zero_late"):
                optimizer.zero_grad()


@OPTIMIZERS
@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("GradScaler", "losses")
def test_gradients_are_unscaled_and_the_scale_stands_beside_each_saved_step(
    make_hook: MakeHook, read_run: ReadRun, settings: dict[str, Any]
) -> None:
    hook = make_hook(include_collections=BOTH)
    reference = run_twins(Scaled(settings), hook)
    run = read_run(hook)
    check_values(run, reference)
    scales = [run.value("optimizer/grad_scale", step).item() for step in (0, OVERFLOWS, OVERFLOWS + 1)]
    assert scales == [2.0**120, 2.0**120, 2.0**119]


@OPTIMIZERS
@pytest.mark.supports("GradScaler", "values")
def test_a_step_that_the_scaler_skipped_is_told_from_one_without_gradients(
    make_hook: MakeHook, read_run: ReadRun, settings: dict[str, Any]
) -> None:
    hook = make_hook(include_collections=BOTH)
    run_twins(Scaled(settings), hook)
    run = read_run(hook)
    rows = {row["step"]: row for row in run.of(GRADIENT)}
    assert sorted(rows) == list(range(STEPS))
    assert run.steps("optimizer/found_inf") == [0, 1, 2, 3, 5]
    assert run.value("optimizer/found_inf", OVERFLOWS) == 1.0
    assert (rows[NO_BACKWARD]["status"], rows[NO_BACKWARD]["reason"]) == ("absent", "no_backward")
    if "fused" in settings:  # the fused step itself detects the Inf
        skipped = run.value(GRADIENT, OVERFLOWS)
        assert not np.isfinite(skipped).all()
    else:
        assert (rows[OVERFLOWS]["status"], rows[OVERFLOWS]["reason"]) == ("absent", "scaler_skipped")


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("set_to_none", "values")
def test_a_skipped_step_whose_gradients_are_there_is_not_taken_for_accumulation(
    make_hook: MakeHook, read_run: ReadRun, set_to_none: bool
) -> None:
    every_other = td.SaveConfig(save_interval=2)
    hook = make_hook(include_collections=BOTH, save_config=every_other)
    run_twins(Scaled(SGD, zero_late=True, set_to_none=set_to_none), hook)
    run = read_run(hook)
    assert run.steps(GRADIENT) == [0, 2, 4]
    assert not np.isfinite(run.value(GRADIENT, OVERFLOWS)).all()  # and not the finite gradient of step 3
    assert run.value("optimizer/found_inf", OVERFLOWS) == 1.0


@pytest.mark.supports("GradScaler", "values")
def test_a_script_that_unscales_by_itself_gives_the_same_values(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Path
) -> None:
    for name, settings in (("plain", SGD), ("fused", FUSED)):
        hook = make_hook(include_collections=BOTH, out_dir=tmp_path / name)
        reference = run_twins(Scaled(settings, unscale=True), hook)
        check_values(read_run(hook), reference)


@pytest.mark.supports("GradScaler", "values")
def test_a_first_step_that_is_skipped_is_marked_though_no_optimizer_was_seen_yet(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(5, 4)).square().mean() * 1e9).backward()
        scaler.step(optimizer)
        scaler.update()
    run = read_run(hook)
    assert [run.value("optimizer/found_inf", step) for step in (0, 1)] == [1.0, 1.0]
    assert [run.value("optimizer/grad_scale", step) for step in (0, 1)] == [2.0**127, 2.0**126]


@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("several optimizers", "values")
def test_of_two_optimizers_only_the_skipped_one_is_marked(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    one = torch.optim.SGD(model.fc1.parameters(), lr=0.1)
    two = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
    hook.register_optimizer(one)
    hook.register_optimizer(two)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(3):
        one.zero_grad()
        two.zero_grad()
        scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
        if step == 1:
            assert model.fc2.weight.grad is not None
            model.fc2.weight.grad[0, 0] = torch.inf
        scaler.step(one)
        scaler.step(two)
        scaler.update()
    run = read_run(hook)
    found = [
        [run.value(f"{name}/found_inf", s).item() for s in range(3)] for name in ("optimizer", "optimizer_1")
    ]
    assert found == [[0, 0, 0], [0, 1, 0]]
    statuses = [row["status"] for row in run.of("gradient/Net_fc2.weight")]
    assert statuses == ["ok", "absent", "ok"]
    assert {row["status"] for row in run.of(GRADIENT)} == {"ok"}


@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("several optimizers", "values")
def test_gradients_of_optimizers_that_were_not_seen_yet_are_unscaled(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    one = torch.optim.SGD(model.fc1.parameters(), lr=0.1)
    two = torch.optim.SGD(model.fc2.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = model(torch.randn(5, 4)).square().mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    scaler.scale(loss).backward()
    scaler.step(one)
    scaler.step(two)
    run = read_run(hook)
    for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert np.array_equal(run.value(f"gradient/Net_{name}", 0), gradient.numpy())


def in_turn(hook: Hook | None, record: Record) -> None:
    """Train with two optimizers that step alternately, under one scaler; neither steps in the last step."""
    model = Net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.fc1, model.fc2)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    if hook is not None:
        hook.register_module(model)
    for step in range(6):
        loss = model(torch.randn(5, 4)).square().mean()
        model.zero_grad()
        for (name, _), gradient in zip(
            model.named_parameters(),
            torch.autograd.grad(loss, list(model.parameters()), retain_graph=True),
            strict=True,
        ):
            if step >= 4:
                record.note(f"gradient/Net_{name}", step, gradient)
        scaler.scale(loss).backward()
        if step == 4:
            scaler.unscale_(optimizers[1])
        if step < 5:
            scaler.step(optimizers[step % 2])
            scaler.update()
        record.losses.append(loss.detach())
        if hook is not None and step == 5:
            hook.close()


@pytest.mark.supports("GradScaler", "values")
@pytest.mark.supports("several optimizers", "values")
def test_gradients_whose_optimizer_does_not_step_are_unscaled_too(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook(include_collections=BOTH, save_config=td.SaveConfig(save_steps=[4, 5], end_step=0))
    reference = run_twins(in_turn, hook)
    run = read_run(hook)
    check_values(run, reference)


def test_the_rows_of_a_sparse_gradient_that_is_left_scaled_are_unscaled(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(save_all=True), torch.nn.Sequential(torch.nn.Embedding(8, 3, sparse=True))
    hook.register_module(model)
    hook.register_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(torch.tensor([2])).sum()).backward()
    run = read_run(hook)
    assert np.array_equal(run.value("gradient/Sequential_0.weight/values", 0), np.ones((1, 3)))


@pytest.mark.supports("GradScaler", "values")
def test_a_scaler_that_is_made_late_can_be_registered(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    hook.register_scaler(scaler)
    scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
    scaler.step(optimizer)
    with pytest.raises(ConfigError, match=r"needs a torch\.amp\.GradScaler, got SGD"):
        hook.register_scaler(optimizer)
    run = read_run(hook)
    assert run.steps("optimizer/grad_scale") == [1]
    assert run.value("optimizer/grad_scale", 1) == 4.0


@pytest.mark.supports("GradScaler", "values")
def test_a_scaler_that_is_not_enabled_leaves_no_trace(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
    scaler.step(optimizer)
    assert not [name for name in read_run(hook).names() if name.startswith("optimizer")]


@pytest.mark.supports("GradScaler", "breaks")
def test_neither_scaler_nor_optimizer_is_kept_alive(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=BOTH), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(5, 4)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    gone = weakref.ref(scaler), weakref.ref(optimizer)
    del scaler, optimizer
    assert [reference() for reference in gone] == [None, None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.supports("autocast", "values")
@pytest.mark.supports("autocast", "losses")
def test_under_autocast_activations_have_its_type_and_weights_their_own(
    make_hook: MakeHook, read_run: ReadRun, dtype: torch.dtype
) -> None:
    def training(hook: Hook | None, record: Record) -> None:
        model = Net()
        if hook is not None:
            hook.register_module(model)
        else:
            model.fc1.register_forward_hook(
                lambda _, __, output: record.note("fc1_output_0", len(record.losses), output)
            )
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            record.note(WEIGHT, step, model.fc1.weight)
            with torch.autocast("cpu", dtype=dtype, enabled=step != 2):
                loss = model(torch.randn(5, 4)).float().square().mean()
            loss.backward()
            record.note(GRADIENT, step, model.fc1.weight.grad)
            optimizer.step()
            record.losses.append(loss.detach())

    hook = make_hook(include_collections=[*BOTH, "outputs"])
    reference = run_twins(training, hook)
    run = read_run(hook)
    check_values(run, reference)
    half = "BF16" if dtype is torch.bfloat16 else "F16"
    assert [row["dtype"] for row in run.of("fc1_output_0")] == [half, half, "F32", half]
    assert {row["dtype"] for row in run.of(WEIGHT) + run.of(GRADIENT)} == {"F32"}
