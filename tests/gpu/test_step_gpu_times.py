"""Time of the GPU of each step (Trial.steps_time()), on a real device."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

import tdcore as td
from tests.gpu.conftest import MakeHook

SIZE = 2048
SLEEP_CYCLES = 20_000_000  # of torch.cuda._sleep(); 10 ms on a GPU of 2 GHz
TOLERANCE_NS = 2_000_000  # the clocks of the CPU and of the GPU start at different moments
Rows = list[dict[str, Any]]


class Training:
    """A model of matrix products on the device. The loss of a step is read only if `waits` is set."""

    def __init__(self, make_hook: MakeHook) -> None:
        self.hook = make_hook(save_config=td.SaveConfig(start_step=1 << 40))
        self.model = nn.Sequential(*(nn.Linear(SIZE, SIZE, device="cuda") for _ in range(4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(SIZE, SIZE, device="cuda")
        self.hook.register_module(self.model)

    def step(self, *, cycles: int = 0, waits: bool = True) -> None:
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        if cycles:
            torch.cuda._sleep(cycles)
        loss.backward()
        self.optimizer.step()
        if waits:
            loss.item()
            torch.cuda.synchronize()

    def rows(self) -> Rows:
        self.hook.close()
        rows: Rows = td.create_trial(self.hook.out_dir).steps_time().to_pylist()
        return rows


def sleep_ns() -> float:
    """The time of torch.cuda._sleep(SLEEP_CYCLES), measured with events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    torch.cuda.synchronize()
    start.record()
    torch.cuda._sleep(SLEEP_CYCLES)
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e6


def test_the_time_of_the_gpu_is_within_the_duration_of_the_step(make_hook: MakeHook) -> None:
    training = Training(make_hook)
    for _ in range(30):
        training.step()
    rows = training.rows()
    assert [row["mode_step"] for row in rows] == list(range(30))
    for row in rows[1:]:
        assert 0 < row["gpu_ns"] <= row["duration_ns"] + TOLERANCE_NS
    # Most of the step is the work of the GPU.
    assert sum(row["gpu_ns"] for row in rows[5:]) >= 0.5 * sum(row["duration_ns"] for row in rows[5:])


def test_a_sleep_on_the_cpu_between_two_steps_does_not_count(make_hook: MakeHook) -> None:
    training = Training(make_hook)
    for step in range(20):
        training.step()
        if step >= 10:
            time.sleep(0.1)
    rows = training.rows()
    fast, slow = rows[5:10], rows[10:19]
    assert min(row["duration_ns"] for row in slow) >= 100_000_000
    assert max(row["gpu_ns"] for row in slow) <= max(row["gpu_ns"] for row in fast) + 50_000_000


def test_a_sleep_on_the_gpu_counts(make_hook: MakeHook) -> None:
    training = Training(make_hook)
    expected = sleep_ns()
    for step in range(20):
        training.step(cycles=SLEEP_CYCLES if step >= 10 else 0)
    for row in training.rows()[10:]:
        assert row["gpu_ns"] >= 0.9 * expected


def test_a_gpu_that_is_many_steps_late_has_the_times_of_its_own_steps(make_hook: MakeHook) -> None:
    training = Training(make_hook)
    expected = sleep_ns()
    for _ in range(5):
        training.step()
    begin = time.perf_counter_ns()
    for step in range(10):
        training.step(cycles=SLEEP_CYCLES * (1 + step % 2), waits=False)
    passed = time.perf_counter_ns() - begin
    torch.cuda.synchronize()
    rows = training.rows()
    assert passed < 10 * expected  # no call has waited for the device
    for step, row in enumerate(rows[5:15]):
        assert row["gpu_ns"] >= 0.9 * expected * (1 + step % 2)
    assert max(row["gpu_ns"] for row in rows[5:15:2]) < min(row["gpu_ns"] for row in rows[6:15:2])


def test_a_graph_that_is_captured_is_not_broken_and_its_step_has_no_time(make_hook: MakeHook) -> None:
    training = Training(make_hook)
    for _ in range(3):
        training.step()
    graph = torch.cuda.CUDAGraph()
    training.model.eval()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            training.model(training.x)  # sets up cuBLAS on another stream
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            result = training.model(training.x)
        graph.replay()
        assert torch.allclose(result, training.model(training.x))
    training.model.train()
    training.step()
    training.hook.close()
    trial = td.create_trial(training.hook.out_dir)
    train, evaluation = (
        trial.steps_time(mode=mode)["gpu_ns"].to_pylist() for mode in (td.modes.TRAIN, td.modes.EVAL)
    )
    assert None not in train
    # The first step ends in the capture of the graph, which is the second step.
    assert [value is None for value in evaluation] == [True, True, False]
    assert not [note for note in trial.notes().get("not_captured", []) if "time of the GPU" in note]


def test_a_training_has_the_same_weights_with_and_without_events(make_hook: MakeHook) -> None:
    weights = []
    for registers in (True, False):
        torch.manual_seed(0)
        training = Training(make_hook)
        if not registers:
            training.hook.close()
        for _ in range(5):
            training.step(waits=False)
        weights.append(next(training.model.parameters()).detach().cpu())
    assert torch.equal(*weights)
