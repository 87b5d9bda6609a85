"""Every way to train in one process, with the same tests for each: each is a row of the support matrix."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Generator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.gates.counting import Counting

from .conftest import MakeHook
from .shapes import SHAPES, HalfWithoutGradient, Reuses
from .test_shapes_bypass import Attention

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*nested.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning"),
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]

Steps = Generator[torch.Tensor, None, None]  # trains one step each time a loss is requested
Train = Callable[[nn.Module], Steps]


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def loss_of(model: nn.Module, width: int = 4) -> torch.Tensor:
    loss: torch.Tensor = model(torch.randn(3, width)).square().mean()
    return loss


def plain(
    model: nn.Module,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    *,
    to_none: bool = True,
    **options: Any,
) -> Steps:
    optimizer = make(trainable(model), lr=0.05, **options)
    while True:
        optimizer.zero_grad(set_to_none=to_none)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def adam(**options: Any) -> Train:
    return lambda model: plain(model, torch.optim.Adam, **options)


def autocast(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    while True:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def scaled(model: nn.Module) -> Steps:
    optimizer, scaler = torch.optim.SGD(trainable(model), lr=0.05), torch.amp.GradScaler("cpu")
    while True:
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss.detach()


def clipped(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    while True:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        yield loss.detach()


def accumulated(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    while True:
        for micro_batch in range(2):
            loss = loss_of(model)
            loss.backward()
            if micro_batch:
                optimizer.step()
                optimizer.zero_grad()
            yield loss.detach()


def sparse(model: nn.Module) -> Steps:
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.05)
    while True:
        optimizer.zero_grad()
        loss = model(torch.randint(8, (5,))).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def with_closure(model: nn.Module) -> Steps:
    optimizer = torch.optim.LBFGS(trainable(model), lr=0.1, max_iter=3)
    while True:
        x = torch.randn(3, 4)

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            return loss

        yield torch.as_tensor(optimizer.step(closure)).detach()


def several(model: nn.Module) -> Steps:
    first, *others = trainable(model)
    optimizers = torch.optim.SGD([first], lr=0.05), torch.optim.Adam(others)
    while True:
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        yield loss.detach()


def in_backward(model: nn.Module) -> Steps:
    optimizers = {one: torch.optim.SGD([one], lr=0.05) for one in trainable(model)}

    def step(parameter: torch.Tensor) -> None:
        optimizer = optimizers[parameter]  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()

    handles = [one.register_post_accumulate_grad_hook(step) for one in optimizers]
    try:
        while True:
            loss = loss_of(model)
            loss.backward()
            yield loss.detach()
    finally:
        for handle in handles:
            handle.remove()


def averaged(model: nn.Module) -> Steps:
    average, steps = AveragedModel(model), plain(model)
    for loss in steps:
        average.update_parameters(model)
        yield loss + average(torch.ones(3, 4)).detach().sum()


def evaluated(model: nn.Module) -> Steps:
    for loss in plain(model):
        with torch.inference_mode():
            between = loss_of(model.eval())
        model.train()
        yield loss + between.item()


def functional(model: nn.Module) -> Steps:
    held = {name: one.detach().clone().requires_grad_() for name, one in model.named_parameters()}
    optimizer = torch.optim.SGD(held.values(), lr=0.05)
    while True:
        optimizer.zero_grad()
        loss = torch.func.functional_call(model, held, (torch.randn(3, 4),)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


def attended(model: nn.Module) -> Steps:
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    while True:
        optimizer.zero_grad()
        loss = model(torch.randn(2, 5, 8)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss.detach()


CONFIGURATIONS: dict[str, tuple[Callable[[], nn.Module], Train]] = {
    **{row: (build, plain) for row, build in SHAPES.items()},
    "modules that bypass hooks": (Attention, attended),
    "no_grad and inference_mode": (HalfWithoutGradient, evaluated),
    "EMA copies": (Reuses, averaged),
    "functional_call and vmap": (Reuses, functional),
    "order of execution": (Reuses, plain),
    "autocast": (Reuses, autocast),
    "GradScaler": (Reuses, scaled),
    "fused optimizer": (Reuses, adam(fused=True)),
    "foreach optimizer": (Reuses, adam(foreach=True)),
    "gradient clipping": (Reuses, clipped),
    "gradient accumulation": (Reuses, accumulated),
    "set_to_none": (Reuses, lambda model: plain(model, to_none=False)),
    "sparse gradients": (lambda: nn.Sequential(nn.Embedding(8, 4, sparse=True)), sparse),
    "optimizer with a closure": (Reuses, with_closure),
    "several optimizers": (Reuses, several),
    "optimizer in backward": (Reuses, in_backward),
    "optimizer state": (Reuses, adam()),
    "update ratio": (Reuses, adam()),
}


def every(column: str, *, played: bool = False) -> pytest.MarkDecorator:
    """Parametrize a test by configuration; each case counts in its row of the support matrix.

    played: pass the fixture `played` instead of the name of the row.
    """
    rows = [pytest.param(row, marks=pytest.mark.supports(row, column)) for row in CONFIGURATIONS]
    return pytest.mark.parametrize("played" if played else "row", rows, indirect=played)


EVERYTHING: dict[str, Any] = {
    "save_all": True,
    "include_collections": [
        "output_gradients",
        "backward_gradients",
        "microbatch_gradients",
        "update_ratios",
    ],
    "flusher": "thread",
    "ring": td.RingConfig(ring_bytes=1 << 22, slots=1024, names_bytes=1 << 20),
}


def reachable(start: object) -> list[object]:
    """Return all objects that an object keeps alive, except Python modules, classes and functions."""
    found, pending = {id(start): start}, [start]
    while pending:
        for one in gc.get_referents(pending.pop()):
            if id(one) not in found and not isinstance(one, (ModuleType, type, FunctionType)):
                found[id(one)] = one
                pending.append(one)
    return list(found.values())


def hooks_on(model: nn.Module) -> list[object]:
    """Return all hooks on modules and parameters, and all overridden forwards."""
    carried: list[object] = []
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            carried += [*getattr(module, kind).values()]
        carried += [key for key in vars(module) if "forward" in key and not key.startswith("_")]
    for parameter in model.parameters():
        carried += [*(parameter._backward_hooks or {}).values()]
        carried += [*(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()]
    return carried


class Played(NamedTuple):
    """A training of four steps with everything captured; the model was copied after the second step."""

    hook: Hook
    model: nn.Module
    bits: list[torch.Tensor]
    copied: bool
    hooks_before: list[object]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    torch.manual_seed(8)
    build, train = CONFIGURATIONS[request.param]
    model = build()
    before = hooks_on(model)
    hook = Hook(
        tmp_path_factory.mktemp("run") / "run", **EVERYTHING, save_config=td.SaveConfig(save_interval=1)
    )
    hook.register_module(model)
    steps = train(model)
    losses = [next(steps), next(steps)]
    twin = copy.deepcopy(model).state_dict()
    copied = all(torch.equal(value, twin[key]) for key, value in model.state_dict().items())
    losses += [next(steps), next(steps)]
    steps.close()
    hook.close()
    return Played(hook, model, [*losses, *map(torch.Tensor.detach, model.parameters())], copied, before)


@every("losses", played=True)
def test_losses_and_weights_are_the_same_bits_with_everything_captured(
    request: pytest.FixtureRequest, played: Played
) -> None:
    torch.manual_seed(8)
    build, train = CONFIGURATIONS[request.node.callspec.params["played"]]
    model = build()
    steps = train(model)
    losses = [next(steps) for _ in range(4)]
    found = [*losses, *map(torch.Tensor.detach, model.parameters())]
    assert played.hook.counters().tensors > 10
    assert all(torch.equal(*both) for both in zip(played.bits, found, strict=True))


@every("breaks", played=True)
def test_no_part_fails_and_a_model_can_be_copied_in_the_middle(played: Played) -> None:
    assert not played.hook._faults
    assert played.copied


@every("breaks", played=True)
def test_a_closed_hook_leaves_nothing_on_the_model_and_keeps_nothing_alive(played: Played) -> None:
    assert hooks_on(played.model) == played.hooks_before
    held = {id(one) for one in (played.model, *played.model.modules(), *played.model.parameters())}
    assert not held & set(map(id, reachable(played.hook)))


@every("cost")
def test_a_step_that_is_not_saved_costs_the_same_few_calls_whatever_the_model(
    make_hook: MakeHook, row: str
) -> None:
    build, train = CONFIGURATIONS[row]
    model = build()
    save = td.SaveConfig(save_interval=1, start_step=1, end_step=3)
    # The optimizer of functional_call() holds copies, so the hook does not see an update of the model.
    clock = "forward" if train is functional else "update"
    hook = make_hook(**EVERYTHING, save_config=save, clock=clock)
    hook.register_module(model)
    counted = {"forward": 0, "step": 0}

    def seen(kind: str) -> Callable[..., None]:
        def count(*_: object) -> None:
            counted[kind] += 1

        return count

    handles = [
        model.register_forward_hook(seen("forward")),
        register_optimizer_step_post_hook(seen("step")),
    ]
    steps = train(model)
    for _ in range(8):  # some steps are saved, and every step of the save interval is over
        next(steps)
    tensors = hook.counters().tensors
    assert tensors > 0
    counted.update(forward=0, step=0)
    with Counting() as counting:
        next(steps)
        next(steps)
    for handle in handles:
        handle.remove()
    assert hook.counters().tensors == tensors
    forwards, optimizer_steps = counted["forward"], counted["step"]
    # The sixth call of an optimizer's step is the function that runs its backward.
    assert sum(counting.calls.values()) <= 5 * forwards + 6 * optimizer_steps, counting.where()
