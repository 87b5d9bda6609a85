"""Python functions of Keras's training steps, on each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("keras", reason="stage keras of .ci/run has Keras")

import tdcore as td
from tests.keras.cases import BATCH, built, data_of


def test_python_functions_of_exactly_these_steps_are_profiled(make_hook: Callable[..., Any]) -> None:
    config = td.ProfilerConfig(start_step=1, num_steps=2, operators=False, python=True)
    hook = make_hook(profiler_config=config)
    x, y = data_of()
    built("functional").fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[hook])
    hook.close()
    (profile,) = td.create_trial(hook.out_dir).profiles()
    assert (profile.state, profile.mode, profile.first_step, profile.last_step) == ("complete", "TRAIN", 1, 2)
    assert profile.functions().num_rows > 0


def test_a_profile_of_operators_is_answered_with_the_reason(make_hook: Callable[..., Any]) -> None:
    hook = make_hook(profiler_config=td.ProfilerConfig(start_step=1, num_steps=2))
    x, y = data_of()
    built("functional").fit(x, y, batch_size=BATCH, epochs=3, verbose=0, callbacks=[hook])
    hook.close()
    (profile,) = td.create_trial(hook.out_dir).profiles()
    assert profile.state == "failed"
    assert "this is not supported by the framework" in profile.reason
