"""Capture does not change the training, and captures layers that are difficult to capture."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook

from .conftest import MakeHook, ReadRun
from .models import Net, train


class Everything(nn.Module):
    """A model with a convolution, batch norm, dropout, an in-place ReLU and a reused module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.again = nn.Conv2d(4, 4, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.relu(self.norm(self.conv(x)))
        x = self.relu(self.again(x) + x)
        return self.head(self.drop(x.flatten(1)))


def two_hundred_steps(
    hook: Hook | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[int], torch.Tensor]:
    torch.manual_seed(7)
    model, criterion = Everything(), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if hook is not None:
        hook.register_module(model)
        hook.register_loss(criterion)
    losses = []
    for step in range(200):
        model.train(step % 10 != 9)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step % 3 == 0):
            loss = criterion(model(torch.randn(4, 1, 6, 6)), torch.randint(0, 3, (4,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    versions = [parameter._version for parameter in model.parameters()]
    return losses, [parameter.detach() for parameter in model.parameters()], versions, torch.get_rng_state()


def test_200_steps_are_bit_identical_with_everything_captured_and_without(make_hook: MakeHook) -> None:
    plain = two_hundred_steps(None)
    hook = make_hook(save_all=True, ring=td.RingConfig(ring_bytes=1 << 24, slots=4096))
    captured = two_hundred_steps(hook)
    hook.close()
    assert hook.counters().tensors > 200 * 30
    assert not hook._faults
    for one, two in zip(plain[0] + plain[1], captured[0] + captured[1], strict=True):
        assert torch.equal(one, two)
    assert plain[2] == captured[2]
    assert torch.equal(plain[3], captured[3])


def test_grad_mode_and_autocast_are_as_the_script_left_them(make_hook: MakeHook) -> None:
    hook, model, seen = make_hook(save_all=True), Net(), []

    def look(*_: object) -> None:
        seen.append(
            (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled())
        )

    hook.register_module(model)
    model.fc1.register_forward_hook(look)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.randn(2, 4))
        look()
    with torch.inference_mode():
        model(torch.randn(2, 4))
        look()
    assert seen == [(False, True, False)] * 2 + [(False, False, True)] * 2


def test_gradients_of_every_stride_are_whole(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.summed = nn.Parameter(torch.randn(3, 2))
            self.turned = nn.Parameter(torch.randn(3, 2))
            self.table = nn.Embedding(5, 2, sparse=True)
            self.conv = nn.Conv2d(2, 2, 3)
            self.conv.weight.data = self.conv.weight.data.to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (
                self.summed.sum()
                + (self.turned.t() @ torch.ones(3)).sum()
                + self.table(torch.tensor([1, 3])).sum()
            )
            image: torch.Tensor = self.conv(x.to(memory_format=torch.channels_last))
            total: torch.Tensor = y + image.square().sum()
            return total

    hook, model = make_hook(include_collections=["gradients"]), Odd()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(1, 2, 5, 5)).backward()
    model.summed.grad = torch.ones(1).expand(3, 2)
    assert model.conv.weight.grad is not None
    expected = model.conv.weight.grad.clone().numpy()
    optimizer.step()
    run = read_run(hook)
    assert np.array_equal(run.value("gradient/Odd_summed", 0), np.ones((3, 2), dtype=np.float32))
    assert np.array_equal(run.value("gradient/Odd_conv.weight", 0), expected)
    (row,) = run.of("gradient/Odd_table.weight")
    assert (row["status"], row["reason"]) == ("skipped", "sparse")


def test_a_training_loop_in_another_thread(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    thread = threading.Thread(target=train, args=(model, optimizer, 3))
    thread.start()
    thread.join()
    assert read_run(hook).steps("gradient/Net_fc1.weight") == [0, 1, 2]


@pytest.mark.parametrize("flavour", [{"foreach": True}, {"foreach": False}, {"fused": True}])
def test_every_implementation_of_an_optimizer_gives_weights_and_gradients(
    make_hook: MakeHook, read_run: ReadRun, flavour: dict[str, bool]
) -> None:
    hook, model = make_hook(include_collections=["weights", "gradients"]), Net()
    hook.register_module(model)
    try:
        optimizer = torch.optim.AdamW(model.parameters(), **flavour)  # type: ignore[arg-type]
    except (RuntimeError, TypeError):
        pytest.skip("this version of torch has no fused optimizer for CPU")
    train(model, optimizer, steps=2)
    before = model.fc1.weight.detach().clone().numpy()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    run = read_run(hook)
    assert np.array_equal(run.value("Net_fc1.weight", 2), before)
    assert run.steps("gradient/Net_fc1.weight") == [0, 1, 2]


def test_a_tensor_larger_than_a_record_goes_in_parts(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(include_collections=["weights"], ring=td.RingConfig(ring_bytes=1 << 20, slots=64))
    model = nn.Linear(300, 300)
    hook.register_module(model)
    weight = model.weight.detach().clone().numpy()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), features=300)
    run = read_run(hook)
    assert len(run.of("Linear_weight")) > 1
    assert np.array_equal(run.value("Linear_weight", 0), weight)
