"""CUDA graphs and torch.compile: a capture never breaks a graph, and left-out tensors are counted."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.gpu.conftest import MakeHook, Tap, same_bits
from tests.gpu.training import losses_of


def test_a_graph_that_is_being_captured_is_not_broken_and_the_tensors_are_counted(tap: Tap) -> None:
    static = torch.zeros(10_000, device="cuda")
    assert tap.capture([static]) == 0  # sets up the device outside of a graph
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = static * 2
        assert tap.capture([result, static], step=1) == 2
        result += 1
    static.fill_(3)
    graph.replay()
    assert (result.cpu() == 7).all()
    assert tap.drops() == {"graph_capture": 2}


def test_the_first_capture_of_a_device_may_fall_into_a_graph(tap: Tap) -> None:
    static = torch.ones(10_000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = static * 2
        assert tap.capture([result]) == 1
    graph.replay()
    assert tap.capture([result], step=1) == 0
    assert (tap.value("t0", 1) == 2).all()


def test_static_buffers_are_captured_after_each_replay(tap: Tap) -> None:
    static = torch.zeros(100_000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = static * 2
    for step in range(20):
        static.fill_(step)
        graph.replay()
        assert tap.capture([result], step=step) == 0
    for step in range(20):
        assert (tap.value("t0", step) == 2 * step).all()


def test_captures_on_another_thread_leave_a_graph_in_the_making_alone(tap: Tap) -> None:
    tensor = torch.ones(100_000, device="cuda")
    assert tap.capture([tensor]) == 0
    torch.cuda.synchronize()

    def beside() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(1, 10):
                assert tap.capture([tensor], step=step) == 0

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = tensor * 2
        thread = threading.Thread(target=beside)
        thread.start()
        thread.join()
        result += 1
    graph.replay()
    assert (result.cpu() == 3).all()
    assert same_bits(tensor, tap.value("t0", 9))


@pytest.mark.compiles
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # ends the compilation otherwise
@pytest.mark.filterwarnings("ignore:Not enough SMs:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch warns about its own code
def test_a_compiled_training_has_the_same_losses_and_its_weights_in_the_run(
    make_hook: MakeHook, mode: str
) -> None:
    def compiled(model: nn.Module) -> nn.Module:
        return torch.compile(model, mode=mode)  # type: ignore[return-value]

    plain = losses_of(None, wrap=compiled, steps=12)
    hook = make_hook(include_collections=["weights", "biases", "gradients", "losses"])
    hooked = losses_of(hook, wrap=compiled, steps=12)
    assert hooked.losses == plain.losses
    hook.close()
    hooked.check(hook)
