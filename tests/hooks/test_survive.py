"""Problems that users of other tools have reported, each as a test.

Numbers in names are those of the list.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.steps.driver_state import _IDLE_FORWARDS

from .conftest import Captured, MakeHook, ReadRun
from .models import Net, train


def test_1_gradients_of_a_convolution_before_an_inplace_relu(make_hook: MakeHook, read_run: ReadRun) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(2 * 16, 3))
    hook = make_hook(include_collections=["gradients", "outputs"])
    hook.register_module(model)
    x = torch.randn(2, 1, 6, 6)
    before = model[0](x).detach().numpy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().mean().backward()
    gradient = model[0].weight.grad
    assert isinstance(gradient, torch.Tensor)
    expected = gradient.clone().numpy()
    optimizer.step()
    run = read_run(hook)
    assert (before < 0).any()
    assert np.array_equal(run.value("0_output_0", 0), before)
    assert np.array_equal(run.value("gradient/Sequential_0.weight", 0), expected)


def test_3_a_frozen_backbone_and_a_frozen_embedding(make_hook: MakeHook, read_run: ReadRun) -> None:
    class Tuned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.backbone, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.backbone(self.embed(x)))

    model = Tuned()
    model.embed.requires_grad_(False)
    model.backbone.requires_grad_(False)
    hook = make_hook(save_all=True)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
    run = read_run(hook)
    gradients = {name for name in run.names() if name.startswith("gradient/")}
    assert gradients == {"gradient/Tuned_head.weight", "gradient/Tuned_head.bias"}
    assert run.steps("Tuned_embed.weight") == [0, 1]
    assert hook._notes["frozen"] == ["Tuned_embed.weight", "Tuned_backbone.weight", "Tuned_backbone.bias"]


class Doubling(Dataset[torch.Tensor]):
    """A data set that calls the hooked model in the worker process."""

    def __init__(self, model: nn.Module, hook: Hook) -> None:
        self.model, self.hook = model, hook

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            self.model(torch.ones(1, 4))
        self.hook.save_scalar("from the child", index)
        return torch.full((4,), float(index))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_21_forked_loader_workers_start_and_find_capture_off(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    loader = DataLoader(Doubling(model, hook), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    run = read_run(hook)
    assert run.steps("gradient/Net_fc1.weight") == [0, 1, 2, 3]
    assert not any(name.startswith("scalar/") for name in run.names())


TENSORS: dict[str, Any] = {
    "bf16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "fp16": lambda: torch.ones(3, dtype=torch.float16),
    "fp64": lambda: torch.ones(3, dtype=torch.float64),
    "fp8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "int": lambda: torch.arange(3),
    "uint8": lambda: torch.arange(3, dtype=torch.uint8),
    "bool": lambda: torch.tensor([True, False]),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "conjugate": lambda: torch.tensor([1 + 2j]).conj(),
    "negative view": lambda: torch.tensor([1 + 2j]).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse csr": lambda: torch.eye(3).to_sparse_csr(),
    "meta": lambda: torch.empty(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "empty": lambda: torch.empty(0, 3),
    "no dimension": lambda: torch.tensor(2.0),
    "expanded": lambda: torch.ones(1).expand(4),
    "transposed": lambda: torch.arange(6.0).reshape(2, 3).t(),
    "channels last": lambda: torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "strided": lambda: torch.arange(10.0)[::3],
    "subclass": lambda: nn.Parameter(torch.ones(2)),
}


@pytest.mark.filterwarnings("ignore")  # torch itself warns about its sparse, nested and quantised tensors
def test_23_every_kind_of_tensor_is_captured_or_skipped_with_a_reason(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {name: make() for name, make in TENSORS.items()}

    hook, model = make_hook(include_collections=["outputs"]), Gives()
    hook.register_module(model)
    model(torch.ones(1))
    assert not hook._faults
    run = read_run(hook)
    rows = {row["name"].removeprefix("Gives_output_"): row for row in run.rows}
    assert rows.keys() == TENSORS.keys() - {"nested"} | {"nested.values", "nested.sizes"}
    for name in ("sparse", "sparse csr", "meta", "quantised"):
        assert rows[name]["status"] == "skipped", name
        assert rows[name]["reason"], name
    for name, row in rows.items():
        assert row["status"] == "ok" or row["reason"], name
    for name in ("expanded", "transposed", "channels last", "strided", "conjugate", "negative view", "empty"):
        tensor = TENSORS[name]()
        assert np.array_equal(
            run.value(f"Gives_output_{name}", 0), tensor.resolve_conj().resolve_neg().numpy()
        ), name


def test_24_extreme_values_are_counted_and_the_run_goes_on(make_hook: MakeHook, read_run: ReadRun) -> None:
    values = {
        "nan": torch.full((3,), torch.nan),
        "inf": torch.tensor([1.0, torch.inf]),
        "large": torch.full((5,), 1e16),
        "one": torch.tensor([3.0]),
        "none": torch.empty(0),
    }

    class Gives(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return values

    hook, model = make_hook(include_collections=["outputs"]), Gives()
    hook.register_module(model)
    model(torch.ones(1))
    run = read_run(hook)
    rows = {row["name"].removeprefix("Gives_output_"): row for row in run.rows}
    assert (rows["nan"]["nan_count"], rows["nan"]["count"]) == (3, 3)
    assert rows["inf"]["pos_inf_count"] == 1
    assert (rows["large"]["mean"], rows["large"]["m2"]) == (float(np.float32(1e16)), 0.0)
    assert rows["one"]["mean"] == 3.0
    assert rows["none"]["count"] == 0


def test_30_replicas_in_threads_do_not_crash(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    errors: list[BaseException] = []

    def run(replica: nn.Module) -> None:
        try:
            for _ in range(50):
                replica(torch.randn(2, 4))
        except BaseException as error:
            errors.append(error)

    replicas = [replicate(model) for _ in range(4)]
    threads = [threading.Thread(target=run, args=(replica,)) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not hook._faults
    assert hook.global_step == 4 * 50 - _IDLE_FORWARDS  # without a backward, each later forward is a step


def replicate(module: nn.Module) -> nn.Module:
    """Replicate as DataParallel does, without a device: shallow copies with tensors for parameters."""
    replica: nn.Module = module._replicate_for_data_parallel()
    for key, parameter in module._parameters.items():
        setattr(replica, key, None if parameter is None else parameter.detach().clone())
    for key, child in module._modules.items():
        if child is not None:
            replica._modules[key] = replicate(child)
            setattr(replica, key, replica._modules[key])
    return replica


def test_30_a_wrapper_that_runs_replicas_in_threads_is_captured(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Parallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = x.chunk(2)
            results: dict[int, torch.Tensor] = {}

            def run(index: int, replica: nn.Module) -> None:
                results[index] = replica(parts[index])

            threads = [
                threading.Thread(target=run, args=(index, replicate(self.module)))
                for index in range(len(parts))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return torch.cat([results[0], results[1]])

    hook, model = make_hook(include_collections=["outputs"]), Parallel(Net())
    hook.register_module(model)
    for _ in range(5):
        hook.step()
        model(torch.randn(4, 4))
    run = read_run(hook)
    assert hook.global_step == 4
    for step in range(5):
        calls = [row["call"] for row in run.of("module.fc1_output_0") if row["step"] == step]
        assert sorted(calls) == [0, 1]


def test_30_data_parallel_without_devices(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(save_all=True), nn.DataParallel(Net())
    hook.register_module(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
    assert read_run(hook).steps("gradient/DataParallel_module.fc1.weight") == [0, 1]


def test_48_a_run_folder_that_vanishes_does_not_stop_the_training(
    make_hook: MakeHook, tmp_path: Path
) -> None:
    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, steps=2)
    shutil.rmtree(hook.out_dir)
    losses = train(model, optimizer, steps=20)
    assert len(losses) == 20
    assert not hook._faults


def test_a_flusher_process_gives_the_same_run(make_hook: MakeHook, read_run: ReadRun, tmp_path: Path) -> None:
    runs: list[Captured] = []
    for flusher in ("thread", "process"):
        torch.manual_seed(3)
        hook, model = make_hook(save_all=True, flusher=flusher, out_dir=tmp_path / flusher), Net()
        hook.register_module(model)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=3)
        runs.append(read_run(hook))
    one, two = ([(row["step"], row["name"], row["mean"], row["m2"]) for row in run.rows] for run in runs)
    assert one == two
