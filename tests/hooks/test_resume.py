"""Resume: a checkpoint at step 200, a crash at step 212, and a second attempt from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tdcore as td
from tdcore import Trial
from tdcore.errors import ConfigError
from tests.hooks.conftest import MakeHook, ReadRun
from tests.hooks.models import Net, train
from tests.trainers.checks import Trainer
from tests.trainers.resuming import make, training

WEIGHT = "Sequential_0.weight"


class Crashed:
    """The run, and the losses and gradients of both attempts from a training without a hook."""

    def __init__(self, folder: Path, started: list[Trainer]) -> None:
        job: dict[str, Any] = {"script": "resuming.py", "checkpoint": str(folder / "checkpoint.pt")}
        first = Trainer(folder, **job, steps=250, seed=0, checkpoint_at=200, kill_at=212)
        started.append(first)
        assert first.process.wait(240) == -9, first.output
        self.first_losses = _losses(first.ledger)
        first.ledger.unlink()
        second = Trainer(folder, **job, steps=220, seed=1)
        started.append(second)
        assert second.process.wait(240) == 0, second.output
        self.second_losses = _losses(second.ledger)
        first.wait_for_flushers()
        second.wait_for_flushers()
        self.trial = td.create_trial(str(first.out))
        self.path = str(first.out)
        model, optimizer = make()
        self.twin_losses: dict[tuple[int, int], float] = {}  # keys: (attempt, step)
        self.twin_gradients: dict[tuple[int, int], Any] = {}
        self._train_twin(0, model, optimizer, range(200))
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(states, folder / "twin.pt")
        self._train_twin(0, model, optimizer, range(200, 213))
        states = torch.load(folder / "twin.pt", weights_only=True)
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        self._train_twin(1, model, optimizer, range(200, 220))

    def _train_twin(self, attempt: int, model: nn.Module, optimizer: Any, steps: range) -> None:
        for step, loss in training(model, optimizer, steps, seed=attempt):
            self.twin_losses[attempt, step] = loss.item()
            self.twin_gradients[attempt, step] = model.get_parameter("0.weight").grad.numpy().copy()  # type: ignore[union-attr]


def _losses(ledger: Path) -> dict[int, float]:
    lines = [line.split() for line in ledger.read_text().splitlines()]
    return {int(step): float.fromhex(loss) for step, loss in lines}


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashed]:
    threads = torch.get_num_threads()
    started: list[Trainer] = []
    try:
        yield Crashed(tmp_path_factory.mktemp("resume"), started)
    finally:
        torch.set_num_threads(threads)
        for trainer in started:
            trainer.stop()


def _check_gradients(trial: Trial, crashed: Crashed, attempt: int, steps: range) -> None:
    tensor = trial.tensor(f"gradient/{WEIGHT}")
    for step in steps:
        np.testing.assert_array_equal(tensor.value(step), crashed.twin_gradients[attempt, step])


@pytest.mark.supports("resume", "values")
def test_a_reader_gets_the_latest_attempt_from_the_checkpoint_on(crashed: Crashed) -> None:
    assert crashed.trial.attempts == [0, 1]
    assert crashed.trial.steps() == list(range(220))
    _check_gradients(crashed.trial, crashed, 0, range(190, 200))
    _check_gradients(crashed.trial, crashed, 1, range(200, 220))


@pytest.mark.supports("resume", "values")
def test_both_attempts_are_kept_and_can_be_asked_for(crashed: Crashed) -> None:
    first, second = (td.create_trial(crashed.path, attempt=attempt) for attempt in (0, 1))
    assert first.steps() == list(range(213))
    assert second.steps() == list(range(200, 220))
    _check_gradients(first, crashed, 0, range(205, 213))
    _check_gradients(second, crashed, 1, range(200, 213))


def test_what_is_recorded_before_the_first_step_belongs_to_it(crashed: Crashed) -> None:
    rows = crashed.trial.rows(["scalar/seed"], attempt=1).to_pylist()
    assert [(row["step"], row["mean"]) for row in rows] == [(200, 1.0)]


@pytest.mark.supports("resume", "losses")
def test_losses_of_both_attempts_are_those_of_a_training_without_a_hook(crashed: Crashed) -> None:
    assert crashed.first_losses == {step: crashed.twin_losses[0, step] for step in range(213)}
    assert crashed.second_losses == {step: crashed.twin_losses[1, step] for step in range(200, 220)}


def test_modes_go_on_counting_where_the_checkpoint_left_them(
    make_hook: MakeHook, read_run: ReadRun, tmp_path: Path
) -> None:
    def run(model: Net, steps: int, evaluate: int) -> None:
        train(model.train(), torch.optim.SGD(model.parameters(), lr=0.1), steps=steps)
        for _ in range(evaluate):
            model.eval()(torch.randn(2, 4))

    first = make_hook(include_collections=["weights"])
    first.register_module(model := Net())
    run(model, 3, 2)
    state = first.state_dict()
    assert state == {"step": 4, "mode_steps": {"TRAIN": 2, "EVAL": 1, "PREDICT": -1, "GLOBAL": -1}}
    first.close()
    second = make_hook(include_collections=["weights"], save_config=td.SaveConfig(save_interval=2))
    second.register_module(model := Net())
    second.load_state_dict(state)
    run(model, 2, 2)
    assert (second.global_step, second.mode_step) == (8, 3)
    rows = [row for row in read_run(second).of("Net_fc1.weight") if row["attempt"] == 1]
    assert [(row["step"], row["mode"], row["mode_step"]) for row in rows] == [
        (6, "TRAIN", 4),
        (7, "EVAL", 2),
    ]


def test_a_mode_set_before_the_first_step_goes_on_too(make_hook: MakeHook, read_run: ReadRun) -> None:
    hook = make_hook()
    hook.load_state_dict({"step": 9, "mode_steps": {"TRAIN": 5}})
    hook.set_mode(td.modes.TRAIN)
    hook.save_scalar("early", 1.0)
    (row,) = read_run(hook).of("scalar/early")
    assert (row["step"], row["mode"], row["mode_step"]) == (10, "TRAIN", 6)


def test_a_state_is_refused_once_a_step_has_begun(make_hook: MakeHook) -> None:
    hook = make_hook()
    hook.register_module(model := Net())
    model(torch.randn(2, 4))
    with pytest.raises(ConfigError, match="after global step 0 had begun"):
        hook.load_state_dict({"step": 9, "mode_steps": {"TRAIN": 9}})


@pytest.mark.parametrize(
    "state",
    [{}, None, {"step": 3}, {"step": -2, "mode_steps": {}}, {"step": True, "mode_steps": {}}],
    ids=str,
)
def test_a_state_that_no_hook_gave_is_refused(make_hook: MakeHook, state: Any) -> None:
    with pytest.raises(ConfigError, match="the result of state_dict"):
        make_hook(dry_run=True).load_state_dict(state)


def test_an_unknown_mode_in_a_state_is_refused_by_name(make_hook: MakeHook) -> None:
    with pytest.raises(ConfigError, match="TEST"):
        make_hook(dry_run=True).load_state_dict({"step": 3, "mode_steps": {"TEST": 3}})
