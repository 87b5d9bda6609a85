"""Graphs of special shapes: values are captured, and losses equal those without capture."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tdcore.hooks.pytorch import Hook

from .conftest import Captured, MakeHook, ReadRun
from .shapes import Checkpoints, Frozen, InPlace, Nests, Ragged, Reuses, Shares

OUTPUTS = ["outputs", "inputs", "weights", "gradients", "losses"]


def trained(model: nn.Module, steps: int = 3) -> list[float]:
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def pairs(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["step"], row["call"]) for row in rows]


def notes_of(hook: Hook) -> dict[str, Any]:
    document = json.loads((Path(hook.out_dir) / "collections.json").read_text())
    notes: dict[str, Any] = document["attempts"]["0"]
    return notes


@pytest.fixture
def one_step(make_hook: MakeHook, read_run: ReadRun) -> Callable[[nn.Module, torch.Tensor], Captured]:
    """Run one step of a model whose weights do not change; return the run."""

    def step(model: nn.Module, x: torch.Tensor) -> Captured:
        hook = make_hook(include_collections=OUTPUTS)
        hook.register_module(model)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
        model(x).square().sum().backward()
        optimizer.step()
        assert not hook._faults
        return read_run(hook)

    return step


OneStep = Callable[[nn.Module, torch.Tensor], Captured]


@pytest.mark.supports("reused modules", "values")
def test_a_reused_module_has_a_row_for_every_call(one_step: OneStep) -> None:
    model, x = Reuses(), torch.randn(3, 4)
    run = one_step(model, x)
    first = model.act(model.fc(x))
    assert pairs(run.of("fc_output_0")) == pairs(run.of("act_input_0")) == [(0, 0), (0, 1)]
    assert np.array_equal(run.value("act_output_0", 0, call=0), first.detach().numpy())
    assert np.array_equal(run.value("act_output_0", 0, call=1), model(x).detach().numpy())


@pytest.mark.supports("shared parameters", "values")
def test_a_shared_parameter_is_captured_once_and_its_other_name_is_told(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=OUTPUTS), Shares()
    hook.register_module(model)
    model(torch.randn(3, 4)).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.0).step()
    run, gradient = read_run(hook), model.inner.weight.grad
    assert gradient is not None
    assert np.array_equal(run.value("gradient/Shares_inner.weight", 0), gradient.numpy())
    assert not run.of("gradient/Shares_outer.weight")
    assert notes_of(hook)["aliases"] == {"Shares_inner.weight": ["Shares_outer.weight"]}


@pytest.mark.parametrize(
    "reentrant",
    [
        pytest.param(True, marks=pytest.mark.supports("activation checkpointing, reentrant", "values")),
        pytest.param(False, marks=pytest.mark.supports("activation checkpointing, non-reentrant", "values")),
    ],
)
def test_what_is_computed_again_is_captured_once_and_marked(
    make_hook: MakeHook, read_run: ReadRun, reentrant: bool
) -> None:
    hook, model = make_hook(include_collections=OUTPUTS), Checkpoints(reentrant)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(3):
        x = torch.randn(3, 4)
        model(x).square().sum().backward()
        optimizer.step()
    run, plain = read_run(hook), copy.deepcopy(model)
    expected = plain.block[0](plain.first(x)).detach().numpy()
    assert pairs(run.of("block.0_output_0")) == [(0, 0), (1, 0), (2, 0)]
    assert np.array_equal(run.value("block.0_output_0", 2), expected)
    again = set(notes_of(hook)["recomputed"])
    # With use_reentrant=False the last module is not recomputed: torch stops when it has all saved tensors.
    assert {"block.0", "block.1"} <= again <= {"block", "block.0", "block.1", "block.2"}


def test_a_model_without_checkpointing_has_nothing_marked(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=OUTPUTS), Reuses()
    hook.register_module(model)
    trained(model)
    read_run(hook)
    assert "recomputed" not in notes_of(hook)


@pytest.mark.supports("in-place activations", "values")
def test_in_place_operations_change_nothing_that_was_captured(one_step: OneStep) -> None:
    model, x = InPlace(), torch.randn(3, 4)
    run = one_step(model, x)
    before = model.fc1(x).detach().numpy()
    assert np.array_equal(run.value("fc1_output_0", 0), before)
    assert np.array_equal(run.value("act_input_0", 0), 2 * before)
    assert np.array_equal(run.value("act_output_0", 0), np.maximum(2 * before, 0))


@pytest.mark.supports("frozen parameters", "values")
def test_a_frozen_part_has_weights_and_outputs_and_no_gradient(one_step: OneStep) -> None:
    model, x = Frozen(), torch.randn(3, 4)
    run = one_step(model, x)
    assert np.array_equal(run.value("Frozen_base.weight", 0), model.base.weight.numpy())
    assert np.array_equal(run.value("base_output_0", 0), model.base(x).numpy())
    assert not run.of("gradient/Frozen_base.weight")
    assert [row["status"] for row in run.of("gradient/Frozen_head.weight")] == ["ok"]


@pytest.mark.supports("nested outputs", "values")
def test_nested_outputs_go_by_their_keys(one_step: OneStep) -> None:
    model, x = Nests(), torch.randn(3, 4)
    run = one_step(model, x)
    y = model.inner.fc(x).detach()
    assert {name for name in run.names() if name.startswith("inner_output")} == {
        "inner_output_y",
        "inner_output_more.1.0",
    }
    assert np.array_equal(run.value("inner_output_y", 0), y.numpy())
    assert np.array_equal(run.value("inner_output_more.1.0", 0), y.tanh().numpy())


@pytest.mark.supports("nested and ragged tensors", "values")
def test_a_jagged_tensor_is_its_values_and_offsets(one_step: OneStep) -> None:
    model, x = Ragged(), torch.randn(3, 4)
    run = one_step(model, x)
    assert np.array_equal(run.value("pools_output_0.values", 0), model(x).detach().numpy())
    assert np.array_equal(run.value("pools_output_0.offsets", 0), [0, 1, 3])
    assert np.array_equal(run.value("pools.fc_input_0.values", 0), x.numpy())


@pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning")
def test_a_nested_tensor_without_layout_is_its_values_and_sizes(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Gives(nn.Module):
        def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
            return torch.nested.nested_tensor(parts)

    hook, model = make_hook(include_collections=["outputs"]), Gives()
    hook.register_module(model)
    parts = [torch.randn(2, 3), torch.randn(1, 2)]
    model(parts)
    run = read_run(hook)
    flat = torch.cat([part.flatten() for part in parts]).numpy()
    assert np.array_equal(run.value("Gives_output_0.values", 0), flat)
    assert np.array_equal(run.value("Gives_output_0.sizes", 0), [[2, 3], [1, 2]])
