"""Functions of PyTorch that report phases: they change nothing else, and are restored."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, dataloader

import tdcore as td
from tdcore.hooks.phase_signals import PhaseSignals
from tdcore.hooks.pytorch import Hook

MakeHook = Callable[[], Hook]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeHook]:
    made: list[Hook] = []

    def make() -> Hook:
        hook = Hook(
            tmp_path / str(len(made)),
            save_config=td.SaveConfig(save_interval=1000),
            ring=td.RingConfig(ring_bytes=1 << 20, slots=1024, names_bytes=1 << 18),
            flusher="thread",
        )
        made.append(hook)
        hook.register_module(nn.Linear(2, 2))
        return hook

    yield make
    for hook in made:
        hook.close()


def functions() -> dict[str, object]:
    return {
        "next": vars(dataloader._BaseDataLoaderIter)["__next__"],
        "iter": vars(DataLoader)["__iter__"],
        "save": vars(torch.serialization)["_save"],
        "backward": torch.autograd.graph._engine_run_backward,
        "imported": vars(torch.autograd)["_engine_run_backward"],
        "gc": len(gc.callbacks),
    }


def test_a_closed_hook_leaves_the_functions_of_pytorch_as_they_were(make: MakeHook) -> None:
    before = functions()
    first, second = make(), make()
    assert all(functions()[name] != before[name] for name in before)
    first.close()
    assert functions()["save"] is not before["save"]
    second.close()
    second.close()
    assert functions() == before


def test_switched_off_times_replace_nothing(make: MakeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TDCORE_STEP_TIMES", "off")
    before = functions()
    make()
    assert functions() == before


def test_a_function_that_another_program_replaces_meanwhile_is_left_to_it(
    make: MakeHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    owner: Any = torch.serialization
    before = owner._save
    hook = make()
    ours, calls = owner._save, []

    def theirs(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return ours(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, "_save", theirs)
        hook.close()
        assert owner._save is theirs
        torch.save({}, tmp_path / "checkpoint")
        assert len(calls) == 1
    owner._save = before


def test_a_hook_that_is_collected_while_another_one_starts_does_not_block_it(
    make: MakeHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The garbage collector can run in install(), and delete a hook in a cycle."""
    before = functions()

    def forgotten() -> None:
        model = nn.Linear(2, 2)
        hook = Hook(tmp_path / "forgotten", flusher="thread")
        hook.register_module(model)
        model.owner = [hook, model]  # type: ignore[assignment]

    gc.disable()
    try:
        forgotten()
        replace = PhaseSignals._replace
        monkeypatch.setattr(PhaseSignals, "_replace", lambda self: (gc.collect(), replace(self)))
        make().close()
    finally:
        gc.enable()
    gc.collect()
    assert functions() == before


class Saves:
    """An object that refers to a function of PyTorch, as a cache or a callback does."""

    def __init__(self) -> None:
        self.save = torch.save


def test_objects_that_refer_to_public_functions_can_be_pickled(make: MakeHook) -> None:
    earlier = Saves()
    hook = make()
    later = Saves()
    assert pickle.loads(pickle.dumps(earlier)).save is torch.save
    pickle.dumps(torch.autograd.backward)
    hook.close()
    assert pickle.loads(pickle.dumps(later)).save is torch.save


@pytest.mark.full
@pytest.mark.usefixtures("fresh_compiler")
def test_functions_below_the_replaced_ones_are_compiled_as_without_a_hook(make: MakeHook) -> None:
    frames: list[int] = []

    def backend(graph: Any, examples: Any) -> Any:
        frames.append(1)
        return graph.forward

    def collate(batch: list[torch.Tensor]) -> torch.Tensor:
        return (torch.stack(batch) * 2 + 1).sin()

    def count() -> int:
        torch._dynamo.reset()
        frames.clear()

        @torch.compile(backend=backend)
        def epoch(loader: Any) -> Any:
            total: Any = 0
            for batch in loader:
                total = total + batch.sum()
            return total

        epoch(DataLoader([torch.ones(2)] * 4, batch_size=2, collate_fn=collate))  # type: ignore[arg-type]
        return len(frames)

    without = count()
    make()
    assert count() == without > 0


def test_a_forked_child_has_the_functions_of_pytorch_and_can_have_a_hook(
    make: MakeHook, tmp_path: Path
) -> None:
    before = functions()
    make()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if functions() == before:
                hook = Hook(tmp_path / "child", flusher="thread")
                hook.register_module(nn.Linear(2, 2))
                if functions()["save"] is not before["save"]:
                    hook.close()
                    status = 0 if functions() == before else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
