"""Changes of weights in a step of an optimizer, and their ratio to the weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tdcore.hooks.pytorch.parameters.weight_updates import _norms

from .conftest import MakeHook, ReadRun
from .models import Net
from .twins import Record, run_twins

RATIO = "update_ratio/Net_fc1.weight"
UPDATE = "weight_update/Net_fc1.weight"
WEIGHT = "Net_fc1.weight"
SERIES = ["weights", "weight_updates", "update_ratios"]
KINDS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False),
    "adamw, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "adamw, fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


def wide(values: torch.Tensor) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = values.detach().double().numpy()
    return found


class Training:
    """Records weights before and after each step, and their ratio, computed by NumPy in float64."""

    def __init__(self, make: Any, dtype: torch.dtype = torch.float32) -> None:
        self.make = make
        self.dtype = dtype

    def __call__(self, hook: Hook | None, record: Record) -> None:
        model = Net().to(self.dtype)
        optimizer = self.make(model.parameters())
        if hook is not None:
            hook.register_module(model)
        for step in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(5, 4).to(self.dtype)).square().mean()
            loss.backward()
            before = wide(model.fc1.weight).copy()
            optimizer.step()
            change = wide(model.fc1.weight) - before
            record.values[UPDATE, step] = change
            record.values[RATIO, step] = np.linalg.norm(change) / np.linalg.norm(before)
            record.losses.append(loss.detach())


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("update ratio", "losses")
@pytest.mark.supports("fused optimizer", "losses")
@pytest.mark.supports("foreach optimizer", "losses")
def test_the_ratio_is_that_of_numpy_in_float64(make_hook: MakeHook, read_run: ReadRun, make: Any) -> None:
    hook = make_hook(include_collections=SERIES, save_config=td.SaveConfig(save_steps=[0, 1, 3], end_step=0))
    reference = run_twins(Training(make), hook)
    run = read_run(hook)
    assert run.steps(RATIO) == run.steps(UPDATE) == [0, 1, 3]
    for step in (0, 1, 3):
        # The difference is rounded to float32; the ratio averages this error over the elements.
        np.testing.assert_allclose(run.value(RATIO, step), reference.of(RATIO)[step], rtol=1e-7)
        np.testing.assert_allclose(run.value(UPDATE, step), reference.of(UPDATE)[step], rtol=6e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.supports("update ratio", "values")
def test_updates_of_half_precision_are_not_rounded_to_it(
    make_hook: MakeHook, read_run: ReadRun, dtype: torch.dtype
) -> None:
    hook = make_hook(include_collections=SERIES)
    reference = run_twins(Training(KINDS["sgd"], dtype), hook)
    run = read_run(hook)
    for step in range(4):
        np.testing.assert_allclose(run.value(RATIO, step), reference.of(RATIO)[step], rtol=1e-7)
    expected = "F64" if dtype is torch.float64 else "F32"
    assert {row["dtype"] for row in run.of(UPDATE)} == {expected}


@pytest.mark.supports("update ratio", "values")
def test_statistics_alone_still_give_the_value_of_the_ratio(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook(include_collections=SERIES, reduction_config=td.ReductionConfig(norms=["l2"]))
    run_twins(Training(KINDS["sgd"]), hook)
    run = read_run(hook)
    (weight,) = (row for row in run.of(WEIGHT) if row["step"] == 2)
    (update,) = (row for row in run.of(UPDATE) if row["step"] == 2)
    assert update["segment"] is None
    ratio = np.sqrt(update["square_sum"] / weight["square_sum"])
    np.testing.assert_allclose(run.value(RATIO, 2), ratio, rtol=1e-12)


@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("frozen parameters", "values")
def test_a_weight_of_zeros_has_an_infinite_ratio_and_frozen_ones_have_none(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    nn.init.zeros_(model.fc2.bias)
    model.fc1.requires_grad_(False)
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    run = read_run(hook)
    assert run.value("update_ratio/Net_fc2.bias", 0) == np.inf
    assert not run.of(RATIO)
    assert run.steps("update_ratio/Net_fc2.weight") == [0]


@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("several optimizers", "values")
def test_each_optimizer_gives_the_updates_of_its_own_weights(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    hook.register_module(model)
    one = torch.optim.SGD(model.fc1.parameters(), lr=0.5)
    two = torch.optim.SGD(model.fc2.parameters(), lr=0.25)
    start = {name: wide(parameter).copy() for name, parameter in model.named_parameters()}
    model(torch.randn(5, 4)).square().mean().backward()
    one.step()
    two.step()
    run = read_run(hook)
    for name, parameter in model.named_parameters():
        change = wide(parameter) - start[name]
        expected = np.linalg.norm(change) / np.linalg.norm(start[name])
        np.testing.assert_allclose(run.value(f"update_ratio/Net_{name}", 0), expected, rtol=1e-7)
        assert len(run.of(f"update_ratio/Net_{name}")) == 1


@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("optimizer in backward", "values")
def test_optimizers_inside_backward_give_updates_too(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    hook.register_module(model)
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    start = wide(model.fc1.weight).copy()
    model(torch.randn(5, 4)).square().mean().backward()
    run = read_run(hook)
    expected = np.linalg.norm(wide(model.fc1.weight) - start) / np.linalg.norm(start)
    np.testing.assert_allclose(run.value(RATIO, 0), expected, rtol=1e-7)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("optimizer with a closure", "values")
def test_all_evaluations_of_a_closure_are_one_step_which_has_one_update(
    make_hook: MakeHook, read_run: ReadRun, first: int
) -> None:
    save = td.SaveConfig(save_interval=1, start_step=first)
    hook, model = make_hook(include_collections=SERIES, save_config=save), Net()
    hook.register_module(model)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.1)
    x, evaluations = torch.randn(5, 4), 0

    def closure() -> torch.Tensor:
        nonlocal evaluations
        evaluations += 1
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        torch.autograd.backward(loss)
        return loss

    expected = []
    for _ in range(2):
        start = wide(model.fc1.weight).copy()
        optimizer.step(closure)
        expected.append(np.linalg.norm(wide(model.fc1.weight) - start) / np.linalg.norm(start))
    assert evaluations > 4
    run = read_run(hook)
    assert run.steps(RATIO) == [0, 1][first:]
    for step in [0, 1][first:]:
        np.testing.assert_allclose(run.value(RATIO, step), expected[step], rtol=1e-7)


@pytest.mark.supports("update ratio", "values")
@pytest.mark.supports("GradScaler", "values")
def test_a_step_that_a_fused_optimizer_skips_has_the_ratio_zero(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    hook.register_module(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scaler.scale(model(torch.randn(5, 4)).square().mean() * 1e9).backward()
    scaler.step(optimizer)
    assert read_run(hook).value(RATIO, 0) == 0.0


@pytest.mark.supports("update ratio", "breaks")
def test_an_optimizer_step_that_raises_leaves_nothing_behind_and_is_no_update(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    class Failing(torch.optim.SGD):
        fails = True

        def step(self, closure: Any = None) -> Any:
            if self.fails:
                raise ValueError("not today")
            return super().step(closure)

    save = td.SaveConfig(save_steps=[0], end_step=0)
    hook, model = make_hook(include_collections=SERIES, save_config=save), Net()
    hook.register_module(model)
    optimizer = Failing(model.parameters(), lr=0.1)
    model(torch.randn(5, 4)).square().mean().backward()
    with pytest.raises(ValueError, match="not today"):
        optimizer.step()
    optimizer.fails = False
    model(torch.randn(5, 4)).square().mean().backward()
    start = wide(model.fc1.weight).copy()
    optimizer.step()
    assert not hook._roots[0].parameters.updates.pending
    expected = np.linalg.norm(wide(model.fc1.weight) - start) / np.linalg.norm(start)
    assert hook.global_step == 0
    run = read_run(hook)
    assert len(run.of(RATIO)) == 1
    np.testing.assert_allclose(run.value(RATIO, 0), expected, rtol=1e-7)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40).map(
            lambda values: torch.tensor(values, dtype=torch.float32)
        ),
        min_size=1,
        max_size=4,
    )
)
def test_norms_are_those_of_float64_numpy(tensors: list[torch.Tensor]) -> None:
    expected = [np.linalg.norm(tensor.double().numpy()) for tensor in tensors]
    np.testing.assert_allclose(_norms(tensors), expected, rtol=1e-12)


def test_the_norm_of_what_is_not_finite_is_not_a_number() -> None:
    values = [torch.tensor([1.0, torch.inf]), torch.tensor([torch.nan]), torch.tensor([3.0, 4.0])]
    assert np.array_equal(_norms(values), [np.nan, np.nan, 5.0], equal_nan=True)


@pytest.mark.parametrize("when", ["forward", "backward", "step"])
@pytest.mark.parametrize("regrouped", [False, True])
def test_a_parameter_that_is_replaced_before_the_step_has_its_ratio_or_a_note(
    make_hook: MakeHook, read_run: ReadRun, when: str, regrouped: bool
) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook.register_module(model)

    def replace(now: bool) -> None:
        if not now:
            return
        old, model.fc1.weight = model.fc1.weight, nn.Parameter(model.fc1.weight.detach().clone())
        if regrouped:
            held = optimizer.param_groups[0]["params"]
            held[:] = [model.fc1.weight if one is old else one for one in held]

    for step in range(3):
        optimizer.zero_grad()
        replace(when == "forward" and step == 1)
        loss = model(torch.randn(5, 4)).square().mean()
        replace(when == "backward" and step == 1)
        loss.backward()
        replace(when == "step" and step == 1)
        del loss
        optimizer.step()
    run = read_run(hook)
    stepped = [0, 1, 2] if regrouped else [0] if when == "forward" else [0, 1]
    assert run.steps(RATIO) == stepped
    notes = run.trial.notes().get("not_captured", [])
    assert [WEIGHT in note and "replaced" in note for note in notes] == [True] * (len(stepped) < 3)
    assert not hook._faults


def test_two_optimizers_that_step_in_turns_leave_no_note_of_replaced_parameters(
    make_hook: MakeHook, read_run: ReadRun
) -> None:
    hook, model = make_hook(include_collections=SERIES), Net()
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.fc1, model.fc2)]
    hook.register_module(model)
    for step in range(4):
        model(torch.randn(5, 4)).square().mean().backward()
        optimizers[step % 2].step()
        optimizers[step % 2].zero_grad()
    run = read_run(hook)
    assert run.steps(RATIO) == [0, 2]
    assert "not_captured" not in run.trial.notes()
