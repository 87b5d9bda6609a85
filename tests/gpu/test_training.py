"""Whole trainings on a GPU: the same losses with and without capture, and a run with the exact values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tests.gpu.conftest import MakeHook, report_of, ring_config, same_bits, set_sync_debug_mode
from tests.gpu.training import Net, losses_of

EVERYTHING: dict[str, Any] = {"save_all": True}


@pytest.mark.parametrize(
    "options",
    [EVERYTHING, {"include_collections": ["weights", "gradients", "losses"]}],
    ids=["everything", "parameters"],
)
def test_losses_are_bit_identical_with_capture_and_without(
    make_hook: MakeHook, options: dict[str, Any]
) -> None:
    plain = losses_of(None, remember=False)
    hook = make_hook(**options)
    hooked = losses_of(hook, remember=False)
    assert [loss.item() for loss in hooked.losses] == [loss.item() for loss in plain.losses]
    assert not hook.counters().drops
    assert hook.counters().tensors > 0


def test_losses_weights_and_gradients_in_the_run_are_those_of_the_training(make_hook: MakeHook) -> None:
    hook = make_hook(**EVERYTHING)
    training = losses_of(hook)
    hook.close()
    training.check(hook)
    trial = td.create_trial(hook.out_dir)
    (name,) = trial.tensor_names(collection="losses")
    for step, loss in enumerate(training.losses):
        assert same_bits(loss, trial.tensor(name).value(step))


def test_activations_in_the_run_are_those_that_the_forward_made(make_hook: MakeHook) -> None:
    hook = make_hook(**EVERYTHING)
    torch.manual_seed(5)
    model = Net().cuda()
    seen: dict[str, list[torch.Tensor]] = {"conv": [], "head": []}
    for name, outputs in seen.items():  # attached first, so each hook gets the output before an in-place ReLU
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, outputs=outputs: outputs.append(output.detach().cpu())
        )
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, device="cuda")).square().mean().backward()
        optimizer.step()
    hook.close()
    trial = td.create_trial(hook.out_dir)
    for name, outputs in seen.items():
        (found,) = [each for each in trial.tensor_names() if each.endswith(f"_{name}_output_0")]
        for step, output in enumerate(outputs):
            assert same_bits(output, trial.tensor(found).value(step)), (found, step)


def test_no_step_of_a_training_waits_for_the_device(make_hook: MakeHook) -> None:
    """Values and statistics are captured; PyTorch raises at every wait that it detects."""

    def watch(step: int) -> None:
        set_sync_debug_mode("error" if 3 <= step < 30 else "default")

    hook = make_hook(**EVERYTHING)
    try:
        losses_of(hook, remember=False, around=watch)
    finally:
        set_sync_debug_mode("default")
    assert not hook.counters().drops
    hook.close()
    trial = td.create_trial(hook.out_dir)
    for name in trial.tensor_names():
        assert trial.tensor(name).steps() == list(range(30)), name  # no error has disabled the hook


@pytest.mark.parametrize("amp", [torch.float16, torch.bfloat16])
def test_mixed_precision_is_left_alone(make_hook: MakeHook, amp: torch.dtype) -> None:
    plain = losses_of(None, amp=amp, remember=False)
    hook = make_hook(**EVERYTHING)
    hooked = losses_of(hook, amp=amp, remember=False)
    assert [loss.item() for loss in hooked.losses] == [loss.item() for loss in plain.losses]
    hook.close()
    rows = td.create_trial(hook.out_dir).rows().to_pylist()
    assert ("F16" if amp is torch.float16 else "BF16") in {row["dtype"] for row in rows}


def test_gradients_hooked_on_the_autograd_thread_are_captured(make_hook: MakeHook) -> None:
    hook = make_hook(include_collections=["mine"])
    model = nn.Linear(64, 64).cuda()
    hook.register_module(model)
    expected: list[torch.Tensor] = []

    def keep(gradient: torch.Tensor) -> None:
        expected.append(gradient.cpu())
        hook.save_tensor("middle", gradient, "mine")

    for _ in range(5):
        middle = model(torch.randn(8, 64, device="cuda"))
        middle.register_hook(keep)
        middle.square().sum().backward()
    hook.close()
    tensor = td.create_trial(hook.out_dir).tensor("middle")
    for step, gradient in enumerate(expected):
        assert same_bits(gradient, tensor.value(step))


def test_every_step_of_a_gpu_training_is_complete_in_order(make_hook: MakeHook) -> None:
    hook = make_hook(**EVERYTHING)
    losses_of(hook, remember=False)
    ring = hook._ring
    hook.close()
    assert report_of(ring)["early_commits"] == 0
    trial = td.create_trial(hook.out_dir)
    assert trial.steps() == list(range(30))
    assert not trial.missing()


def test_statistics_of_everything_are_those_of_the_values(make_hook: MakeHook) -> None:
    hook = make_hook(**EVERYTHING)
    losses_of(hook, remember=False, steps=3)
    hook.close()
    trial = td.create_trial(hook.out_dir)
    for name in trial.tensor_names():
        tensor = trial.tensor(name)
        for step in tensor.steps():
            value = tensor.value(step).astype("float64")
            assert tensor.reduction_value(step, "max") == value.max()
            assert tensor.reduction_value(step, "min") == value.min()
            assert tensor.reduction_value(step, "mean") == pytest.approx(value.mean(), rel=1e-5, abs=1e-6)


def test_a_model_on_the_host_with_a_hook_for_devices_takes_nothing_of_the_device(make_hook: MakeHook) -> None:
    free, _ = torch.cuda.mem_get_info()
    hook = make_hook(ring=ring_config(), **EVERYTHING)
    losses_of(hook, remember=False, device="cpu", steps=3)
    assert hook._ring.device_reports() == []
    assert torch.cuda.mem_get_info()[0] == free
