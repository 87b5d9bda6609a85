"""Exports and traces of a model with a hook equal those of a model without one, and begin no step."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tdcore as td
from tdcore.modes import ModeKeys

from .conftest import MakeHook, ReadRun
from .models import Net

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
]

Tracer = Callable[[nn.Module, torch.Tensor], object]


class Around(nn.Module):
    """A model that calls the registered model inside of its forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) * 2
        return y


class ByMethod(Net):
    """A model that is trained through a method other than forward."""

    def compute(self, x: torch.Tensor) -> torch.Tensor:
        return Net.forward(self, x)


def export(model: nn.Module, x: torch.Tensor) -> object:
    return torch.export.export(model, (x,)).graph_module.code


def export_strictly(model: nn.Module, x: torch.Tensor) -> object:
    return torch.export.export(model, (x,), strict=True).graph_module.code


def export_around(model: nn.Module, x: torch.Tensor) -> object:
    return torch.export.export(Around(model), (x,)).graph_module.code


def dynamo_export(model: nn.Module, x: torch.Tensor) -> object:
    exported: Any = torch._dynamo.export(model)
    graph = exported(x).graph_module  # dynamo derives names of values from variables of the code
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"], graph(x)


def save_exported(model: nn.Module, x: torch.Tensor) -> object:
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,)), file)
    file.seek(0)
    return torch.export.load(file).module()(x)


def script(model: nn.Module, x: torch.Tensor) -> object:
    scripted: Any = torch.jit.script(model)
    return scripted.code, scripted(x)


def trace(model: nn.Module, x: torch.Tensor) -> object:
    traced: Any = torch.jit.trace(model, x, check_trace=False)
    return traced.graph


def trace_around(model: nn.Module, x: torch.Tensor) -> object:
    traced: Any = torch.jit.trace(Around(model), x, check_trace=False)
    return traced.graph


def fx(model: nn.Module, x: torch.Tensor) -> object:
    return torch.fx.symbolic_trace(model).code


def fx_around(model: nn.Module, x: torch.Tensor) -> object:
    return torch.fx.symbolic_trace(Around(model)).code


def proxies(model: nn.Module, x: torch.Tensor) -> object:
    return make_fx(model)(x).code


def symbolic_proxies(model: nn.Module, x: torch.Tensor) -> object:
    return make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(x).code


def fake(model: nn.Module, x: torch.Tensor) -> object:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return model(torch.empty(x.shape)).shape


def onnx(model: nn.Module, x: torch.Tensor) -> object:
    pytest.importorskip("onnx")
    file: Any = io.BytesIO()
    torch.onnx.export(model, (x,), file, dynamo=False)
    return len(file.getvalue())


TRACERS = [
    dynamo_export,
    export,
    export_around,
    export_strictly,
    fake,
    fx,
    fx_around,
    onnx,
    proxies,
    save_exported,
    script,
    symbolic_proxies,
    trace,
    trace_around,
]


def readable(result: object) -> str:
    """Return the text without the names that torch.jit creates for a second class of the same name."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(result))


def net_and_input() -> tuple[ByMethod, torch.Tensor]:
    torch.manual_seed(0)
    return ByMethod(), torch.randn(2, 4)


@pytest.mark.parametrize("interval", [1, 100])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_traced_model_is_the_same_and_no_step(
    make_hook: MakeHook, read_run: ReadRun, tracer: Tracer, training: bool, interval: int
) -> None:
    model, x = net_and_input()
    expected = tracer(model.train(training), x)
    torch._dynamo.reset()
    model, x = net_and_input()
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=interval))
    hook.register_module(model)
    with torch.no_grad():
        model.eval()(x)
    model.train(training)
    assert readable(tracer(model, x)) == readable(expected)
    model.train()(x).sum().backward()
    run = read_run(hook)
    assert run.trial.steps(mode=ModeKeys.TRAIN) == [0]
    assert len(run.trial.steps(mode=ModeKeys.EVAL)) == 1
    assert not run.trial.steps(mode=ModeKeys.PREDICT)
    assert [row["call"] for row in run.of("ByMethod_output_0")] == [0, 0]  # one in EVAL, one in TRAIN


@pytest.mark.parametrize("by_method", [True, False])
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_trace_between_forward_and_backward_of_a_saved_step_leaves_no_row(
    make_hook: MakeHook, read_run: ReadRun, tracer: Tracer, by_method: bool
) -> None:
    model, x = net_and_input()
    expected = tracer(model, x)
    torch._dynamo.reset()
    model, x = net_and_input()
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=1))
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for step in range(3):
        loss = (model.compute if by_method else model)(x).sum()
        if step == 1:
            assert readable(tracer(model, x)) == readable(expected)
        loss.backward()
        optimizer.step()
    run = read_run(hook)
    assert run.trial.steps(mode=ModeKeys.TRAIN) == [0, 1, 2]
    assert [row["call"] for row in run.of("fc1_output_0") if row["step"] == 1] == [0]
    assert not run.trial.notes().get("faults")
