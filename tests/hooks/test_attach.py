"""Automatic attachment: finding the model, optimizers and losses of a script that does not import tdcore."""

from __future__ import annotations

import copy
import gc
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.auto_attach import Attachment
from tdcore.hooks.pytorch.model.introspection import live_instances
from tests.gates.counting import Counting

from .conftest import MakeHook, ReadRun
from .models import Net, train


class Watched:
    """An attachment with the hooks that it created and the messages that it logged."""

    def __init__(self, make_hook: MakeHook, options: dict[str, Any]) -> None:
        self.hooks: list[Hook] = []
        self.said: list[str] = []
        self.warned: list[str] = []
        self._make_hook = make_hook
        self._options = options
        self.attachment = Attachment(self._hook, self.said.append, self.warned.append)

    def _hook(self) -> Hook:
        self.hooks.append(self._make_hook(**self._options))
        return self.hooks[-1]

    @property
    def hook(self) -> Hook:
        (hook,) = self.hooks
        return hook


Watch = Callable[..., Watched]


@pytest.fixture
def watch(make_hook: MakeHook) -> Iterator[Watch]:
    """Start to search for a training; captures weights, gradients and outputs by default."""
    gc.collect()  # frees the optimizers of other tests
    made: list[Watched] = []

    def start(**options: Any) -> Watched:
        options.setdefault("include_collections", ["weights", "gradients", "outputs"])
        made.append(Watched(make_hook, options))
        return made[-1]

    yield start
    for watched in made:
        watched.attachment.close()


@pytest.fixture(autouse=True)
def no_older_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide optimizers that other tests have left in the process."""
    older = live_instances(torch.optim.Optimizer)

    def younger(kind: type) -> list[Any]:
        return [found for found in live_instances(kind) if all(found is not one for one in older)]

    monkeypatch.setattr("tdcore.hooks.pytorch.auto_attach.live_instances", younger)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "plain": lambda model: model,
    "DataParallel": nn.DataParallel,
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
}


def update_in_place(model: nn.Module) -> None:
    """Update the weights by hand, without an effect on any counter of torch."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_first_step_is_recorded_under_the_names_of_the_model_inside(
    watch: Watch, read_run: ReadRun, wrapper: str
) -> None:
    watched = watch(include_collections=["weights", "gradients"])
    model = Net()
    wrapped = WRAPPERS[wrapper](model)
    train(wrapped, sgd(wrapped), steps=2)
    assert nn.Module.__dict__["__call__"] is nn.Module._wrapped_call_impl
    assert watched.said == [f"recording Net to {watched.hook.out_dir}"]
    run = read_run(watched.hook)
    assert run.steps("gradient/Net_fc1.weight") == [0, 1]
    assert run.steps("Net_fc1.weight") == [0, 1]
    assert run.steps("loss_output_0") == [0, 1]


def test_losses_are_bit_identical_and_their_values_are_those_of_backward(
    watch: Watch, read_run: ReadRun
) -> None:
    model = Net()
    expected = train(model, sgd(model), steps=3)
    torch.manual_seed(0)
    watched = watch()
    model = Net()
    found = train(model, sgd(model), steps=3)
    assert list(map(torch.equal, found, expected)) == [True] * 3
    run = read_run(watched.hook)
    assert [run.value("loss_output_0", step) for step in range(3)] == [float(loss) for loss in expected]


def test_every_backward_of_a_step_gives_a_row(watch: Watch, read_run: ReadRun) -> None:
    watched = watch()
    model = Net()
    optimizer = sgd(model)
    output = model(torch.randn(4, 4))
    first, second = output.sum(), output.square().sum()
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
    run = read_run(watched.hook)
    assert [row["call"] for row in run.of("loss_output_0")] == [0, 1]
    assert run.value("loss_output_0", 0, call=1) == second.detach().numpy()


def test_a_loss_is_recorded_as_it_was_before_a_gradient_scaler(watch: Watch, read_run: ReadRun) -> None:
    watched = watch()
    model, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=4096.0)
    optimizer = sgd(model)
    loss = model(torch.randn(4, 4)).square().mean() / 2
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert read_run(watched.hook).value("loss_output_0", 0) == loss.detach().numpy()


def test_what_no_optimizer_holds_is_not_taken_for_the_model(watch: Watch) -> None:
    watched = watch()
    teacher, average, model = nn.Linear(4, 4), Net().requires_grad_(False), Net()
    teacher(torch.randn(2, 4)).sum().backward()
    model(torch.randn(2, 4))  # before an optimizer exists
    optimizer = sgd(model)
    with torch.no_grad():
        model(torch.randn(2, 4))
    for _ in range(2):
        average(torch.randn(2, 4))
        teacher(torch.randn(2, 4))
        assert not watched.hooks
    train(model, optimizer)
    assert watched.hook.global_step == 0
    assert watched.said == [f"recording Net to {watched.hook.out_dir}"]


def test_further_models_that_train_are_recorded_or_named(watch: Watch, read_run: ReadRun) -> None:
    class Critic(nn.Linear):
        pass

    class Pair(nn.Module):
        """A module that contains both models and is never called."""

        def __init__(self, **parts: nn.Module) -> None:
            super().__init__()
            self.parts = nn.ModuleDict(parts)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError

    watched = watch()
    net, critic = Net(), Critic(3, 1)
    pair = Pair(net=net, critic=critic)
    optimizers = [sgd(each) for each in pair.parts.values()]
    critic(net(torch.randn(2, 4))).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    run = read_run(watched.hook)
    assert "gradient/Net_fc1.weight" in run.names()
    recorded = any(name.startswith("gradient/Critic") for name in run.names())
    assert recorded or watched.warned == ["Critic also trains, but is not recorded"]


@pytest.mark.usefixtures("fresh_compiler")
def test_a_model_whose_calls_are_not_seen_is_found_when_its_optimizer_steps(watch: Watch) -> None:
    watched = watch(include_collections=["gradients"])
    model = Net()
    optimizer = sgd(model)
    call = torch.compile(lambda x: model(x), backend="eager")
    for _ in range(3):
        optimizer.zero_grad()
        call(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    assert watched.said == [f"recording Net to {watched.hook.out_dir}"]


def test_the_first_step_has_a_row_for_every_evaluation_of_a_closure(watch: Watch, read_run: ReadRun) -> None:
    watched, model = watch(include_collections=["gradients"]), Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x, gradients = torch.randn(2, 4), []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        assert model.fc1.bias.grad is not None
        gradients.append(model.fc1.bias.grad.numpy().copy())
        return loss

    optimizer.step(closure)
    first = len(gradients)
    optimizer.step(closure)
    run = read_run(watched.hook)
    assert run.steps("gradient/Net_fc1.bias") == [0] * first + [1] * (len(gradients) - first)
    for call in range(first):
        assert (run.value("gradient/Net_fc1.bias", 0, call=call) == gradients[call]).all()


def test_optimizer_hooks_of_the_script_do_not_change_while_torch_iterates_over_them(watch: Watch) -> None:
    watched, seen = watch(include_collections=["gradients"]), []
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    optimizers = [sgd(layer) for layer in layers]
    handle = register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    try:
        for _ in range(4):
            for layer, optimizer in zip(layers, optimizers, strict=True):
                layer.forward(torch.randn(2, 4)).sum().backward()  # calls none of the module's hooks
                optimizer.step()
    finally:
        handle.remove()
    assert len(seen) == 8
    assert watched.said == [f"recording Linear, Linear to {watched.hook.out_dir}"]


def test_a_model_whose_calls_cannot_be_observed_misses_its_first_step_only(
    watch: Watch, read_run: ReadRun
) -> None:
    watched, weights = watch(include_collections=["weights", "gradients"]), []
    layer = nn.Linear(4, 4)
    optimizer = sgd(layer)
    for _ in range(4):
        optimizer.zero_grad()
        layer.forward(torch.randn(2, 4)).sum().backward()
        weights.append(layer.weight.detach().clone())
        optimizer.step()
    run = read_run(watched.hook)
    assert run.steps("gradient/Linear_weight") == [0, 1, 2]
    for step in range(3):
        assert (run.value("Linear_weight", step) == weights[step + 1].numpy()).all()


def test_a_first_step_of_an_optimizer_before_the_training_does_not_attach(
    watch: Watch, read_run: ReadRun
) -> None:
    watched = watch(include_collections=["gradients", "outputs"])
    model = Net()
    optimizer = sgd(model)
    optimizer.step()  # as some scripts do before they create a scheduler
    assert not watched.hooks
    train(model, optimizer, steps=2)
    run = read_run(watched.hook)
    assert run.steps("gradient/Net_fc1.weight") == [0, 1]
    assert "Net_output_0" in run.names()


@pytest.mark.parametrize("wrapper", ["plain", "DataParallel"])
def test_without_an_optimizer_a_model_is_found_by_a_backward_that_reaches_it(
    watch: Watch, read_run: ReadRun, wrapper: str
) -> None:
    watched = watch()
    unused, model = nn.Linear(4, 4), Net()
    wrapped = WRAPPERS[wrapper](model)
    weights = []
    for _ in range(4):
        unused(torch.randn(2, 4))
        weights.append(model.fc1.weight.detach().clone())
        wrapped(torch.randn(2, 4)).square().mean().backward()
        update_in_place(model)
    assert watched.said == [f"recording Net to {watched.hook.out_dir}"]
    run = read_run(watched.hook)
    assert run.steps("gradient/Net_fc1.weight") == run.steps("loss_output_0") == [0, 1, 2]
    for step in range(3):
        assert (run.value("Net_fc1.weight", step) == weights[step + 1].numpy()).all()


def test_all_models_that_train_without_an_optimizer_are_found(watch: Watch, read_run: ReadRun) -> None:
    class Critic(nn.Linear):
        pass

    watched = watch()
    net, critic = Net(), Critic(3, 1)
    for _ in range(3):
        critic(net(torch.randn(2, 4))).sum().backward()
        update_in_place(net)
        update_in_place(critic)
    assert watched.said == [f"recording Net, Critic to {watched.hook.out_dir}"]
    names = read_run(watched.hook).names()
    assert {"gradient/Net_fc1.weight", "gradient/Critic_weight"} <= set(names)


def test_a_backward_before_the_optimizer_exists_does_not_attach(watch: Watch, read_run: ReadRun) -> None:
    watched = watch()
    other, model = nn.Linear(4, 4), Net()
    other(torch.randn(2, 4)).sum().backward()
    model(torch.randn(2, 4)).sum().backward()
    optimizer = sgd(model)
    other(torch.randn(2, 4))
    assert not watched.hooks
    train(model, optimizer, steps=2)
    assert watched.said == [f"recording Net to {watched.hook.out_dir}"]
    assert read_run(watched.hook).steps("gradient/Net_fc1.weight") == [0, 1]


def test_a_model_that_is_only_differentiated_in_eval_mode_is_not_recorded(watch: Watch) -> None:
    watched = watch()
    model = Net().eval()
    for _ in range(4):
        pixels = torch.randn(2, 4, requires_grad=True)
        model(pixels).sum().backward()
        model.zero_grad()
    assert not watched.hooks


def test_a_script_with_a_hook_of_its_own_is_left_to_it(watch: Watch, make_hook: MakeHook) -> None:
    watched = watch()
    model = Net()
    own = make_hook(include_collections=["weights"])
    own.register_module(model)
    train(model, sgd(model), steps=2)
    assert watched.hooks == []
    assert watched.said == ["the script has its own hook, so `tdcore run` adds none"]
    assert own.global_step == 1
    assert "backward" in torch.Tensor.__dict__
    assert torch.Tensor.__dict__["backward"] is torch.Tensor.backward


def test_the_model_is_registered_with_a_hook_of_the_script_that_has_none(
    watch: Watch, make_hook: MakeHook, read_run: ReadRun
) -> None:
    watched = watch()
    own = make_hook(include_collections=["weights"])
    model, criterion = Net(), nn.CrossEntropyLoss()
    own.register_loss(criterion)
    train(model, sgd(model), steps=2, criterion=criterion)
    assert watched.hooks == []
    assert watched.said == [f"recording Net to {own.out_dir}"]
    run = read_run(own)
    assert run.steps("Net_fc1.weight") == run.steps("CrossEntropyLoss_output_0") == [0, 1]


def test_a_hook_that_cannot_be_made_is_told_and_the_training_goes_on(watch: Watch) -> None:
    watched = watch(out_dir="/proc/no such place/run")
    model = Net()
    assert len(train(model, sgd(model), steps=2)) == 2
    (message,) = watched.warned
    assert message.startswith("nothing is recorded: cannot start a run in")
    assert watched.attachment.found


def test_nothing_of_ours_stands_in_the_tracebacks_of_the_script(watch: Watch) -> None:
    backward = torch.Tensor.backward
    watch()
    assert torch.Tensor.backward is backward
    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time") as caught:
        loss.backward()
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[1:3] == ["backward", "backward"]
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        Net()(torch.ones(2, 5))
    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[1:4] == ["_wrapped_call_impl", "_call_impl", "forward"]


@pytest.mark.supports("tdcore run, plain loop", "cost")
def test_a_step_that_is_not_saved_costs_one_look_at_its_loss(watch: Watch) -> None:
    from tdcore.config.save_config import SaveConfig

    watched = watch(save_config=SaveConfig(save_interval=1000))
    model = Net()
    optimizer = sgd(model)
    train(model, optimizer, steps=2)
    with Counting() as counting:
        train(model, optimizer, steps=10)
    assert watched.hook.global_step == 11
    ours = {name: count for name, count in counting.calls.items() if name.startswith("auto_attach.py")}
    assert sum(ours.values()) == 20  # __get__ and the function that it calls, once per backward
    spent = sum(count for name, count in counting.instructions.items() if name.startswith("auto_attach.py"))
    assert spent <= 10 * 60, counting.where()


def test_a_model_and_its_copy_become_scripts_while_they_are_recorded(watch: Watch) -> None:
    watched = watch()
    model = Net()
    train(model, sgd(model), steps=1)
    assert watched.hooks
    hooks = dict(model._forward_pre_hooks)
    x = torch.ones(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.script is deprecated
        scripted = [torch.jit.script(each) for each in (model, copy.deepcopy(model))]
    assert dict(model._forward_pre_hooks) == hooks
    assert all(torch.equal(each(x), model(x)) for each in scripted)
    assert not any(each._forward_pre_hooks for each in scripted)


class Counted(nn.Module):
    """A loss that ends in a multiplication, with a count of its computations."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.calls = 0

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        loss: torch.Tensor = self.net(x).square().mean() * weight
        return loss


def test_a_loss_that_is_checkpointed_is_not_computed_once_more(watch: Watch) -> None:
    watched = watch(save_config=td.SaveConfig(save_interval=1))
    model = Counted()
    optimizer = sgd(model)
    for _ in range(2):
        loss = checkpoint(model, torch.ones(2, 4), torch.tensor(2.0), use_reentrant=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert watched.hooks
    assert model.calls == 4  # each forward, and its recomputation in backward
