"""Times of rounds: which phase gets the time, and one row per round, of XGBoost and LightGBM."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tdcore as td
from tdcore.format.step_times import PHASES

lightgbm = pytest.importorskip("lightgbm")
xgboost = pytest.importorskip("xgboost")

Callback: Any = xgboost.callback.TrainingCallback
PAUSE = 0.1  # seconds; other processes of the machine take less
ROUNDS = 5
LIBRARIES = pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
Rows = list[dict[str, Any]]
_X = np.random.default_rng(0).normal(size=(60, 3))
_Y = (_X[:, 0] > 0).astype(float)


def make_hook(library: str, folder: Path, **options: Any) -> Any:
    module = pytest.importorskip(f"tdcore.hooks.{library}")
    return module.Hook(folder, flusher="thread", ring=td.RingConfig(ring_bytes=1 << 22), **options)


def train(
    library: str, hooks: list[Any], after: Callable[[int], object] = lambda number: None, loss: Any = None
) -> Any:
    """Train for five rounds. after: Called after each round, after the hook."""
    if library == "lightgbm":
        parameters = {"objective": "binary" if loss is None else loss, "verbose": -1, "num_threads": 1}
        last = [_Last(after)]
        return lightgbm.train(parameters, lightgbm.Dataset(_X, _Y), ROUNDS, callbacks=[*hooks, *last])

    class Last(Callback):  # type: ignore[misc]  # the library is not installed everywhere
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            after(epoch)
            return False

    parameters = {"objective": "binary:logistic", "nthread": 1}
    data = xgboost.DMatrix(_X, _Y)
    return xgboost.train(parameters, data, ROUNDS, obj=loss, callbacks=[*hooks, Last()], verbose_eval=False)


class _Last:
    order = 100

    def __init__(self, after: Callable[[int], object]) -> None:
        self._after = after

    def __call__(self, env: Any) -> None:
        self._after(env.iteration)


def slow_loss(scores: Any, data: Any) -> tuple[Any, Any]:
    time.sleep(PAUSE)
    chances = 1 / (1 + np.exp(-scores))
    return chances - data.get_label(), chances * (1 - chances)


def rows_of(hook: Any) -> Rows:
    hook.close()
    rows: Rows = td.create_trial(hook.out_dir).steps_time().to_pylist()
    for row in rows:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
    return rows


@LIBRARIES
def test_each_round_has_one_row(library: str, tmp_path: Path) -> None:
    hook = make_hook(library, tmp_path)
    train(library, [hook])
    rows = rows_of(hook)
    assert [(row["mode"], row["mode_step"], row["step"]) for row in rows] == [
        ("TRAIN", step, step) for step in range(ROUNDS)
    ]
    assert all(row["compute_ns"] > 0 for row in rows)


@LIBRARIES
def test_the_row_of_a_round_has_its_own_update_and_the_callbacks_after_it(
    library: str, tmp_path: Path
) -> None:
    hook, number = make_hook(library, tmp_path), iter(range(ROUNDS))

    def loss(scores: Any, data: Any) -> tuple[Any, Any]:
        return slow_loss(scores, data) if next(number) in (0, 3) else _fast_loss(scores, data)

    train(library, [hook], lambda done: time.sleep(PAUSE * (done == 1)), loss)
    rows = rows_of(hook)
    assert [row["compute_ns"] >= PAUSE * 1e9 for row in rows] == [True, False, False, True, False]
    assert [row["rest_ns"] >= PAUSE * 1e9 for row in rows] == [False, True, False, False, False]


def _fast_loss(scores: Any, data: Any) -> tuple[Any, Any]:
    return scores - data.get_label(), np.ones_like(scores)


@LIBRARIES
def test_a_saved_model_is_a_checkpoint(library: str, tmp_path: Path) -> None:
    hook = make_hook(library, tmp_path / "run")
    other = train(library, [])

    def save(number: int) -> None:
        if number == 2:
            other.save_model(tmp_path / "model.json")

    train(library, [hook], save)
    rows = rows_of(hook)
    assert [row["checkpoints"] for row in rows] == [0, 0, 1, 0, 0]
    assert rows[2]["checkpoint_ns"] > 0


@LIBRARIES
def test_folds_of_a_cross_validation_are_one_row_per_round(library: str, tmp_path: Path) -> None:
    hook = make_hook(library, tmp_path)
    if library == "lightgbm":
        options = {"objective": "binary", "verbose": -1}
        lightgbm.cv(options, lightgbm.Dataset(_X, _Y), ROUNDS, nfold=3, callbacks=[hook])
    else:
        options = {"objective": "binary:logistic"}
        xgboost.cv(options, xgboost.DMatrix(_X, _Y), ROUNDS, nfold=3, callbacks=[hook])
    assert [row["mode_step"] for row in rows_of(hook)] == list(range(ROUNDS))


@LIBRARIES
def test_a_round_that_fails_has_no_row(library: str, tmp_path: Path) -> None:
    hook, number = make_hook(library, tmp_path), iter(range(ROUNDS))

    def loss(scores: Any, data: Any) -> tuple[Any, Any]:
        if next(number) == 3:
            raise ValueError("planted")
        return _fast_loss(scores, data)

    with pytest.raises(ValueError, match="planted"):
        train(library, [hook], loss=loss)
    assert [row["mode_step"] for row in rows_of(hook)] == [0, 1, 2]


@LIBRARIES
def test_a_hook_leaves_the_functions_of_the_library_as_they_were(library: str, tmp_path: Path) -> None:
    booster = {"xgboost": xgboost.Booster, "lightgbm": lightgbm.Booster}[library]
    before = vars(booster)["update"], vars(booster)["save_model"]
    first, second = make_hook(library, tmp_path / "1"), make_hook(library, tmp_path / "2")
    assert vars(booster)["update"] is not before[0]
    first.close()
    del second
    gc.collect()
    assert (vars(booster)["update"], vars(booster)["save_model"]) == before
