"""A training is bit-identical with and without the hook: losses, weights, predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

import tdcore as td
from tests.keras.cases import CASES, built, data_of, train


@pytest.mark.parametrize("case", CASES)
def test_losses_weights_and_predictions_are_bit_identical(case: str, make_hook: Callable[..., Any]) -> None:
    plain = train(built(case))
    hook = make_hook(save_config=td.SaveConfig(save_interval=3))
    assert train(built(case), hook) == plain
    assert not hook._faults
    assert hook.close().progress.rows > 20


@pytest.mark.parametrize("interval", [1, 10])
def test_the_interval_does_not_matter_nor_a_smaller_last_batch(
    interval: int, make_hook: Callable[..., Any]
) -> None:
    plain = train(built("functional"), data=data_of(20))
    hook = make_hook(save_config=td.SaveConfig(save_interval=interval))
    assert train(built("functional"), hook, data=data_of(20)) == plain
