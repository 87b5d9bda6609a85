"""A training is bit-identical with and without the hook: losses and weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("tensorflow", reason="stage keras of .ci/run has TensorFlow")

import tdcore as td
from tests.tensorflow.loops import LOOPS, MODELS, UPDATES, WAYS, Outcome, train

MakeHook = Callable[..., Any]


@cache
def without_hook(model: str, update: str, way: str, loop: str) -> Outcome:
    return train(model, update, way, loop)


# XLA takes long to compile: one update for each model.
_CASES = [(model, update, way) for way in ("eager", "function") for model in MODELS for update in UPDATES]
_CASES += [("keras", "Adam", "XLA"), ("module", "SGD", "XLA"), ("raw", "by hand", "XLA")]


@pytest.mark.shows("TensorFlow: loops and captured functions", "same training")
@pytest.mark.parametrize(("model", "update", "way"), _CASES)
def test_losses_and_weights_are_bit_identical(model: str, update: str, way: str, make_hook: MakeHook) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    assert train(model, update, way, hook=hook) == without_hook(model, update, way, "plain")
    assert hook.mode_steps[td.modes.TRAIN] == 6
    assert not hook._faults
    assert hook.close().progress.rows > 10


@pytest.mark.shows("TensorFlow: loops and captured functions", "same training")
@pytest.mark.parametrize("interval", [1, 10])
@pytest.mark.parametrize("way", WAYS[:2])
def test_the_interval_does_not_matter(way: str, interval: int, make_hook: MakeHook) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=interval))
    assert train("keras", "Adam", way, hook=hook) == without_hook("keras", "Adam", way, "plain")
    assert not hook._faults


@pytest.mark.shows("TensorFlow: accumulation, several and persistent tapes", "same training")
@pytest.mark.parametrize("way", ["eager", "function"])
@pytest.mark.parametrize("loop", sorted(LOOPS.keys() - {"plain"}))
@pytest.mark.parametrize("update", ["SGD", "by hand"])
def test_loops_with_several_tapes_are_bit_identical_and_an_update_is_a_step(
    update: str, loop: str, way: str, make_hook: MakeHook
) -> None:
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    assert train("module", update, way, loop, hook) == without_hook("module", update, way, loop)
    assert hook.mode_steps[td.modes.TRAIN] == 6
    assert not hook._faults
