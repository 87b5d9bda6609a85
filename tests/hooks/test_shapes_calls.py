"""Ways to call a model: in replicas, through copies, without gradients, under transforms."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from .conftest import MakeHook, ReadRun
from .shapes import Reuses
from .test_shapes import OUTPUTS, trained
from .test_survive import replicate


@pytest.mark.supports("DataParallel", "values")
def test_inner_outputs_of_replicas_are_captured_each_with_a_call_of_its_own(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Reuses()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            results: dict[int, torch.Tensor] = {}

            def run(index: int, part: torch.Tensor, replica: nn.Module) -> None:
                results[index] = replica(part)

            threads = [
                threading.Thread(target=run, args=(index, part, replicate(self.module)))
                for index, part in enumerate(x.chunk(2))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return torch.cat([results[0], results[1]])

    hook, model = make_hook(include_collections=["outputs"]), Wrapper()
    hook.register_module(model)
    output = model(torch.randn(4, 4))
    run = read_run(hook)
    found = {run.value("module.act_output_0", 0, call=call).tobytes() for call in range(4)}
    assert {part.detach().numpy().tobytes() for part in output.chunk(2)} <= found


@pytest.mark.supports("EMA copies", "values")
@pytest.mark.supports("EMA copies", "losses")
def test_copies_of_a_model_are_not_captured_and_are_no_steps(make_hook: MakeHook, read_run: ReadRun) -> None:
    losses = []
    for captured in (True, False):
        torch.manual_seed(3)
        model = Reuses()
        if captured:
            hook = make_hook(include_collections=OUTPUTS)
            hook.register_module(model)
        copied, averaged = copy.deepcopy(model), AveragedModel(model)
        for _ in range(3):
            losses += trained(model, steps=1)
            averaged.update_parameters(model)
            losses.append(averaged(torch.randn(2, 4)).sum().item())
            losses.append(copied(torch.randn(2, 4)).sum().item())
    assert losses[:9] == losses[9:]
    assert hook.global_step == 2
    run = read_run(hook)
    assert len(run.of("fc_output_0")) == 3 * 2


@pytest.mark.supports("no_grad and inference_mode", "values")
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_outputs_and_weights_are_captured_and_no_gradient_is_made_up(
    make_hook: MakeHook, read_run: ReadRun, context: Callable[[], Any]
) -> None:
    hook, model = make_hook(include_collections=[*OUTPUTS, "output_gradients"]), Reuses()
    hook.register_module(model)
    x = torch.randn(3, 4)
    with context():
        output = model(x)
    run = read_run(hook)
    assert np.array_equal(run.value("Reuses_output_0", 0), output.numpy())
    assert np.array_equal(run.value("Reuses_fc.weight", 0), model.fc.weight.detach().numpy())
    assert not any(row["kind"] in ("gradient", "output_gradient") for row in run.rows)


def functional(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    doubled = {name: 2 * one.detach() for name, one in model.named_parameters()}
    output: torch.Tensor = torch.func.functional_call(model, doubled, (x,))
    return output


@pytest.mark.supports("functional_call and vmap", "values")
def test_weights_of_each_root_are_those_that_its_first_forward_used(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, first, second = make_hook(include_collections=["weights"]), nn.Linear(4, 4), Reuses()
    hook.register_module(first)
    hook.register_module(second)
    x = torch.randn(3, 4)
    functional(second, first(x))
    run = read_run(hook)
    assert np.array_equal(run.value("Linear_weight", 0), first.weight.detach().numpy())
    assert np.array_equal(run.value("Reuses_fc.weight", 0), 2 * second.fc.weight.detach().numpy())


def per_sample(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def loss(held: dict[str, torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(model, held, (one[None],))
        return output.square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    gradients: torch.Tensor = found["fc.weight"]
    return gradients


def mapped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = torch.func.vmap(model)(x)
    return output


@pytest.mark.supports("functional_call and vmap", "values")
@pytest.mark.supports("functional_call and vmap", "losses")
@pytest.mark.parametrize("call", [functional, per_sample, mapped])
def test_transforms_are_captured_or_counted_and_give_the_same_bits(
    make_hook: MakeHook, read_run: ReadRun, call: Callable[[nn.Module, torch.Tensor], torch.Tensor]
) -> None:
    model, x = Reuses(), torch.randn(3, 4)
    plain = call(model, x)
    hook = make_hook(include_collections=OUTPUTS)
    hook.register_module(model)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        found.append(call(model, x))
        optimizer.step()  # there are no gradients: the step ends, and no weight changes
    assert all(torch.equal(plain, one) for one in found)
    assert not hook._faults
    run = read_run(hook)
    assert {row["status"] for row in run.of("Reuses_output_0")} == {"ok" if call is functional else "skipped"}
    assert all(row["reason"] == "no_storage" for row in run.rows if row["status"] == "skipped")
    if call is functional:
        assert np.array_equal(run.value("Reuses_output_0", 0), plain.numpy())
        assert np.array_equal(run.value("Reuses_fc.weight", 1), 2 * model.fc.weight.detach().numpy())
    assert all(row["status"] == "absent" for row in run.rows if row["kind"] == "gradient")
