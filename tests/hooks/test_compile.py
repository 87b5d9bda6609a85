"""Models compiled by torch.compile: values, graphs, variants, an unchanged training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import tdcore as td

from .compiling import EVERYTHING, Build, Forward, captured, eager, net, train, wrapped
from .conftest import MakeHook, ReadRun

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def in_place(model: nn.Module, criterion: nn.Module) -> Forward:
    model.compile(fullgraph=True, backend="aot_eager")
    return lambda x: criterion(model(x), torch.zeros(5, 3))


def in_a_function(model: nn.Module, criterion: nn.Module) -> Forward:
    def forward(x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = criterion(model(x), torch.zeros(5, 3))
        return loss

    return torch.compile(forward, fullgraph=True, backend="aot_eager")


@pytest.fixture(scope="module")
def plain_losses() -> list[torch.Tensor]:
    torch.set_num_threads(1)
    model = net()
    return train(wrapped(model, nn.MSELoss()), model, 5)


@pytest.mark.supports("torch.compile, fullgraph", "values")
@pytest.mark.supports("torch.compile, fullgraph", "losses")
@pytest.mark.supports("torch.compile, fullgraph", "breaks")
@pytest.mark.parametrize(
    ("build", "when"),
    [(wrapped, "before"), (wrapped, "after"), (in_place, "before"), (in_a_function, "before")],
)
def test_compiled_models_give_the_rows_and_values_of_eager_ones(
    make_hook: MakeHook,
    read_run: ReadRun,
    tmp_path: Any,
    plain_losses: list[torch.Tensor],
    build: Build,
    when: str,
) -> None:
    expected, _ = captured(make_hook, read_run, eager, tmp_path / "eager", "before")
    run, losses = captured(make_hook, read_run, build, tmp_path / "compiled", when)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] <= 2
    key = ("name", "kind", "step", "call", "mode_step")
    rows = [[tuple(row[part] for part in key) for row in one.rows] for one in (run, expected)]
    assert sorted(rows[0]) == sorted(rows[1])
    for name, _, step, *_ in rows[1]:
        assert np.allclose(run.value(name, step), expected.value(name, step), rtol=1e-6, atol=1e-7), name
    for one, two in zip(losses, plain_losses, strict=True):
        assert torch.equal(one, two)


@pytest.mark.supports("torch.compile, fullgraph", "breaks")
def test_steps_that_save_nothing_share_one_variant_also_in_a_row(make_hook: MakeHook) -> None:
    model, criterion = net(), nn.MSELoss()
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=3))
    forward = in_a_function(model, criterion)
    hook.register_module(model)
    hook.register_loss(criterion)
    train(forward, model, 8)
    assert not hook._faults
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.supports("torch.compile, fullgraph", "cost")
def test_between_saved_steps_modules_carry_nothing_and_the_code_without_hooks_runs(
    make_hook: MakeHook,
) -> None:
    model = net()
    hook = make_hook(include_collections=["outputs"], save_config=td.SaveConfig(start_step=2, end_step=3))
    forward = wrapped(model, nn.MSELoss())
    hook.register_module(model)
    train(forward, model, 2)
    assert counters["stats"]["calls_captured"] == 3  # the three layers
    for module in (model.fc1, model.relu, model.fc2):
        assert not module._forward_hooks
        assert "forward" not in vars(module)


def test_registering_what_torch_compile_gave_names_tensors_as_the_model_does(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = net()
    faster: Any = torch.compile(model, backend="aot_eager")
    hook = make_hook(include_collections=["weights", "outputs"])
    hook.register_module(faster)
    train(lambda x: faster(x).square().mean(), model, 1)
    assert {"Net_fc1.weight", "fc1_output_0", "Net_output_0"} <= set(read_run(hook).names())


def of_two_models(make_hook: MakeHook, read_run: ReadRun, folder: Any, compiling: bool) -> tuple[Any, Any]:
    """Return a run of a generator and a critic in one function, and the losses. Steps 0 and 2 are saved."""
    generator, judge = net(), nn.Linear(3, 2)
    critic = nn.Sequential(judge, nn.Tanh())
    nn.init.constant_(judge.weight, 0.5)
    nn.init.constant_(judge.bias, 0.1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        judged: torch.Tensor = critic(generator(x))
        return judged.square().mean()

    hook = make_hook(
        out_dir=folder, include_collections=EVERYTHING, save_config=td.SaveConfig(save_interval=2)
    )
    faster = torch.compile(forward, fullgraph=True, backend="eager") if compiling else forward
    hook.register_module(generator)
    hook.register_module(critic)
    losses = train(faster, nn.ModuleList([generator, critic]), 4)
    assert not hook._faults
    assert "compiled" not in hook._notes  # the forward of every step ran with module hooks
    return read_run(hook), losses


def test_further_roots_in_compiled_code_give_the_rows_and_values_of_eager_ones(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Any
) -> None:
    expected, eager_losses = of_two_models(make_hook, read_run, tmp_path / "eager", compiling=False)
    run, losses = of_two_models(make_hook, read_run, tmp_path / "compiled", compiling=True)
    rows = [sorted((row["name"], row["step"], row["call"]) for row in one.rows) for one in (run, expected)]
    assert rows[0] == rows[1]
    assert {("Sequential.0_output_0", 0, 0), ("Sequential.0_output_0", 2, 0)} <= set(rows[0])
    for name, step, _ in rows[1]:
        assert np.allclose(run.value(name, step), expected.value(name, step), rtol=1e-6, atol=1e-7), name
    assert all(map(torch.equal, losses, eager_losses))


def test_output_gradients_that_compiled_code_does_not_give_are_told_and_break_no_graph(
    make_hook: MakeHook,
) -> None:
    model = net()
    hook = make_hook(include_collections=["output_gradients", "outputs"])
    forward = torch.compile(lambda x: model(x).square().mean(), fullgraph=True, backend="eager")
    hook.register_module(model)
    train(forward, model, 2)
    assert not hook._faults
    assert "compiled" in hook._notes["output_gradients"]
