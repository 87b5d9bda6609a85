"""Gradients between backward and optimizer: clipped, accumulated, and of single micro-batches."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.waiting import wait_until

from .conftest import Captured, MakeHook, ReadRun
from .models import Net
from .twins import Record, check_values, run_twins

GRADIENT = "gradient/Net_fc1.weight"
BACKWARD = "backward_gradient/Net_fc1.weight"
PART = "microbatch_gradient/Net_fc1.weight"
ALL_THREE = ["gradients", "backward_gradients", "microbatch_gradients"]


def not_captured(hook: Hook) -> str:
    """Return the notes of the run about requested series that are missing."""
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    return "; ".join(document["attempts"]["0"]["not_captured"])


def clip_by_norm(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def clip_by_value(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.001)


def by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad *= 0.5


class Clipped:
    """A training that changes gradients between backward and step, with a scaler or without one."""

    def __init__(self, clip: Any, *, scaled: bool = False) -> None:
        self.clip = clip
        self.scaled = scaled

    def __call__(self, hook: Hook | None, record: Record) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=self.scaled)
        if hook is not None:
            hook.register_module(model)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 4)).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            for (name, _), gradient in zip(model.named_parameters(), gradients, strict=True):
                record.note(f"backward_gradient/Net_{name}", step, gradient)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            self.clip(model)
            for name, parameter in model.named_parameters():
                record.note(f"gradient/Net_{name}", step, parameter.grad)
            scaler.step(optimizer)
            scaler.update()
            record.losses.append(loss.detach())


@pytest.mark.parametrize("clip", [clip_by_norm, clip_by_value, by_hand])
@pytest.mark.supports("gradient clipping", "values")
@pytest.mark.supports("gradient clipping", "losses")
def test_gradients_before_clipping_are_a_series_beside_those_after(
    make_hook: MakeHook, read_run: ReadRun, clip: Any
) -> None:
    hook = make_hook(include_collections=["gradients", "backward_gradients"])
    reference = run_twins(Clipped(clip), hook)
    run = read_run(hook)
    check_values(run, reference)
    assert not np.array_equal(run.value(GRADIENT, 1), run.value(BACKWARD, 1))


@pytest.mark.supports("gradient clipping", "values")
@pytest.mark.supports("GradScaler", "values")
def test_under_a_scaler_gradients_before_clipping_are_unscaled(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook(include_collections=ALL_THREE)
    reference = run_twins(Clipped(clip_by_norm, scaled=True), hook)
    run = read_run(hook)
    check_values(run, reference)
    assert np.array_equal(run.value(PART, 2), run.value(BACKWARD, 2))


@pytest.mark.supports("gradient clipping", "values")
def test_with_several_scalers_nothing_is_guessed(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture
) -> None:
    other = torch.amp.GradScaler("cpu", init_scale=8.0)
    other.scale(torch.ones(1))
    hook = make_hook(include_collections=ALL_THREE)
    with caplog.at_level(logging.WARNING, "tdcore"):
        run_twins(Clipped(clip_by_norm, scaled=True), hook)
    run = read_run(hook)
    assert run.steps(GRADIENT) == [0, 1, 2]
    assert not run.of(BACKWARD) + run.of(PART)
    assert sum("several gradient scalers are in use" in message for message in caplog.messages) == 1
    assert "several gradient scalers are in use" in not_captured(hook)


@pytest.mark.supports("gradient clipping", "breaks")
def test_gradients_that_come_by_no_backward_are_noted_as_missing(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=ALL_THREE), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.randn(5, 4)).square().mean()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        parameter.grad = gradient
    optimizer.step()
    # the next step writes the note, so the run has it even if the training is killed
    model(torch.randn(5, 4))
    wait_until((Path(hook.out_dir) / "collections.json").exists)
    assert "hooks on its parameters received no gradient" in not_captured(hook)
    run = read_run(hook)
    assert run.steps(GRADIENT)[0] == 0
    assert not run.of(BACKWARD) + run.of(PART)
    assert "hooks on its parameters received no gradient" in not_captured(hook)


def accumulate(hook: Hook | None, record: Record, *, by_hand: bool = False) -> None:
    """Train with four micro-batches per optimizer step."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hook is not None:
        hook.register_module(model)
    for step in range(8):
        if by_hand and hook is not None and step % 4 == 0:
            hook.step()
        loss = model(torch.randn(5, 4)).square().mean()
        (part,) = torch.autograd.grad(loss, [model.fc1.weight], retain_graph=True)
        record.note(PART, step, part)
        loss.backward()
        record.losses.append(loss.detach())
        record.note(BACKWARD, step, model.fc1.weight.grad)
        if step % 4 == 3:
            record.note(GRADIENT, step, model.fc1.weight.grad)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.supports("gradient accumulation", "values")
@pytest.mark.supports("gradient accumulation", "losses")
def test_each_micro_batch_has_its_part_and_the_sum_so_far_under_its_step(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook(include_collections=ALL_THREE)
    reference = run_twins(accumulate, hook)
    check_micro_batches(read_run(hook), reference, [0, 1])


def check_micro_batches(run: Captured, reference: Record, steps: list[int]) -> None:
    """Check that each step has four calls, one for each micro-batch, and one gradient, which is their sum."""
    assert run.steps(GRADIENT) == steps
    for name in (PART, BACKWARD):
        assert [(row["step"], row["call"]) for row in run.of(name)] == [
            (step, call) for step in steps for call in range(4)
        ]
        for step in steps:
            for call in range(4):
                assert np.array_equal(run.value(name, step, call=call), reference.of(name)[4 * step + call])
    for step in steps:
        assert np.array_equal(run.value(GRADIENT, step), reference.of(GRADIENT)[4 * step + 3])


@pytest.mark.supports("gradient accumulation", "values")
def test_micro_batches_of_a_step_begun_by_hand_are_its_calls(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(include_collections=ALL_THREE)
    reference = run_twins(lambda hook, record: accumulate(hook, record, by_hand=True), hook)
    check_micro_batches(read_run(hook), reference, [0, 1])


@pytest.mark.supports("gradient accumulation", "values")
def test_a_saved_step_has_every_micro_batch_though_the_step_before_it_is_not_saved(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook = make_hook(include_collections=ALL_THREE, save_config=td.SaveConfig(save_steps=[1], end_step=0))
    reference = run_twins(accumulate, hook)
    check_micro_batches(read_run(hook), reference, [1])


@pytest.mark.supports("gradient clipping", "cost")
@pytest.mark.supports("gradient accumulation", "cost")
def test_parameters_carry_hooks_only_from_a_saved_forward_until_the_step(make_hook: MakeHook) -> None:
    def carried() -> int:
        on_parameters = sum(len(one._post_accumulate_grad_hooks or ()) for one in model.parameters())
        return on_parameters + len(hook._roots[0].parameters.backward._nodes)

    hook, model = make_hook(include_collections=ALL_THREE, save_config=td.SaveConfig(save_interval=2)), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for _ in range(4):
        loss = model(torch.randn(5, 4)).square().mean()
        counts.append(carried())
        loss.backward()
        optimizer.step()
        counts.append(carried())
    assert counts == [8, 0, 0, 0, 8, 0, 0, 0]
    model(torch.randn(5, 4))
    hook.close()
    assert carried() == 0


@pytest.mark.parametrize(
    "asked",
    [{"save_all": True}, {"include_regex": "fc1"}, {"include_regex": "weight"}, {"include_regex": ".*"}],
)
@pytest.mark.supports("gradient clipping", "cost")
@pytest.mark.supports("update ratio", "cost")
def test_who_does_not_name_a_series_does_not_pay_for_it(
    make_hook: MakeHook, read_run: ReadRun, asked: dict[str, Any]
) -> None:
    hook, model = make_hook(**asked), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    extra = ("backward_gradient", "microbatch_gradient", "weight_update", "update_ratio")
    names = read_run(hook).names()
    assert GRADIENT in names
    assert not [name for name in names if name.startswith(extra)]


@pytest.mark.supports("gradient clipping", "values")
def test_a_pattern_that_names_the_series_chooses_among_its_tensors(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_regex="^backward_gradient/.*fc1"), Net()
    hook.register_module(model)
    model(torch.randn(5, 4)).square().mean().backward()
    assert set(read_run(hook).names()) == {BACKWARD, "backward_gradient/Net_fc1.bias"}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.supports("gradient clipping", "values")
def test_a_checkpointed_model_gives_each_gradient_once(
    make_hook: MakeHook, read_run: ReadRun, reentrant: bool
) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> Any:
            inner = nn.Sequential(self.fc1, self.relu)
            return self.fc2(checkpoint(inner, x, use_reentrant=reentrant))

    hook, model = make_hook(include_collections=ALL_THREE), Checkpointed()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4, requires_grad=True)).square().mean().backward()
    optimizer.step()
    run = read_run(hook)
    for name, _ in model.named_parameters():
        values = [
            run.value(f"{series}/Checkpointed_{name}", 0)
            for series in ("gradient", "backward_gradient", "microbatch_gradient")
        ]
        assert len(run.of(f"backward_gradient/Checkpointed_{name}")) == 1
        assert np.array_equal(values[0], values[1])
        assert np.array_equal(values[0], values[2])


@pytest.mark.supports("gradient clipping", "values")
@pytest.mark.supports("DDP", "values")
def test_a_backward_is_over_when_its_reductions_are(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Path
) -> None:
    def doubled(bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)
        return future

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        hook, model = make_hook(include_collections=ALL_THREE), Net()
        hook.register_module(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parallel = DistributedDataParallel(model)
        parallel.register_comm_hook(None, lambda _, bucket: doubled(bucket))
        parallel(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    finally:
        dist.destroy_process_group()
    run = read_run(hook)
    assert np.array_equal(run.value(BACKWARD, 0), run.value(GRADIENT, 0))
    assert np.array_equal(2 * run.value(PART, 0), run.value(GRADIENT, 0))


@pytest.mark.supports("gradient clipping", "breaks")
def test_an_error_in_the_series_switches_off_the_series_alone(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture
) -> None:
    hook, model = make_hook(include_collections=ALL_THREE), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "tdcore"):
        patch.setattr("tdcore.hooks.pytorch.parameters.backward_gradients.CaptureSpec", fail)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    run = read_run(hook)
    assert list(hook._faults) == ["backward gradients"]
    assert run.steps(GRADIENT) == [0, 1]
    assert not run.of(BACKWARD)
