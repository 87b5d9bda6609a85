"""Steps of scripts that call a wrapper in one place and the wrapped module in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tdcore.modes import ModeKeys

from .conftest import MakeHook, ReadRun

OUTPUT = "Twice_output_0"


class Twice(nn.Module):
    """A layer that runs twice in a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(self.fc(x))
        return y


@pytest.fixture
def wrapper(tmp_path: Path) -> Iterator[DistributedDataParallel]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield DistributedDataParallel(Twice())
    finally:
        dist.destroy_process_group()


def x() -> torch.Tensor:
    return torch.randn(2, 4)


def test_a_first_evaluation_of_the_module_inside_is_one_step_with_all_its_calls(
    make_hook: MakeHook, read_run: ReadRun, wrapper: DistributedDataParallel
) -> None:
    hook = make_hook(include_collections=["inputs", "outputs"])
    hook.register_module(wrapper)
    wrapper.module.eval()(x())
    run = read_run(hook)
    assert run.trial.steps(mode=ModeKeys.EVAL) == [0]
    assert [row["call"] for row in run.of("fc_input_0")] == [0, 1]
    assert len(run.of(OUTPUT)) == 1


def test_the_wrapper_and_the_module_inside_are_the_same_root_in_evaluations(
    make_hook: MakeHook, read_run: ReadRun, wrapper: DistributedDataParallel
) -> None:
    hook = make_hook(include_collections=["outputs"])
    hook.register_module(wrapper)
    wrapper.eval()
    with torch.no_grad():
        for model in (wrapper.module, wrapper, wrapper.module):
            model(x())
    run = read_run(hook)
    assert run.trial.steps(mode=ModeKeys.EVAL) == [0, 1, 2]
    assert [row["call"] for row in run.of(OUTPUT)] == [0, 0, 0]


@pytest.mark.parametrize("inner_first", [True, False])
def test_calls_of_the_wrapper_and_of_the_module_inside_in_one_step_have_one_output_each(
    make_hook: MakeHook, read_run: ReadRun, wrapper: DistributedDataParallel, inner_first: bool
) -> None:
    hook = make_hook(include_collections=["inputs", "outputs"])
    hook.register_module(wrapper)
    hook.set_mode(ModeKeys.TRAIN)
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)
    given, values = [], []
    for model in (wrapper.module, wrapper, wrapper.module)[0 if inner_first else 1 :]:
        given.append(x())
        values.append(model(given[-1]))
    sum(value.sum() for value in values).backward()
    optimizer.step()
    run = read_run(hook)
    for name, expected in (("Twice_input_0", given), (OUTPUT, values)):
        rows = run.of(name)
        assert [row["call"] for row in rows] == list(range(len(expected)))
        assert [row["mean"] for row in rows] == pytest.approx([one.mean().item() for one in expected])
