"""Times of steps: which phase gets the time, and to which step a phase belongs, of whole trainings."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.format.step_times import PHASES
from tdcore.hooks.pytorch import Hook
from tests.hooks.timed_training import Rows, TimedTraining

PAUSE = 0.005  # seconds, of a phase that is longer than the others


class Slow(Dataset[torch.Tensor]):
    """Eight samples. Each takes some time to load."""

    def __init__(self, pause: float = PAUSE) -> None:
        self._pause = pause

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self._pause)
        return torch.full((4,), float(number))


class Training(TimedTraining):
    """A model whose steps the tests write."""

    def step(self, x: torch.Tensor | None = None) -> None:
        self.forward(x)
        self.optimizer.step()

    def forward(self, x: torch.Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4) if x is None else x).sum().backward()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    made: list[Training] = []

    def make(**options: Any) -> Training:
        made.append(Training(tmp_path / str(len(made)), **options))
        return made[-1]

    yield make
    for training in made:
        training.hook.close()


def seconds(row: dict[str, Any], phase: str) -> float:
    return float(row[f"{phase}_ns"]) / 1e9


def steps_of(rows: Rows) -> list[tuple[str, int]]:
    return [(row["mode"], row["mode_step"]) for row in rows]


# Steps ------------------------------------------------------------------------------------------------------


def test_every_step_has_a_row_also_if_it_saves_nothing(make: Callable[..., Training]) -> None:
    training = make()
    for _ in range(7):
        training.step()
    rows = training.rows()
    assert steps_of(rows) == [("TRAIN", step) for step in range(7)]
    assert [row["step"] for row in rows] == list(range(7))


def test_the_rows_follow_one_another_without_a_gap(make: Callable[..., Training]) -> None:
    training = make()
    for batch in DataLoader(Slow(0.001)):
        training.step(batch)
    rows = training.rows()
    for row, after in pairwise(rows):
        passed = after["time_ns"] - row["time_ns"]
        assert abs(passed - row["duration_ns"]) < 5e6  # two clocks


def test_forwards_of_accumulated_gradients_are_one_step_with_their_data(
    make: Callable[..., Training],
) -> None:
    training = make()
    for number, batch in enumerate(DataLoader(Slow())):
        training.forward(batch)
        if number % 4 == 3:
            training.optimizer.step()
    rows = training.rows()
    assert [row["data_waits"] for row in rows] == [4, 4]
    assert min(seconds(row, "data") for row in rows) >= 4 * PAUSE


def test_an_evaluation_has_rows_of_its_own_mode(make: Callable[..., Training]) -> None:
    training = make()
    for batch in DataLoader(Slow(0)):
        training.step(batch)
    training.model.eval()
    with torch.no_grad():
        for batch in DataLoader(Slow(), batch_size=4):
            training.model(batch)
    assert steps_of(training.rows())[8:] == [("EVAL", 0), ("EVAL", 1)]
    for row in td.create_trial(training.folder).steps_time(mode=td.modes.EVAL).to_pylist():
        assert seconds(row, "data") >= 4 * PAUSE
        assert row["backward_ns"] == row["optimizer_ns"] == 0


def test_a_step_that_an_evaluation_interrupts_has_the_sum_of_its_times(make: Callable[..., Training]) -> None:
    training = make()
    training.forward()
    training.model.eval()
    with torch.no_grad():
        training.model(torch.ones(1, 4))
    training.model.train()
    training.step()
    rows = training.rows()
    assert steps_of(rows) == [("TRAIN", 0), ("EVAL", 0)]
    intervals = td.create_trial(training.folder).steps_time(intervals=True)
    assert intervals["row"].to_pylist() == [0, 1, 2]
    assert intervals["mode"].to_pylist() == ["TRAIN", "EVAL", "TRAIN"]


def test_steps_that_the_script_counts_have_their_data(make: Callable[..., Training]) -> None:
    training = make()
    for batch in DataLoader(Slow()):
        training.hook.step()
        training.step(batch)
    rows = training.rows()
    assert len(rows) == 8
    assert min(seconds(row, "data") for row in rows) >= PAUSE


# Phases -----------------------------------------------------------------------------------------------------


def test_each_phase_has_its_own_time(make: Callable[..., Training], tmp_path: Path) -> None:
    training = make()
    slow = {"on": ""}

    def pause(where: str) -> None:
        if slow["on"] == where:
            time.sleep(4 * PAUSE)

    training.model.register_forward_pre_hook(lambda *_: pause("forward"))
    training.model.weight.register_hook(lambda gradient: pause("backward"))
    training.optimizer.register_step_pre_hook(lambda *_: pause("optimizer"))
    planted = ["data", "forward", "backward", "optimizer", "checkpoint", "rest", "gc"]
    training.step()  # it also searches for optimizers
    for where in planted:
        slow["on"] = where
        (batch,) = DataLoader(Slow(4 * PAUSE if where == "data" else 0)).__iter__().__next__()[None]
        training.step(batch[None])
        if where == "checkpoint":
            torch.save({"slow": _SlowToSave()}, tmp_path / "checkpoint")
        pause("rest")
        if where == "gc":
            gc.callbacks.insert(0, _slow_gc)  # before the function of the hook, which ends the phase
            try:
                gc.collect()
            finally:
                gc.callbacks.remove(_slow_gc)
    training.step()
    for where, row in zip(planted, training.rows()[1:], strict=False):
        assert seconds(row, where) >= 4 * PAUSE, (where, row)
        assert max(PHASES, key=lambda phase: row[f"{phase}_ns"]) == where


class _SlowToSave:
    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(4 * PAUSE)
        return (object, ())


def _slow_gc(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        time.sleep(4 * PAUSE)


def test_the_first_row_does_not_contain_the_time_before_the_first_batch(
    make: Callable[..., Training],
) -> None:
    training = make()
    time.sleep(10 * PAUSE)
    for batch in DataLoader(Slow()):
        training.step(batch)
    (row, *_) = training.rows()
    assert seconds(row, "data") >= PAUSE
    assert row["duration_ns"] - row["capture_ns"] < 10 * PAUSE * 1e9


def test_a_gradient_of_a_loss_is_part_of_the_backward_and_the_forward_continues(
    make: Callable[..., Training],
) -> None:
    training = make()
    x = torch.ones(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(training.model(x).sum(), x, create_graph=True)
    time.sleep(PAUSE)
    gradient.square().sum().backward()
    training.optimizer.step()
    training.step()
    row = training.rows()[0]
    assert seconds(row, "forward") >= PAUSE
    assert row["backward_ns"] > 0


def test_the_backward_of_a_closure_returns_to_the_optimizer(make: Callable[..., Training]) -> None:
    training = make()
    training.optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)  # type: ignore[assignment]

    def closure() -> torch.Tensor:
        training.optimizer.zero_grad()
        loss: torch.Tensor = training.model(torch.ones(2, 4)).square().sum()
        loss.backward()
        time.sleep(PAUSE)
        return loss

    training.optimizer.step(closure)
    training.optimizer.step(closure)
    assert seconds(training.rows()[0], "optimizer") >= PAUSE


def test_a_script_can_name_a_phase(make: Callable[..., Training]) -> None:
    training = make()
    for _ in range(3):
        with training.hook.phase("data"):
            time.sleep(PAUSE)
        training.step()
        with training.hook.phase("checkpoint"):
            time.sleep(PAUSE)
    rows = training.rows()
    assert all(seconds(row, "data") >= PAUSE and row["data_waits"] == 1 for row in rows)
    assert all(seconds(row, "checkpoint") >= PAUSE and row["checkpoints"] == 1 for row in rows)


def test_a_wait_for_data_in_a_phase_of_the_script_ends_and_the_phase_continues(
    make: Callable[..., Training],
) -> None:
    training = make()
    training.step()
    with training.hook.phase("checkpoint"):
        list(DataLoader(Slow(0)))
        time.sleep(PAUSE)
    training.step()
    assert max(seconds(row, "checkpoint") for row in training.rows()) >= PAUSE


def test_the_search_for_optimizers_before_the_first_step_is_not_a_part_of_it(
    make: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = make()
    search = type(training.hook)._search

    def slow(hook: Hook, root: Any) -> None:
        time.sleep(10 * PAUSE)
        search(hook, root)

    monkeypatch.setattr(type(training.hook), "_search", slow)
    training.step()
    row = training.rows()[0]
    assert row["capture_ns"] < row["duration_ns"]
    assert row["capture_ns"] < 10 * PAUSE * 1e9


def test_a_phase_that_does_not_exist_is_an_error(make: Callable[..., Training]) -> None:
    with (
        pytest.raises(ConfigError, match="phase is 'dat'; it can be data, forward, loss"),
        make().hook.phase("dat"),
    ):
        pass


@pytest.mark.full
@pytest.mark.usefixtures("fresh_compiler")
def test_compilations_are_a_phase_and_counted(make: Callable[..., Training]) -> None:
    training = make()
    compiled = torch.compile(training.model, backend="eager", dynamic=False)
    for size in (2, 2, 3, 4):
        training.optimizer.zero_grad()
        compiled(torch.ones(size, 4)).sum().backward()
        training.optimizer.step()
    rows = training.rows()
    assert len(rows) == 4
    assert [row["compiles"] > 0 for row in rows[1:]] == [False, True, True]
    assert rows[2]["compile_ns"] > 0


def test_other_threads_do_not_count(make: Callable[..., Training]) -> None:
    training = make()
    training.step()
    other = threading.Thread(target=lambda: list(DataLoader(Slow())))
    other.start()
    other.join()
    training.step()
    assert training.rows()[0]["data_ns"] == 0


# Settings --------------------------------------------------------------------------------------------------


def test_the_training_is_the_same_with_and_without_times(
    make: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []
    for on in ("on", "off"):
        monkeypatch.setenv("TDCORE_STEP_TIMES", on)
        training = make()
        for batch in DataLoader(Slow(0), shuffle=True, batch_size=2):
            training.step(batch)
        weights.append(training.model.weight.detach().clone())
        assert bool(training.rows()) == (on == "on")
    assert torch.equal(*weights)


def test_switched_off_times_have_no_files(
    make: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_STEP_TIMES", "off")
    training = make()
    training.step()
    assert training.rows() == []
    assert not (training.folder / "time").exists()


def test_an_invalid_setting_is_an_error(
    make: Callable[..., Training], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_STEP_TIMES", "sometimes")
    with pytest.raises(ConfigError, match="TDCORE_STEP_TIMES must be on or off, got 'sometimes'"):
        make()


def test_workers_of_a_data_loader_report_nothing(make: Callable[..., Training]) -> None:
    training = make()
    for batch in DataLoader(Slow(), num_workers=2):
        training.step(batch)
    assert len(training.rows()) == 8


# Processes that die -----------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, torch
from torch import nn
import tdcore as td
from tdcore.hooks.pytorch import Hook
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hook = Hook(sys.argv[1], save_config=td.SaveConfig(save_interval=1000))
hook.register_module(model)
for step in range(500):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.full
def test_the_steps_of_a_killed_training_have_rows(tmp_path: Path) -> None:
    """The step during which the process was killed has none."""
    ended = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "run"], check=False, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    for _ in range(300):
        if list((tmp_path / "run" / "end").glob("*/*.json")):
            break
        time.sleep(0.1)
    rows = td.create_trial(tmp_path / "run").steps_time(intervals=True)
    assert rows["row"].to_pylist() == list(range(499))
    assert rows["mode_step"].to_pylist() == list(range(499))
