"""After a hook is closed, nothing of it remains on the model, in copies of the model, or in memory."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizer_module

import tdcore as td
from tdcore.config.save_config import SaveConfig
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.steps import graphs

from .conftest import MakeHook, ReadRun
from .models import Net, train


def hooks_on(model: nn.Module) -> int:
    return sum(
        len(held)
        for module in model.modules()
        for held in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._forward_pre_hooks_with_kwargs,
            module._forward_hooks_always_called,
            module._backward_hooks,
        )
    )


def global_hooks() -> int:
    return len(optimizer_module._global_optimizer_pre_hooks) + len(
        optimizer_module._global_optimizer_post_hooks
    )


@pytest.fixture
def no_cycles() -> Iterator[None]:
    """Disable the garbage collector: objects must be freed by reference counting alone."""
    # The first optimizer of a process imports modules of torch that keep all callers' frames in a cycle.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(hook: Hook, criterion: nn.Module | None = None) -> Net:
    model = Net()
    hook.register_module(model)
    if criterion is not None:
        hook.register_loss(criterion)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2, criterion=criterion)
    return model


def test_closing_takes_everything_off_again(make_hook: MakeHook) -> None:
    before, criterion = global_hooks(), nn.CrossEntropyLoss()
    hook = make_hook(save_all=True)
    model = watched(hook, criterion)
    assert global_hooks() == before + 2
    hook.close()
    hook.close()
    assert hooks_on(model) == hooks_on(criterion) == 0
    assert global_hooks() == before


def test_a_closed_hook_lets_the_training_go_on(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = watched(hook)
    hook.close()
    before = hook.counters().tensors
    train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    hook.save_scalar("x", 1)
    hook.save_tensor("y", torch.ones(1))
    hook.record_tensor_value("loss", torch.ones(1))
    hook.step()
    assert hook.counters().tensors == before


def test_closing_within_a_forward_leaves_nothing_behind(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_all=True), Net()
    hook.register_module(model)
    model.relu.register_forward_hook(lambda *_: hook.close() and None)
    model(torch.randn(2, 4))
    assert hooks_on(model) == 1  # the hook of the user


def test_a_registration_that_fails_leaves_nothing_behind(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(hook: object) -> None:
        raise RuntimeError("no more hooks")

    hook, model, before = make_hook(save_all=True), Net(), global_hooks()
    monkeypatch.setattr("tdcore.hooks.pytorch.hook.register_optimizer_step_post_hook", fail)
    with pytest.raises(RuntimeError, match="no more hooks"):
        hook.register_module(model)
    assert hooks_on(model) == 0
    assert global_hooks() == before
    monkeypatch.undo()
    hook.register_module(model)
    assert hooks_on(model) > 0


def test_the_context_manager_closes_also_after_an_error(make_hook: MakeHook) -> None:
    model = Net()

    def fails() -> None:
        with make_hook(save_all=True) as hook:
            hook.register_module(model)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert hooks_on(model) == 0


def test_a_deep_copy_is_not_hooked_and_computes_the_same(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = watched(hook)
    twin = copy.deepcopy(model)
    before, step = hook.counters().tensors, hook.global_step
    x = torch.randn(2, 4)
    y = twin(x)
    assert (hook.counters().tensors, hook.global_step) == (before, step)
    assert torch.equal(y, model(x))
    assert hook.global_step == step + 1


def test_a_shallow_copy_is_not_counted(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = watched(hook)
    step = hook.global_step
    copy.copy(model)(torch.randn(2, 4))
    assert hook.global_step == step


def test_a_model_that_holds_its_hook_can_be_copied_and_pickled(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = watched(hook)
    vars(model)["hook"] = hook
    step = hook.global_step
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.randn(2, 4))
        assert hook.global_step == step
    closed = vars(twin)["hook"]
    closed.save_scalar("x", 1)
    closed.set_mode(td.modes.EVAL)
    assert closed.close() is None


def test_the_state_dict_knows_nothing_of_the_hook(make_hook: MakeHook) -> None:
    keys = list(Net().state_dict())
    assert list(watched(make_hook(save_all=True)).state_dict()) == keys


def test_a_deep_copy_made_within_the_forward_is_not_hooked(make_hook: MakeHook) -> None:
    hook, model, twins = make_hook(save_all=True), Net(), []
    hook.register_module(model)
    model.relu.register_forward_hook(
        lambda *_: twins.append(copy.deepcopy(model)) if len(twins) < 1 else None
    )
    model(torch.randn(2, 4))
    before = hook.counters().tensors
    twins[0](torch.randn(2, 4))
    assert hook.counters().tensors == before


@pytest.mark.usefixtures("no_cycles")
@pytest.mark.parametrize("with_cuda", [False, True])
def test_a_dropped_model_is_freed_at_once_and_takes_the_hook_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_cuda: bool
) -> None:
    monkeypatch.setattr(graphs, "uses_cuda", lambda: with_cuda)
    before = global_hooks()
    ring = td.RingConfig(ring_bytes=1 << 22, slots=1024)
    hook = Hook(
        tmp_path / "run", save_all=True, save_config=SaveConfig(save_interval=1), flusher="thread", ring=ring
    )
    model = watched(hook)
    dead_model, dead_hook = weakref.ref(model), weakref.ref(hook)
    del hook
    assert dead_hook() is not None  # the model keeps it alive
    del model
    assert dead_model() is None
    assert dead_hook() is None
    assert global_hooks() == before


@pytest.mark.usefixtures("no_cycles")
def test_a_hook_outlives_its_model_and_takes_the_next(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(save_all=True)
    for _ in range(20):
        dead = weakref.ref(watched(hook))
        assert dead() is None
    run = read_run(hook)
    assert hook.global_step == 39
    assert run.steps("gradient/Net_fc1.weight") == list(range(40))


@pytest.mark.usefixtures("no_cycles")
def test_no_tensor_is_kept_beyond_its_capture(make_hook: MakeHook) -> None:
    hook, model, dead = make_hook(save_all=True), Net(), []
    hook.register_module(model)
    model.fc1.register_forward_hook(lambda module, args, output: dead.append(weakref.ref(output)))
    x = torch.randn(2, 4)
    with torch.no_grad():
        model(x)
        model.eval()
        model(x)
    assert [one() for one in dead] == [None, None]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    train(model, optimizer)
    assert model.fc1.weight.grad is not None
    gradient = weakref.ref(model.fc1.weight.grad)
    optimizer.zero_grad()
    assert gradient() is None
