"""The gradient noise scale, compared with its formulas, known distributions and real gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tdcore as td
from tdcore.analysis.gradient_noise_scale import (
    NoiseScale,
    noise_scale,
    noise_scale_of_microbatches,
    noise_scale_of_workers,
)
from tdcore.hooks.pytorch import Hook
from tests.trial.writer import RunWriter


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), st.integers(2, 8), st.integers(1, 64), st.integers(1, 9))
def test_estimates_equal_the_formulas_of_the_source(seed: int, parts: int, samples: int, size: int) -> None:
    gradients = np.random.default_rng(seed).normal(size=(parts, size)) + 1
    small = np.mean([np.linalg.norm(each) ** 2 for each in gradients])
    big = np.linalg.norm(gradients.mean(axis=0)) ** 2
    most = samples * parts
    found = noise_scale(gradients, samples)
    assert found.gradient_square == pytest.approx((most * big - samples * small) / (most - samples), abs=1e-9)
    assert found.trace == pytest.approx((small - big) / (1 / samples - 1 / most), abs=1e-9)
    if found.gradient_square > 1e-6:
        assert found.samples == pytest.approx(found.trace / found.gradient_square)


def test_the_mean_of_many_estimates_is_the_true_noise_scale() -> None:
    random = np.random.default_rng(0)
    deviation, gradient = np.linspace(0.5, 2, 10), np.full(10, 0.3)
    found = []
    for _ in range(4000):
        samples = gradient + deviation * random.normal(size=(4, 8, 10))
        found.append(noise_scale(samples.mean(axis=1), 8))
    trace = np.mean([each.trace for each in found])
    square = np.mean([each.gradient_square for each in found])
    assert trace == pytest.approx((deviation**2).sum(), rel=0.02)
    assert square == pytest.approx((gradient**2).sum(), rel=0.05)


def test_equal_parts_have_no_noise_and_parts_that_cancel_have_only_noise() -> None:
    assert noise_scale(np.ones((3, 4)), 2) == NoiseScale(gradient_square=4.0, trace=0.0)
    assert noise_scale(np.array([[1.0], [-1.0]]), 2).samples == float("inf")


@pytest.mark.parametrize(
    ("parts", "samples", "message"), [(np.ones((1, 2)), 1, "at least 2"), (np.ones((2, 2)), 0, "at least 1")]
)
def test_too_few_parts_and_samples_are_refused(parts: Any, samples: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noise_scale(parts, samples)


def test_micro_batches_of_a_training_have_the_noise_scale_of_their_own_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = []
    with Hook(
        tmp_path / "run",
        save_config=td.SaveConfig(save_interval=1),
        include_collections=["microbatch_gradients"],
    ) as hook:
        hook.register_module(model)
        for _ in range(3):
            optimizer.zero_grad()
            parts = []
            for _ in range(4):
                x, y = torch.randn(5, 3), torch.randn(5, 2)
                copy = [each.detach().clone().requires_grad_() for each in model.parameters()]
                loss = (nn.functional.linear(x, *copy) - y).square().mean()
                gradients = torch.autograd.grad(loss, copy)
                parts.append(torch.cat([each.flatten() for each in gradients]).double().numpy())
                ((model(x) - y).square().mean() / 4).backward()
            expected.append(noise_scale(np.stack(parts), 5))
            optimizer.step()
    trial = td.create_trial(tmp_path / "run")
    names = [name.removeprefix("microbatch_gradient/") for name in trial.tensor_names(regex="^microbatch_")]
    found = noise_scale_of_microbatches(trial, sorted(names, reverse=True), 5)
    assert found.steps == 3
    assert found.trace == pytest.approx(np.mean([each.trace for each in expected]), rel=1e-4)
    assert found.gradient_square == pytest.approx(
        np.mean([each.gradient_square for each in expected]), rel=1e-3
    )
    summed = noise_scale_of_microbatches(trial, names, 5, divided=False)
    assert summed.trace == pytest.approx(found.trace / 16, rel=1e-6)
    with pytest.raises(td.TdcoreError, match="99"):
        noise_scale_of_microbatches(trial, names, 5, steps=[0, 99])


def test_workers_of_a_run_are_parts_of_one_batch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gradients = random.normal(size=(3, 2, 4))
    for rank, own in enumerate(gradients):
        run = RunWriter(tmp_path / "run", worker=f"worker_{rank}", world_size=3)
        for step, values in enumerate(own):
            run.add("microbatch_gradient/w", values, step=step, kind="gradient")
        run.flush()
        run.end()
    found = noise_scale_of_workers(td.create_trial(tmp_path / "run"), ["microbatch_gradient/w"], 8)
    steps = [noise_scale(gradients[:, step], 8) for step in range(2)]
    assert found.trace == pytest.approx(np.mean([each.trace for each in steps]))
    assert found.steps == 2
    with pytest.raises(ValueError, match="no gradient was named"):
        noise_scale_of_workers(td.create_trial(tmp_path / "run"), [], 8)


def test_a_parameter_with_fewer_micro_batches_than_another_is_an_error(tmp_path: Path) -> None:
    run = RunWriter(tmp_path / "run")
    for name, calls in (("w", 1), ("b", 2)):
        for call in range(calls):
            run.add(f"microbatch_gradient/{name}", np.ones(2), step=0, kind="gradient", call=call)
    run.flush()
    run.end()
    trial = td.create_trial(tmp_path / "run")
    with pytest.raises(td.TdcoreError, match="call 1"):
        noise_scale_of_microbatches(trial, ["w", "b"], 4)
