"""A second hook on one model, as when a notebook cell is run again."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.trainers.checks import flushers_of
from tests.waiting import wait_until

from .conftest import MakeHook, ReadRun
from .models import Net, train


def steps_of(model: nn.Module, steps: int = 2) -> None:
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=steps)


def descriptors() -> set[tuple[str, int, int]]:
    """Return the open file descriptors of this process, each with its target."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing itself
            status = os.stat(f"/proc/self/fd/{number}")
            found.add((number, status.st_dev, status.st_ino))
    return found


def test_a_cell_that_runs_again_leaves_one_flusher_one_hook_and_the_descriptors_of_one(
    tmp_path: Path,
) -> None:
    gc.collect()
    before = descriptors()  # hooks of other tests may close their descriptors meanwhile
    model = Net()
    counted = []
    for _ in range(4):
        hook = td.watch(model, tmp_path / "run", save_interval=1)
        steps_of(model)
        wait_until(lambda: flushers_of(tmp_path / "run"), "the flusher had begun")
        opened = len(descriptors() - before)
        counted.append((len(flushers_of(tmp_path / "run")), opened, len(model._forward_pre_hooks)))
    assert counted == [counted[0]] * 4
    assert counted[0][0] == 1
    hook.close()
    for attempt in range(4):
        trial = td.create_trial(tmp_path / "run", attempt=attempt)
        assert trial.tensor("Net_fc1.weight").steps() == [0, 1]


def test_the_new_hook_says_that_it_closes_the_old_one_and_the_old_run_says_so_too(
    make_hook: MakeHook, read_run: ReadRun, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    model = Net()
    first, second = make_hook(out_dir=tmp_path / "first"), make_hook(out_dir=tmp_path / "second")
    first.register_module(model)
    with caplog.at_level(logging.WARNING, logger="tdcore"):
        second.register_module(model)
    (said,) = [record.getMessage() for record in caplog.records if "new hook" in record.getMessage()]
    assert "Net" in said
    assert str(tmp_path / "first") in said
    assert str(tmp_path / "second") in said
    assert "closed" in repr(first)
    assert read_run(first).trial.notes()["taken_over_by"] == str(tmp_path / "second")


@pytest.mark.parametrize("wrap", ["first", "second"])
def test_a_wrapper_and_the_module_inside_of_it_are_one_model(
    make_hook: MakeHook, tmp_path: Path, wrap: str
) -> None:
    model = Net()
    wrapper = nn.DataParallel(model)
    first, second = make_hook(out_dir=tmp_path / "first"), make_hook(out_dir=tmp_path / "second")
    first.register_module(wrapper if wrap == "first" else model)
    second.register_module(wrapper if wrap == "second" else model)
    assert "closed" in repr(first)
    assert "closed" not in repr(second)


def test_hooks_on_different_models_record_side_by_side(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Path
) -> None:
    hooks = [make_hook(out_dir=tmp_path / name, save_all=True) for name in ("first", "second")]
    models = [Net(), Net()]
    for hook, model in zip(hooks, models, strict=True):
        hook.register_module(model)
    for model in models:
        steps_of(model)
    for hook in hooks:
        assert read_run(hook).steps("Net_fc1.weight")[:2] == [0, 1]


def test_the_losses_are_as_without_a_hook_when_the_second_one_comes_within_a_step(
    make_hook: MakeHook, tmp_path: Path
) -> None:
    def losses_of(hooks: list[Hook]) -> list[float]:
        torch.manual_seed(0)
        model, losses = Net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            loss = model(torch.randn(3, 4)).square().mean()
            if hooks and step % 2 == 0:
                hooks.pop().register_module(model)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    hooks = [make_hook(out_dir=tmp_path / str(number), save_all=True) for number in range(3)]
    assert losses_of(list(hooks)) == losses_of([])
    assert not any(hook._faults for hook in hooks)
