"""Profiles of a framework without a recorder of operators: Python functions, and a clear answer otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.format.layout import capture_key
from tdcore.format.profile_request import ProfileRequest
from tdcore.sinks import LocalSink
from tests.waiting import wait_until

xgboost = pytest.importorskip("xgboost")

from tdcore.hooks.xgboost import Hook  # noqa: E402


def train(hook: Hook, rounds: int = 6) -> None:
    data = xgboost.DMatrix(np.arange(40.0).reshape(10, 4), label=np.arange(10.0))
    xgboost.train({"nthread": 1}, data, num_boost_round=rounds, callbacks=[hook])


def profiles(hook: Hook) -> list[Any]:
    hook.close()
    return td.create_trial(hook.out_dir).profiles()


def test_python_functions_of_rounds_are_profiled(tmp_path: Path) -> None:
    config = td.ProfilerConfig(start_step=2, num_steps=2, operators=False, python=True)
    hook = Hook(tmp_path / "run", flusher="thread", profiler_config=config)
    train(hook)
    (profile,) = profiles(hook)
    assert (profile.state, profile.first_step, profile.last_step) == ("complete", 2, 3)
    rows = {row["function"]: row["calls"] for row in profile.functions().to_pylist()}
    assert rows["update"] == 2


def test_a_request_for_operators_is_answered_in_the_run(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "run", flusher="thread")
    LocalSink(tmp_path / "run").put_new(capture_key(0, 0), [ProfileRequest(steps=2).document(attempt=0)])
    wait_until(hook._control_changed, "the request arrived")
    train(hook)
    (profile,) = profiles(hook)
    assert (profile.state, profile.request) == ("failed", 0)
    assert "this is not supported by the framework xgboost" in profile.reason
