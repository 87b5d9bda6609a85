"""Times of steps of the JAX hook: one row per call, and the phases that JAX and its libraries show."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tdcore as td
from tdcore.format.step_times import PHASES

PAUSE = 0.1  # seconds; other processes of the machine take less
MakeHook = Callable[..., Any]
NEVER = td.SaveConfig(start_step=10**6)
Rows = list[dict[str, Any]]


def rows_of(hook: Any) -> Rows:
    hook.close()
    rows: Rows = td.create_trial(hook.out_dir).steps_time().to_pylist()
    for row in rows:
        assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
    return rows


def slow(rows: Rows, phase: str) -> list[int]:
    return [number for number, row in enumerate(rows) if row[f"{phase}_ns"] >= PAUSE * 1e9]


def step_of(weights: Any, x: Any) -> Any:
    return weights - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).sum())(weights)


@pytest.mark.parametrize("saves", [True, False])
def test_each_call_has_one_row_in_its_mode(saves: bool, make_hook: MakeHook) -> None:
    hook = make_hook() if saves else make_hook(save_config=NEVER)
    train = hook.capture_step(jax.jit(step_of))
    score = hook.capture_step(jax.jit(lambda weights, x: (x @ weights).sum()), mode=td.modes.EVAL)
    weights, x = jnp.ones(3), jnp.ones((2, 3))
    for _ in range(3):
        weights = train(weights, x)
        score(weights, x)
    rows = rows_of(hook)
    assert [(row["mode"], row["mode_step"]) for row in rows] == [
        (mode, step) for step in range(3) for mode in ("TRAIN", "EVAL")
    ]


def test_time_after_the_step_is_rest_and_time_in_it_is_compute(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)

    @hook.capture_step
    def step(seconds: float) -> None:
        time.sleep(seconds)

    for number in range(4):
        step(PAUSE * (number == 1))
        time.sleep(PAUSE * (number == 2))
    step(0.0)
    rows = rows_of(hook)
    assert slow(rows, "compute") == [1]
    assert slow(rows, "rest") == [2]


def test_a_wait_that_the_script_names_belongs_to_its_step(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    step = hook.capture_step(jax.jit(step_of))
    for number in range(3):
        with hook.phase("data"):
            time.sleep(PAUSE * (number != 1))
        step(jnp.ones(3), jnp.ones((2, 3)))
    assert slow(rows_of(hook), "data") == [0, 2]


def test_a_data_loader_of_torch_is_data(make_hook: MakeHook) -> None:
    data = pytest.importorskip("torch.utils.data")

    class Slow:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, number: int) -> Any:
            time.sleep(PAUSE)
            return np.ones((2, 3), np.float32)

    hook = make_hook(save_config=NEVER)
    step = hook.capture_step(jax.jit(step_of))
    for batch in data.DataLoader(Slow(), batch_size=None, collate_fn=lambda each: each):
        step(jnp.ones(3), batch)
    rows = rows_of(hook)
    assert len(rows) == 3
    assert slow(rows, "data") == [0, 1, 2]


def test_a_compilation_for_a_new_shape_is_compile(make_hook: MakeHook) -> None:
    hook = make_hook(save_config=NEVER)
    step = hook.capture_step(jax.jit(step_of))
    given = [np.ones((size, 3), np.float32) for size in (7, 7, 11, 11)]  # of no other test
    for x in given:
        step(np.ones(3, np.float32), x)
    rows = rows_of(hook)
    assert [row["compiles"] for row in rows] == [1, 0, 1, 0]
    assert rows[2]["compile_ns"] > rows[3]["duration_ns"]


@pytest.mark.parametrize("manager", [False, True])
def test_a_checkpoint_of_orbax_is_a_checkpoint(manager: bool, make_hook: MakeHook, tmp_path: Path) -> None:
    orbax = pytest.importorskip("orbax.checkpoint")
    hook = make_hook(save_config=NEVER)
    step = hook.capture_step(jax.jit(step_of))
    weights = jnp.ones(3)
    for number in range(3):
        weights = step(weights, jnp.ones((2, 3)))
        if number == 1 and manager:
            with orbax.CheckpointManager(tmp_path / "steps") as steps:
                steps.save(number, args=orbax.args.StandardSave({"w": weights}))
        elif number == 1:
            with orbax.StandardCheckpointer() as saver:
                saver.save(tmp_path / "one", {"w": weights})
    rows = rows_of(hook)
    assert [row["checkpoints"] > 0 for row in rows] == [False, True, False]
    assert rows[1]["checkpoint_ns"] > 0


def test_hooks_leave_nothing_in_jax(make_hook: MakeHook) -> None:
    from jax._src import monitoring

    def left() -> list[int]:
        found = monitoring.get_scalar_listeners(), monitoring.get_event_duration_listeners()
        return [*map(len, found), len(gc.callbacks)]

    before = left()
    first, second = make_hook("1"), make_hook("2")
    assert left() == [number + 1 for number in before]
    first.close()
    assert left() != before
    second.close()
    assert left() == before
