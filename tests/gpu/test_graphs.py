"""CUDA graphs and torch.compile: a capture never breaks a graph, and replays compute statistics."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn

import tdcore as td
from tests.gpu.conftest import STATISTICS, MakeHook, Tap, same_bits
from tests.gpu.training import losses_of


def stream_of(tensor: torch.Tensor) -> int:
    return torch.cuda.current_stream(tensor.device).cuda_stream


def test_a_replay_computes_the_statistics_of_the_tensors_that_were_captured_into_the_graph(tap: Tap) -> None:
    static = torch.zeros(100_000, device="cuda")
    assert tap.capture([static], STATISTICS, prefix="first") == 0  # sets up the device outside of a graph
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = static * 2
        assert tap.capture([result, static[::3]], STATISTICS, step=1) == 0
        result += 1
    ring = tap.session.ring
    assert ring.graph_devices() == [0]
    for step in range(2, 12):
        static.fill_(step)
        saved = step % 3 == 0
        assert not saved or ring.arm_graphs(0, stream_of(static))
        graph.replay()
        assert not saved or ring.collect_graphs(0, stream_of(static), step, 1, step) == 0
    assert (result.cpu() == 23).all()
    for step in (3, 6, 9):
        for name, mean, count in [("t0", 2 * step, 100_000), ("t1", step, 33_334)]:
            row = tap.statistics(name, step)
            assert (row["mean"], row["min"], row["max"], row["elements"]) == (mean, mean, mean, count)
    assert list(tap.trial.tensor("t0").steps()) == [3, 6, 9]
    assert tap.drops() == {}


def test_values_are_left_out_of_a_graph_and_counted(tap: Tap) -> None:
    static = torch.ones(10_000, device="cuda")
    assert tap.capture([static], prefix="first") == 0
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        assert tap.capture([static]) == 0
    ring = tap.session.ring
    assert ring.arm_graphs(0, stream_of(static))
    graph.replay()
    ring.collect_graphs(0, stream_of(static), 4, 1, 4)
    assert tap.statistics("t0", 4)["mean"] == 1
    assert tap.drops() == {"graph_capture": 1}


def test_memory_of_graphs_that_were_deleted_is_used_again(tap: Tap) -> None:
    static = torch.ones(1_000_000, device="cuda")
    assert tap.capture([static], STATISTICS) == 0
    for _ in range(400):  # each takes 256 KiB of 64 MiB
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = static * 2
            assert tap.capture([result], STATISTICS) == 0
        graph.replay()
        torch.cuda.synchronize()
        del graph
        gc.collect()
    assert tap.drops() == {}


def test_a_graph_may_be_replayed_after_the_session_has_ended(tap: Tap) -> None:
    static = torch.ones(10_000, device="cuda")
    assert tap.capture([static], STATISTICS) == 0
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        result = static * 2
        tap.capture([result], STATISTICS)
    tap.session.close()
    static.fill_(4)
    graph.replay()
    assert (result.cpu() == 8).all()


def test_a_training_in_a_graph_has_statistics_of_its_saved_steps(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=4), include_collections=["gradients", "outputs"])
    last = nn.Linear(32, 4)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), last).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    static = torch.randn(8, 16, device="cuda")
    hook.register_module(model)

    def train() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        output: torch.Tensor = model(static)
        output.square().mean().backward()
        optimizer.step()
        return output

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            hook.step()
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    hook.step()
    with torch.cuda.graph(graph):
        output = train()
    wanted = {}
    for _ in range(12):
        hook.step()
        static.copy_(torch.randn(8, 16))
        graph.replay()
        assert last.weight.grad is not None
        wanted[int(hook.step)] = output.double().mean().item(), last.weight.grad.double().mean().item()
    hook.close()
    trial = td.create_trial(str(hook.out_dir))
    for step in (step for step in wanted if step % 4 == 0):
        for name, mean in zip(("2_output_0", "gradient/Sequential_2.weight"), wanted[step], strict=True):
            (row,) = trial.tensor(name).stats(steps=[step]).to_pylist()
            assert row["mean"] == pytest.approx(mean, rel=1e-5, abs=1e-8)


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


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_reduce_overhead_has_the_module_outputs_of_each_step(make_hook: MakeHook) -> None:
    hook = make_hook(include_regex="_output_0$", reduction_config=td.ReductionConfig())
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    hook.register_module(model)
    means = {}
    with torch.no_grad():
        for _ in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            output = compiled(torch.randn(8, 16, device="cuda"))
            means[hook.global_step] = output.double().mean().item()
    hook.close()
    rows = td.create_trial(str(hook.out_dir)).tensor("2_output_0").stats().to_pylist()
    assert [row["step"] for row in rows] == sorted(means)
    for row in rows:
        assert row["mean"] == pytest.approx(means[row["step"]], rel=1e-4, abs=1e-6)
