"""The hook with CUDA graphs: replays call no hooks, and a simulated device computes their statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.steps import graphs
from tests import _sim
from tests.simulating import RING

from .conftest import MakeHook, ReadRun

EVERY_THIRD = td.SaveConfig(save_interval=3)


class Scale(nn.Module):
    """A layer whose output is a static buffer, as in a CUDA graph."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(factor))
        self.buffer = torch.zeros(50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.mul(x, self.weight, out=self.buffer)


class Graphed:
    """A model that a script calls, records into a graph and replays."""

    def __init__(self, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
        self.device = _sim.simulate_device(hook._ring, 0, host_tensors=True)
        assert hook._ring.prepare_device(0)
        self.layers = [Scale(2.0), Scale(-3.0)]
        self.model = nn.Sequential(*self.layers)
        self.input = torch.zeros(50)
        self.seen: list[np.ndarray[Any, Any]] = []  # inputs of the replays
        self._patch = monkeypatch
        monkeypatch.setattr(graphs, "uses_cuda", lambda: True)
        hook.register_module(self.model)

    def record(self) -> int:
        graph = self.device.begin_capture(0)
        self._patch.setattr(graphs, "records_graph", lambda: True)
        self.model(self.input)
        self._patch.undo()
        self.device.end_capture(0)
        return graph

    def replay(self, graph: int) -> None:
        """Do what a graph does: the work of the model, without Python code of modules, and its captures."""
        self.input.copy_(torch.randn(50))
        self.seen.append(self.input.double().numpy().copy())
        with torch.no_grad():
            value = self.input
            for layer in self.layers:
                value = torch.mul(value, layer.weight, out=layer.buffer)
        assert self.device.replay(graph, 0)


@pytest.mark.parametrize("warm_up", [0, 1, 4])
def test_replays_between_calls_of_step_have_rows_in_saved_steps(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch, warm_up: int
) -> None:
    hook = make_hook(ring=RING, save_config=EVERY_THIRD, include_regex="_output_0$")
    graphed = Graphed(hook, monkeypatch)
    for _ in range(warm_up):
        hook.step()
        graphed.model(graphed.input)
    hook.step()
    graph = graphed.record()
    recorded = int(hook.step)
    inputs = {}
    for _ in range(10):
        hook.step()
        for _ in range(2):
            graphed.replay(graph)
        inputs[int(hook.step)] = graphed.seen[-1]
    run = read_run(hook)
    saved = [step for step in inputs if step % 3 == 0]
    for name, factor in [("0_output_0", 2.0), ("1_output_0", -6.0)]:
        rows = [row for row in run.of(name) if row["step"] > recorded]
        assert [row["step"] for row in rows] == saved
        for row in rows:
            wanted = inputs[row["step"]] * factor
            assert np.allclose(
                [row["min"], row["max"], row["mean"]], [wanted.min(), wanted.max(), wanted.mean()]
            )
    assert len(run.of("Sequential_output_0")) == len(run.of("0_output_0"))


def test_a_step_with_a_graph_is_complete_only_after_the_collection(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(ring=RING, include_regex="_output_0$|^mark$")
    graphed = Graphed(hook, monkeypatch)
    hook.step()
    graph = graphed.record()
    hook.step()
    step = int(hook.step)
    graphed.replay(graph)
    hook.save_scalar("mark", 1.0)
    assert hook.flush()
    trial = td.create_trial(hook.out_dir)
    assert step in trial.steps(show_incomplete_steps=True)
    assert step not in trial.steps()
    hook.step()
    assert hook.flush()
    trial = td.create_trial(hook.out_dir)
    assert step in trial.steps()
    assert trial.tensor("0_output_0").steps() == [step]
    hook.close()


def test_gradients_of_a_graph_have_one_row_whether_its_step_is_saved_or_not(
    make_hook: MakeHook, read_run: ReadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "uses_cuda", lambda: True)
    hook = make_hook(ring=RING, save_config=EVERY_THIRD, include_collections=["gradients"])
    device = _sim.simulate_device(hook._ring, 0, host_tensors=True)
    assert hook._ring.prepare_device(0)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)
    x, weights = torch.randn(5, 6), torch.randn(5, 4)

    def train() -> None:
        optimizer.zero_grad(set_to_none=False)
        (model(x) * weights).sum().backward()
        optimizer.step()

    hook.step()
    train()  # an ordinary step, which is saved
    hook.step()
    graph = device.begin_capture(0)
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "records_graph", lambda: True)
        train()
    device.end_capture(0)
    wanted = {}
    for _ in range(7):
        hook.step()
        x.copy_(torch.randn(5, 6))
        assert model.weight.grad is not None
        model.weight.grad.copy_(weights.T @ x)  # the work of the graph, without hooks
        assert device.replay(graph, 0)
        wanted[int(hook.step)] = model.weight.grad.double().numpy().copy()
    run = read_run(hook)
    rows = run.of("gradient/Linear_weight")
    assert [row["step"] for row in rows] == [0, *(step for step in wanted if step % 3 == 0)]
    for row in rows[1:]:
        assert np.isclose(row["mean"], wanted[row["step"]].mean())
        assert np.isclose(row["max"], wanted[row["step"]].max())
