"""Hook.set_epoch: the epoch of a saved step is the number that the script has set."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tdcore as td
import tdcore.rules
from tdcore.cli import main
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tests.trainers.checks import flushers_of
from tests.trial.clocks import ranks

from .conftest import MakeHook
from .models import Net


def trained(hook: Hook, lengths: list[tuple[int, int]]) -> td.Trial:
    """Train epochs, numbered from 5. lengths: the numbers of training and evaluation steps of each epoch."""
    model = Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch, (train, evaluate) in enumerate(lengths, 5):
        hook.set_epoch(epoch)
        model.train()
        for _ in range(train):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for _ in range(evaluate):
                model(torch.randn(2, 4))
    hook.close()
    return td.create_trial(hook.out_dir, settle=timedelta(0))


def test_a_saved_step_has_the_epoch_in_which_it_ran(make_hook: MakeHook) -> None:
    trial = trained(
        make_hook(save_all=True, save_config=td.SaveConfig(save_interval=3)), [(4, 2), (2, 0), (5, 1)]
    )
    # Steps 0, 3, 6, 9 of training and 0 of evaluation are saved: the global steps 0, 3, 4, 8, 11.
    found = {(trial.mode(step).name, trial.mode_step(step)): trial.epoch(step) for step in trial.steps()}
    assert found == {
        ("TRAIN", 0): 5, ("TRAIN", 3): 5, ("EVAL", 0): 5, ("TRAIN", 6): 7, ("TRAIN", 9): 7,
    }  # fmt: skip


def test_the_number_is_saved_once_for_each_epoch_with_a_saved_step(make_hook: MakeHook) -> None:
    trial = trained(
        make_hook(save_all=True, save_config=td.SaveConfig(save_interval=3)), [(4, 2), (2, 0), (5, 1)]
    )
    assert [trial.tensor("epoch").value(step) for step in trial.tensor("epoch").steps()] == [5, 7]


def test_without_set_epoch_the_epoch_is_none(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True)
    model = Net()
    hook.register_module(model)
    model(torch.randn(2, 4)).sum().backward()
    hook.save_scalar("epoch", 3)  # the step at which this epoch begins is not known
    hook.close()
    trial = td.create_trial(hook.out_dir, settle=timedelta(0))
    assert [trial.epoch(step) for step in trial.steps()] == [None]


def test_an_epoch_without_room_in_the_ring_is_recorded_in_the_next_saved_step(
    tmp_path: Path,
) -> None:
    ring = td.RingConfig(ring_bytes=1 << 20, slots=64, names_bytes=1 << 20, when_full="drop")
    hook = Hook(tmp_path / "run", save_all=True, save_config=td.SaveConfig(save_interval=1), ring=ring)
    model = Net()
    hook.register_module(model)

    def steps(number: int) -> None:
        for _ in range(number):
            model(torch.randn(2, 4)).sum().backward()
            hook.step()

    hook.set_epoch(5)
    steps(1)
    assert hook.flush()
    (flusher,) = flushers_of(tmp_path / "run")
    os.kill(flusher.pid, signal.SIGSTOP)
    try:
        steps(40)  # more than the ring can hold
        hook.set_epoch(6)
        steps(1)
    finally:
        os.kill(flusher.pid, signal.SIGCONT)
    assert hook.flush()
    last = hook.global_step
    steps(2)
    assert hook.counters().drops["ring_full"].tensors > 0
    hook.close()
    trial = td.create_trial(hook.out_dir, settle=timedelta(0))
    assert trial.epoch(0) == 5
    assert {trial.epoch(step) for step in trial.steps() if step > last} == {6}


@pytest.mark.parametrize("epoch", [-1, 1.0, "one", True, None, 2**53 + 1, 10**400])
def test_an_epoch_that_is_no_whole_number_is_refused(make_hook: MakeHook, epoch: Any) -> None:
    with pytest.raises(ConfigError, match="epoch must be"):
        make_hook().set_epoch(epoch)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=5),
    interval=st.integers(1, 4),
)
def test_epochs_of_any_lengths_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[tuple[int, int]], interval: int
) -> None:
    out = tmp_path_factory.mktemp("epochs") / "run"
    hook = Hook(out, save_all=True, save_config=td.SaveConfig(save_interval=interval), flusher="thread")
    trial = trained(hook, lengths)
    expected = [epoch for epoch, (train, evaluate) in enumerate(lengths, 5) for _ in range(train + evaluate)]
    assert {step: trial.epoch(step) for step in trial.steps()} == {
        step: expected[step] for step in trial.steps()
    }


def test_epochs_follow_steps_that_get_other_numbers(tmp_path: Path) -> None:
    first, second = ranks(tmp_path)
    for epoch in range(3):
        second.train()
        second.add("epoch", epoch, kind="scalar")
        second.train(2)
    second.flush()
    reader = td.create_trial(tmp_path)._reader
    assert [reader.epochs.of(0, "worker_1", step) for step in (0, 3, 6, 8)] == [0, 1, 2, 2]
    for _ in range(3):  # only the first worker evaluates, so its global steps have other numbers
        first.train(3)
        first.evaluate(2)
    first.end()
    second.end()
    reader.refresh()
    trained = [0, 1, 2, 5, 6, 7, 10, 11, 12]
    assert [reader.epochs.of(0, "worker_1", step) for step in trained] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_findings_and_causes_have_the_epoch_of_their_steps(
    make_hook: MakeHook, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=1))
    model = Net()
    hook.register_module(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(1, 4):
        hook.set_epoch(epoch)
        for step in range(5):
            optimizer.zero_grad()
            x = torch.full((2, 4), float("nan") if (epoch, step) >= (2, 3) else 0.5)
            model(x).square().mean().backward()
            optimizer.step()
    hook.close()
    report = td.rules.run(hook.out_dir, ["first_non_finite"])
    found = report.verdicts[0].findings[0]
    assert (found.step, found.epoch, found.at) == (8, 2, "step 8 (epoch 2)")
    assert found.to_json()["epoch"] == 2
    cause = td.diagnose(hook.out_dir).causes[0]
    assert (cause.since, cause.epoch, cause.to_json()["epoch"]) == (("TRAIN", 8), 2, 2)
    monkeypatch.setattr("sys.argv", ["tdcore", "diagnose", hook.out_dir])
    with pytest.raises(SystemExit):
        main()
    assert "from TRAIN step 8 (epoch 2) on" in capsys.readouterr().out


def test_a_finding_that_continues_has_the_epoch_of_its_newest_step(make_hook: MakeHook) -> None:
    hook = make_hook(save_all=True, save_config=td.SaveConfig(save_interval=1))
    model = Net()
    hook.register_module(model)
    for epoch in range(3):
        hook.set_epoch(epoch)
        for _ in range(4):
            model.zero_grad()
            (model(torch.zeros(2, 4)).sum() * 0).backward()
    hook.close()
    report = td.rules.run(hook.out_dir, ["vanishing_gradient:compat=true"])
    found = next(one for one in report.verdicts[0].findings if one.count > 1)
    assert (found.epoch, found.last_epoch) == (0, 2)
    assert found.last_at.endswith("(epoch 2)")


def test_a_judge_that_continues_from_its_state_has_the_epoch(make_hook: MakeHook, tmp_path: Path) -> None:
    hook = make_hook(save_all=True)
    model = Net()
    hook.register_module(model)

    def steps(value: float) -> None:
        for _ in range(3):
            model(torch.full((2, 4), value)).square().mean().backward()
            hook.step()

    hook.set_epoch(2)
    steps(0.5)
    assert hook.flush()
    state = tmp_path / "judge.state"
    assert not td.rules.run(hook.out_dir, ["first_non_finite"], state=state).verdicts[0].findings
    steps(float("nan"))
    hook.close()
    for _ in range(2):
        report = td.rules.run(hook.out_dir, ["first_non_finite"], state=state)
        assert report.verdicts[0].findings[0].epoch == 2
