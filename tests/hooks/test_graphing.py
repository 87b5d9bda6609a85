"""Registered modules in torch.cuda.make_graphed_callables(), and steps that begin in a recording."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.simulating import RING

from .conftest import Captured, MakeHook, ReadRun
from .graphing import Card, Scale

Array = np.ndarray[Any, Any]

INCLUDE = "_output_0$|_input_0$|gradient"
FACTORS = [2.0, -3.0]


class Pair(nn.Module):
    """Two layers. A script may graph the second one alone."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self.first, self.second = Scale(card, FACTORS[0]), nn.Sequential(Scale(card, FACTORS[1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def new_hook(make_hook: MakeHook, interval: int = 2) -> Hook:
    save = td.SaveConfig(save_interval=interval)
    return make_hook(
        ring=RING, save_config=save, include_regex=INCLUDE, include_collections=["output_gradients"]
    )


def registered(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> tuple[Hook, Card, nn.Sequential]:
    """Return a hook, the card of its process, and a registered model on the card."""
    hook = new_hook(make_hook, **more)
    card = Card(hook, monkeypatch)
    model = nn.Sequential(*(Scale(card, factor) for factor in FACTORS))
    hook.register_module(model)
    return hook, card, model


def train(model: nn.Module, steps: int) -> list[dict[str, Array]]:
    """Train for some steps. Return the tensors of each step, by name."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    parameters = dict(model.named_parameters())
    first, second = (name for name in parameters)
    for step in range(steps):
        x = torch.randn(5, generator=torch.Generator().manual_seed(step)).requires_grad_()
        factors = [float(parameter.detach()) for parameter in parameters.values()]
        optimizer.zero_grad()
        output = model(x)
        output.square().sum().backward()
        middle, last = x.detach() * factors[0], x.detach() * factors[0] * factors[1]
        of_last = 2 * last
        tensors = {
            "middle": middle,
            "last": last,
            "of_middle": of_last * factors[1],
            "of_last": of_last,
            first: (of_last * factors[1] * x.detach()).sum(),
            second: (of_last * middle).sum(),
        }
        found.append({name: tensor.double().numpy() for name, tensor in tensors.items()})
        optimizer.step()
    return found


NAMES = {
    "0_output_0": "middle",
    "1_input_0": "middle",
    "1_output_0": "last",
    "Sequential_output_0": "last",
    "output_gradient/0_output_0": "of_middle",
    "output_gradient/1_output_0": "of_last",
    "gradient/Sequential_0.factor": "0.factor",
    "gradient/Sequential_1.factor": "1.factor",
}


def check(
    run: Captured,
    names: dict[str, str],
    expected: list[dict[str, Array]],
    steps: list[int],
    modes: Sequence[str] = ("TRAIN",),
) -> None:
    """Compare rows of the modes with the tensors of each step."""
    for name, kind in names.items():
        rows = [row for row in run.of(name) if row["mode"] in modes]
        assert [row["step"] for row in rows] == steps, name
        for row in rows:
            wanted = expected[row["step"]][kind]
            assert np.allclose(
                [row["min"], row["max"], row["mean"]], [wanted.min(), wanted.max(), wanted.mean()]
            ), name


def test_a_registered_model_is_graphed_and_its_replays_have_the_rows_of_the_model(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, card, model = registered(make_hook, monkeypatch)
    with pytest.raises((RuntimeError, AssertionError), match="hooks"):
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, requires_grad=True),))
    with hook.graphing():
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, requires_grad=True),))
    expected = train(model, 5)
    assert card.replays == 10
    check(read_run(hook), NAMES, expected, [0, 2, 4])
    assert card.device.violations == 0


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_is_graphed_if_the_script_also_compiles_code(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compile(torch.square, backend="eager")
    hook, _, model = registered(make_hook, monkeypatch)
    with hook.graphing():
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, requires_grad=True),))
    expected = train(model, 5)
    check(read_run(hook), NAMES, expected, [0, 2, 4])


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_model_is_recorded_after_another_model_was_graphed(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    compiled: Any = torch.compile(model, backend="eager")
    hook = new_hook(make_hook, interval=1)
    hook.register_module(compiled)
    with hook.graphing():
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    compiled(torch.ones(3)).sum().backward()
    with hook.graphing(nn.Linear(1, 1)):
        pass
    compiled(torch.ones(3)).sum().backward()
    assert [row["step"] for row in read_run(hook).of("1_output_0")] == [0, 1]


def test_a_module_inside_a_registered_model_is_graphed_alone(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = new_hook(make_hook)
    card = Card(hook, monkeypatch)
    model = Pair(card)
    hook.register_module(model)
    with hook.graphing(model.second):
        torch.cuda.make_graphed_callables(model.second, (torch.zeros(5, requires_grad=True),))
    names = {
        "first_output_0": "middle",
        "second_input_0": "middle",
        "second.0_output_0": "last",
        "second_output_0": "last",
        "output_gradient/first_output_0": "of_middle",
        "output_gradient/second.0_output_0": "of_last",
        "gradient/Pair_second.0.factor": "second.0.factor",
    }
    expected = train(model, 5)
    check(read_run(hook), names, expected, [0, 2, 4])


def test_a_model_may_be_graphed_between_its_steps_and_evaluated_without_its_graph(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, card, model = registered(make_hook, monkeypatch, interval=1)
    expected = train(model, 2)
    with hook.graphing():
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, requires_grad=True),))
    expected += train(model, 2)
    assert card.replays == 4
    model.eval()
    with torch.no_grad():
        output = model(torch.ones(5))
    assert card.replays == 4
    expected.append({"last": output.double().numpy()})
    run = read_run(hook)
    check(run, NAMES, expected, [0, 1, 2, 3], modes=["TRAIN"])
    check(run, {"1_output_0": "last", "Sequential_output_0": "last"}, expected, [4], modes=["EVAL"])


def test_modules_are_unchanged_after_the_context_if_they_were_not_graphed(make_hook: MakeHook) -> None:
    hook = new_hook(make_hook)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    own = model[1].forward
    model[1].forward = own  # as other libraries do
    hook.register_module(model)
    before = [dict(module._forward_pre_hooks) for module in model.modules()]
    with hook.graphing():
        assert not model._forward_pre_hooks
    with pytest.raises(ValueError, match="of the script"), hook.graphing(model[1]):
        raise ValueError("of the script")
    assert [dict(module._forward_pre_hooks) for module in model.modules()] == before
    assert "forward" not in vars(model)
    assert vars(model[1])["forward"] is own
    del model[1].forward
    assert torch.equal(copy.deepcopy(model)(torch.ones(3)), model(torch.ones(3)))
    pickle.dumps(model)


def test_a_closed_hook_does_not_return_to_the_model(make_hook: MakeHook) -> None:
    hook = new_hook(make_hook)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    hook.register_module(model)
    with hook.graphing():
        hook.close()
    assert not any(module._forward_pre_hooks for module in model.modules())
    with hook.graphing():
        model(torch.ones(3))


def test_contexts_may_be_nested_and_get_functions(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, _, model = registered(make_hook, monkeypatch)
    with hook.graphing(), hook.graphing(model):
        pass
    assert "forward" not in vars(model)
    with hook.graphing():
        with hook.graphing(torch.relu), hook.graphing(model):  # make_graphed_callables() accepts functions
            pass
        torch.cuda.make_graphed_callables(model, (torch.zeros(5, requires_grad=True),))
    expected = train(model, 3)
    check(read_run(hook), NAMES, expected, [0, 2])


def test_calls_in_the_context_begin_no_step_and_have_no_rows(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = new_hook(make_hook, interval=1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    hook.register_module(model)
    with hook.graphing():
        for _ in range(3):
            model(torch.ones(3)).sum().backward()
    assert int(hook.step) == -1
    model(torch.ones(3)).sum().backward()
    assert [row["step"] for row in read_run(hook).of("0_output_0")] == [0]


@pytest.mark.parametrize("replayed", [True, False])
def test_a_step_that_begins_in_a_recording_collects_and_arms_earlier_graphs(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch, replayed: bool
) -> None:
    hook, card, model = registered(make_hook, monkeypatch, interval=1)
    graph, later = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    static = torch.ones(5)

    def record(into: torch.cuda.CUDAGraph) -> None:
        card.stream = 0  # torch.cuda.graph records on a stream of its own
        with torch.cuda.graph(into), torch.no_grad():
            hook.step()
            model(static)
        card.stream = 3

    card.stream = 3
    hook.step()
    record(graph)
    hook.step()
    static.fill_(2.0)
    graph.replay()
    collected = int(hook.step)
    record(later)
    static.fill_(4.0)
    if replayed:
        graph.replay()
    armed = int(hook.step)
    hook.step()
    run = read_run(hook)
    wanted = {collected: 4.0} | ({armed: 8.0} if replayed else {})
    assert {row["step"]: row["mean"] for row in run.of("0_output_0")} == wanted
    assert card.device.violations == 0
