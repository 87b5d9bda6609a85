"""Models that change during the training: the next saved step has the current names and values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tdcore.config.save_config import SaveConfig
from tdcore.hooks.pytorch.model.model_view import ModelView

from .conftest import MakeHook, ReadRun


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.norm(self.fc(x)).relu())


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.Sequential(Block(), Block())
        self.more = nn.ModuleList([nn.Linear(4, 4)])
        self.spare: nn.Module | None = None

    def forward(self, x: torch.Tensor) -> Any:
        x = self.blocks(self.first(x))
        for module in self.more:
            x = module(x)
        return x if self.spare is None else self.spare(x)


class Doubled(nn.Module):
    """A parametrisation that changes values, so that capture of the wrong tensor is detected."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


class OtherBlock(Block):
    """A class with the same structure as Block."""


def block(model: Deep, index: int = 0) -> Any:
    return model.blocks[index]


def assigned(model: Deep) -> None:
    block(model).fc.weight = nn.Parameter(torch.full((4, 4), 0.5))


def written_past_the_module(model: Deep) -> None:
    block(model).fc._parameters["weight"] = nn.Parameter(torch.full((4, 4), 0.25))


def swapped_for_its_like(model: Deep) -> None:
    model.blocks[1] = Block()


def swapped_for_another_kind(model: Deep) -> None:
    block(model).fc = nn.Sequential(nn.Linear(4, 4), nn.Tanh())


def added_deep_in_the_tree(model: Deep) -> None:
    block(model, 1).out = nn.Sequential(nn.Sequential(block(model, 1).out, nn.Linear(4, 4)))


def appended(model: Deep) -> None:
    model.more.append(nn.Linear(4, 4))
    model.blocks.append(nn.Linear(4, 4))


def put_where_none_was(model: Deep) -> None:
    model.spare = nn.Linear(4, 2)


def inserted_so_that_all_that_follow_move(model: Deep) -> None:
    model.more.insert(0, nn.Linear(4, 4))


def removed(model: Deep) -> None:
    del model.blocks[0]
    del model.more[0]


def reordered(model: Deep) -> None:
    model.blocks[0], model.blocks[1] = model.blocks[1], model.blocks[0]


def renamed(model: Deep) -> None:
    modules = block(model)._modules
    block(model).forward = lambda x: modules["out"](modules["norm"](modules["dense"](x)).relu())
    held = dict(modules)
    modules.clear()
    modules.update({"dense" if key == "fc" else key: module for key, module in held.items()})


def parametrised(model: Deep) -> None:
    parametrize.register_parametrization(block(model).fc, "weight", Doubled())


def parametrised_for_a_while(model: Deep) -> None:
    parametrize.register_parametrization(block(model).fc, "weight", Doubled())
    step(model, torch.randn(3, 4))
    parametrize.remove_parametrizations(block(model).fc, "weight")


def tied(model: Deep) -> None:
    block(model, 1).fc.weight = block(model, 0).fc.weight


def module_shared(model: Deep) -> None:
    model.blocks[1] = model.blocks[0]


def without_bias(model: Deep) -> None:
    model.first.register_parameter("bias", None)
    block(model).fc.bias = None


def with_a_bias_after_all(model: Deep) -> None:
    block(model).out.bias = nn.Parameter(torch.ones(4))


def with_buffers(model: Deep) -> None:
    model.register_buffer("count", torch.zeros(1))
    block(model).norm.running_mean = torch.ones(4)
    del block(model, 1).norm.num_batches_tracked
    block(model, 1).norm.momentum = None
    block(model, 1).norm.num_batches_tracked = None


def in_double_precision(model: Deep) -> None:
    model.to(torch.float64)


def in_double_precision_by_new_parameters(model: Deep) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.to(torch.float64)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def of_another_class(model: Deep) -> None:
    block(model).__class__ = OtherBlock


def loaded_in_place(model: Deep) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


CHANGES: list[Callable[[Deep], None]] = [
    assigned,
    written_past_the_module,
    swapped_for_its_like,
    swapped_for_another_kind,
    added_deep_in_the_tree,
    appended,
    put_where_none_was,
    inserted_so_that_all_that_follow_move,
    removed,
    reordered,
    renamed,
    parametrised,
    parametrised_for_a_while,
    tied,
    module_shared,
    without_bias,
    with_a_bias_after_all,
    with_buffers,
    in_double_precision,
    in_double_precision_by_new_parameters,
    of_another_class,
    loaded_in_place,
]


def step(model: nn.Module, x: torch.Tensor) -> None:
    """Train without changing weights; gradients are kept."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def outputs_of(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the first output of every module that a forward calls, recorded by forward hooks of PyTorch."""
    found: dict[str, torch.Tensor] = {}
    for path, module in model.named_modules():
        name = f"{path or type(model).__name__}_output_0"

        def see(module: nn.Module, args: object, output: torch.Tensor, name: str = name) -> None:
            found.setdefault(name, output)

        module.register_forward_hook(see)
    model(x)
    return found


def expected_of(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor | None]:
    """Return every output, weight, bias and gradient by name."""
    expected: dict[str, torch.Tensor | None] = {**outputs_of(model, x)}
    for path, parameter in model.named_parameters():
        name = f"{type(model).__name__}_{path}"
        expected[name], expected[f"gradient/{name}"] = parameter, parameter.grad
    return expected


@pytest.mark.parametrize("save_interval", [1, 2])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_the_next_saved_step_has_the_model_as_it_is_now(
    make_hook: MakeHook, read_run: ReadRun, change: Callable[[Deep], None], save_interval: int
) -> None:
    hook = make_hook(
        include_collections=["weights", "biases", "gradients", "outputs"],
        save_config=SaveConfig(save_interval=save_interval),
    )
    model = Deep()
    hook.register_module(model)
    for _ in range(2):
        step(model, torch.randn(5, 4))
    change(model)
    x = torch.randn(5, 4, dtype=next(model.parameters()).dtype)
    step(model, x)
    while hook.mode_step % save_interval:
        step(model, x)
    run, at = read_run(hook), hook.global_step
    expected = expected_of(model, x)
    assert set(run.names(at)) == set(expected)
    for name, value in expected.items():
        if value is not None:
            found = run.value(name, at, call=0)
            assert np.array_equal(found, value.detach().numpy()), name
            assert str(found.dtype) == str(value.dtype).removeprefix("torch."), name


ASKED: list[dict[str, Any]] = [
    {"include_regex": "blocks.1_output|norm_output"},
    {"include_collections": ["outputs"]},
    {"include_collections": ["outputs", "weights"]},
]


@pytest.mark.parametrize("asked", ASKED)
def test_a_module_swapped_for_its_like_is_captured(
    make_hook: MakeHook, read_run: ReadRun, asked: dict[str, Any]
) -> None:
    hook, model = make_hook(**asked), Deep()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    for _ in range(4):
        model.blocks[1] = Block()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    assert read_run(hook).steps("blocks.1_output_0") == [0, 1, 2, 3]


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("asked", ASKED)
def test_a_module_without_parameters_that_is_swapped_for_its_like_is_captured(
    make_hook: MakeHook, read_run: ReadRun, asked: dict[str, Any], by_hand: bool
) -> None:
    hook, model = make_hook(**asked), Deep()
    block(model, 1).norm = nn.Identity()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        if by_hand:
            hook.step()
        block(model, 1).norm = nn.Identity()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    assert read_run(hook).steps("blocks.1.norm_output_0") == [0, 1, 2, 3]


def test_a_module_swapped_between_the_begin_of_a_step_and_its_forward_is_captured(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=["weights", "gradients", "outputs"]), Deep()
    hook.register_module(model)
    weights = []
    for _ in range(3):
        hook.step()
        model.blocks[1] = Block()
        weights.append(block(model, 1).fc.weight.detach().clone().numpy())
        model(torch.randn(5, 4)).square().mean().backward()
    run = read_run(hook)
    for at, weight in enumerate(weights):
        assert np.array_equal(run.value("Deep_blocks.1.fc.weight", at), weight)
    for name in ("blocks.1_output_0", "gradient/Deep_blocks.1.fc.weight"):
        assert [(row["step"], row["status"]) for row in run.of(name)] == [(0, "ok"), (1, "ok"), (2, "ok")]


def test_what_was_taken_out_of_the_model_is_not_kept(make_hook: MakeHook) -> None:
    hook, model = make_hook(save_all=True), Deep()
    hook.register_module(model)
    for _ in range(2):
        step(model, torch.randn(5, 4))
    module, parameter = weakref.ref(model.blocks[1]), weakref.ref(model.first.weight)
    del model.blocks[1]
    model.first.weight = nn.Parameter(torch.ones(4, 4))
    assert (module(), parameter()) == (None, None)


def test_tying_and_untying_is_told_in_the_aliases(make_hook: MakeHook) -> None:
    hook, model = make_hook(include_collections=["weights"]), Deep()
    hook.register_module(model)
    tied(model)
    step(model, torch.randn(5, 4))
    assert hook._notes["aliases"] == {"Deep_blocks.0.fc.weight": ["Deep_blocks.1.fc.weight"]}
    block(model, 1).fc.weight = nn.Parameter(torch.ones(4, 4))
    step(model, torch.randn(5, 4))
    assert hook._notes["aliases"] == {}


# ModelView itself: cases that a training cannot produce reliably -----------------------------------------


class Pair(nn.Module):
    """Two modules in a row; a parameter at the end of the first may move to the begin of the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Module(), nn.Module()


def test_a_parameter_that_crosses_to_the_next_module_is_a_change() -> None:
    model = Pair()
    model.one.weight = nn.Parameter(torch.ones(1))
    view = ModelView(model)
    assert view.matches(model)
    model.two.weight = model.one.weight
    del model.one.weight
    assert not view.matches(model)
    assert [parameter.name for parameter in ModelView(model).parameters] == ["Pair_two.weight"]


def test_a_module_that_crosses_to_the_next_module_is_a_change() -> None:
    model = Pair()
    model.one.fc = nn.Linear(1, 1)
    view = ModelView(model)
    assert view.matches(model)
    model.two.fc = model.one.fc
    del model.one.fc
    assert not view.matches(model)
    assert ModelView(model).modules[-1].name == "two.fc"


def test_a_new_parameter_at_the_address_of_the_old_one_is_found() -> None:
    model = nn.Linear(2, 2)
    view = ModelView(model)
    model.weight = nn.Parameter(torch.zeros(2, 2))
    # as if the new parameter had the address of the old one
    view._slot_ids = view.ids = [id(model.weight), id(model.bias)]
    assert view.matches(model)
    assert view.held_parameters() is None
    assert view.matches(model)
    held = view.held_parameters()
    assert held is not None
    assert held[0] is model.weight


def test_a_view_ends_with_its_model() -> None:
    model: nn.Module | None = nn.Linear(2, 2)
    assert model is not None
    view = ModelView(model)
    del model
    assert view.held_parameters() is None
    assert not view.matches(nn.Linear(2, 2))
