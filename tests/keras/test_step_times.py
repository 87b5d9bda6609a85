"""Times of steps of fit(), evaluate() and predict(): one row per step, and the phases that Keras shows."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import tdcore as td
from tdcore.format.step_times import PHASES
from tdcore.hooks.keras.driver import _SIGNALS
from tests.keras.cases import BACKEND, BATCH, built, data_of, train

PAUSE = 0.1  # seconds; other processes of the machine take less
MakeHook = Callable[..., Any]
Rows = list[dict[str, Any]]
NEVER = td.SaveConfig(start_step=10**6)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # keras may not be installed
    """Four batches. Each takes some time to load."""

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self._pause = pause

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        time.sleep(self._pause)
        return data_of(BATCH)


def unknown_length() -> Iterator[Any]:
    for _ in range(4):
        yield data_of(BATCH)


def rows_of(hook: Any) -> Rows:
    hook.close()
    rows: Rows = td.create_trial(hook.out_dir).steps_time().to_pylist()
    for row in rows:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
    return rows


def counted(hook: Any) -> dict[str, int]:
    return {mode.name: hook.mode_steps[mode] + 1 for mode in td.modes if hook.mode_steps[mode] >= 0}


def modes_of(rows: Rows) -> dict[str, int]:
    return {mode: [row["mode"] for row in rows].count(mode) for mode in {row["mode"] for row in rows}}


def slow(rows: Rows, phase: str) -> list[int]:
    return [number for number, row in enumerate(rows) if row[f"{phase}_ns"] >= PAUSE * 1e9]


@pytest.mark.parametrize("saves", [True, False])
def test_each_step_has_one_row_in_its_mode(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    model = built("sequential")
    x, y = data_of(5 * BATCH)
    model.fit(x, y, batch_size=BATCH, epochs=2, validation_split=0.4, verbose=0, callbacks=[hook])
    model.evaluate(x, y, batch_size=BATCH, verbose=0, callbacks=[hook])
    model.predict(x, batch_size=BATCH, verbose=0, callbacks=[hook])
    rows = rows_of(hook)
    assert modes_of(rows) == counted(hook) == {"TRAIN": 6, "EVAL": 9, "PREDICT": 5}
    assert all(row["compute_ns"] > 0 for row in rows)


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_end_of_data_has_no_row(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    model = built("sequential")
    model.fit(unknown_length(), verbose=0, callbacks=[hook])
    model.evaluate(*data_of(), batch_size=BATCH, verbose=0, callbacks=[hook])
    rows = rows_of(hook)
    assert modes_of(rows) == counted(hook) == {"TRAIN": 4, "EVAL": 2}


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on torch has no steps_per_execution")
@pytest.mark.parametrize("saves", [True, False])
def test_each_step_of_an_execution_has_one_row(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    model = built("sequential")
    model.compile(optimizer="sgd", loss=model.loss, steps_per_execution=2)
    x, y = data_of(5 * BATCH)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[hook])
    assert modes_of(rows_of(hook)) == counted(hook) == {"TRAIN": 10}


def test_batches_of_a_script_have_one_row_each(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    model = built("sequential")
    hook.watch(model)
    for _ in range(3):
        model.train_on_batch(*data_of(BATCH))
    assert modes_of(rows_of(hook)) == {"TRAIN": 3}


def test_a_slow_callback_is_rest_of_its_step(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)

    def pause(batch: int, logs: Any) -> None:
        time.sleep(PAUSE * (batch == 1))

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=pause)
    x, y = data_of(4 * BATCH)
    built("sequential").fit(x, y, batch_size=BATCH, verbose=0, callbacks=[hook, callback])
    assert slow(rows_of(hook), "rest") == [1]


@pytest.mark.parametrize("saves", [True, False])
def test_a_slow_data_set_is_data_on_backends_that_show_it(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    built("sequential").fit(Batches(PAUSE), verbose=0, callbacks=[hook])
    rows = rows_of(hook)
    assert modes_of(rows) == {"TRAIN": 4}
    if BACKEND != "tensorflow":
        assert slow(rows, "data") == [0, 1, 2, 3]
        assert [row["data_waits"] for row in rows[:3]] == [
            1
        ] * 3  # the last also waits for the end of the epoch
    elif not saves:
        assert slow(rows, "data") == []  # the graph takes the batch


def test_the_time_of_a_step_is_compute(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    model = built("sequential")
    model.compile(optimizer="sgd", loss=model.loss, run_eagerly=True)
    original = model.train_step

    def train_step(*args: Any) -> Any:
        time.sleep(PAUSE)
        return original(*args)

    model.train_step = train_step
    x, y = data_of(2 * BATCH)
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[hook])
    assert slow(rows_of(hook), "compute") == [0, 1]


def test_a_saved_model_is_a_checkpoint_also_after_the_last_step(make_hook: MakeHook, tmp_path: Path) -> None:
    hook = make_hook(save_config=NEVER)
    saved = keras.callbacks.ModelCheckpoint(tmp_path / "at_{epoch}.weights.h5", save_weights_only=True)
    model = built("sequential")
    x, y = data_of(2 * BATCH)
    model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, callbacks=[hook, saved])
    model.save(tmp_path / "whole.keras")
    rows = rows_of(hook)
    assert [row["checkpoints"] for row in rows] == [0, 1, 0, 2]
    assert rows[1]["checkpoint_ns"] > 0


@pytest.mark.skipif(BACKEND != "jax", reason="only JAX announces its compilations")
def test_a_compilation_of_jax_is_compile(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    x, y = data_of(3 * BATCH)
    built("sequential").fit(x, y, batch_size=BATCH, verbose=0, callbacks=[hook])
    rows = rows_of(hook)
    assert rows[0]["compile_ns"] > rows[0]["compute_ns"]
    assert [row["compiles"] > 0 for row in rows] == [True, False, False]


def test_a_pause_of_the_garbage_collector_is_gc(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)

    def slow_gc(phase: str, info: dict[str, int]) -> None:
        time.sleep(PAUSE * (phase == "stop"))

    def collect(batch: int, logs: Any) -> None:
        if batch == 1:
            gc.callbacks.insert(0, slow_gc)  # before the function of the hook, which ends the phase
            gc.collect()
            gc.callbacks.remove(slow_gc)

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=collect)
    x, y = data_of(3 * BATCH)
    built("sequential").fit(x, y, batch_size=BATCH, verbose=0, callbacks=[hook, callback])
    assert 1 in slow(rows_of(hook), "gc")


def test_hooks_leave_the_functions_of_libraries_as_they_were(make_hook: MakeHook) -> None:
    def functions() -> list[Any]:
        found: list[Any] = [len(gc.callbacks)]
        for signal in _SIGNALS._signals:
            owner: Any = keras
            try:
                owner = __import__("importlib").import_module(signal.module)
            except ImportError:
                continue
            *outer, name = signal.path.split(".")
            for each in outer:
                owner = getattr(owner, each, None)
            found.append(vars(owner).get(name) if owner is not None else None)
        return found

    before = functions()
    first, second = make_hook("1"), make_hook("2")
    assert keras.Model.save not in before
    first.close()
    assert functions() != before
    second.close()
    assert functions() == before


def test_the_training_is_the_same_with_and_without_times(
    make_hook: MakeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = []
    for on in ("on", "off"):
        monkeypatch.setenv("TDCORE_STEP_TIMES", on)
        hook = make_hook(on, save_config=NEVER)
        outcomes.append(train(built("sequential"), hook))
        assert bool(rows_of(hook)) == (on == "on")
    assert outcomes[0] == outcomes[1]


def test_a_step_that_takes_several_batches_gets_them(make_hook: MakeHook) -> None:
    if BACKEND != "jax":
        pytest.skip("only JAX passes an iterator to a function of Python")
    hook, sums = make_hook(save_config=NEVER), []

    class Two(keras.Model):  # type: ignore[misc]
        def make_train_function(self, force: bool = False) -> None:
            def function(state: Any, iterator: Any) -> Any:
                sums.append(float(np.sum(next(iterator)[0]) + np.sum(next(iterator)[0])))
                return {"loss": 0.0}, state

            self.train_function = function

        def call(self, x: Any) -> Any:
            return x

    model = Two()
    model.compile(loss="mse")
    x, _ = data_of(4 * BATCH)
    model.fit(x, x, batch_size=BATCH, shuffle=False, steps_per_epoch=2, verbose=0, callbacks=[hook])
    assert sums == pytest.approx([x[: 2 * BATCH].sum(), x[2 * BATCH :].sum()], abs=1e-4)
