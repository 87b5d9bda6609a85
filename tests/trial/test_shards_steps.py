"""Steps of several workers: complete when every expected worker has the step, or will never have it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import RunCorrupt
from tdcore.trial import Trial, create_trial
from tests.trial.test_steps import Clock, save
from tests.trial.writer import RunWriter

HERE = socket.gethostname()
GONE = 2**22 - 3  # no process has this number
NAMES = ["worker_0", "worker_1", "worker_2"]


def ranks(root: Path, *, last: dict[str, Any] | None = None) -> list[RunWriter]:
    """Write three workers that run.json lists; the last one's process may be another one."""
    options = [{}, {}, last or {}]
    return [
        RunWriter(root, worker=name, world_size=3, workers=NAMES, **each)
        for name, each in zip(NAMES, options, strict=True)
    ]


def followed(runs: list[RunWriter], *steps: int) -> tuple[Trial, Clock]:
    """All workers save steps 0 and 1, and a trial reads them; then the first two save the other steps."""
    for run in runs:
        save(run, 0, 1)
    trial = create_trial(runs[0].root)
    assert trial.steps() == [0]
    for run in runs[:2]:
        save(run, *steps)
    trial.refresh()
    return trial, Clock(trial)


def test_worker_that_run_json_names_is_waited_for_before_it_shows_itself(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, world_size=2, workers=NAMES[:2])
    save(first, 0, 1)
    trial = create_trial(tmp_path)
    clock = Clock(trial)
    assert trial.steps() == []
    assert trial.waiting_for(0) == ["worker_1"]
    second = RunWriter(tmp_path, worker="worker_1", world_size=2, workers=NAMES[:2])
    save(second, 0, 1)
    assert trial.steps() == [0]
    assert trial.waiting_for(0) == []
    assert trial.waiting_for(1) == ["worker_0", "worker_1"]
    clock.now += 6
    assert trial.steps() == [0, 1]


def test_worker_of_which_nothing_ever_comes_is_given_up(tmp_path: Path) -> None:
    save(RunWriter(tmp_path, world_size=2, workers=NAMES[:2]), 0, 1)
    trial = create_trial(tmp_path)
    clock = Clock(trial)
    clock.now += 51
    assert trial.steps() == [0, 1]


def test_worker_that_only_says_that_steps_are_over_holds_nothing_back(tmp_path: Path) -> None:
    first = RunWriter(tmp_path, world_size=2, workers=NAMES[:2])
    idle = RunWriter(tmp_path, worker="worker_1", world_size=2, workers=NAMES[:2])
    save(first, 0, 1, 2)
    idle.mark_step_end(0)
    idle.flush()
    assert create_trial(tmp_path).steps() == [0]


def test_worker_that_saves_seldom_and_says_that_steps_are_over_stays_where_it_said(tmp_path: Path) -> None:
    often, seldom = (RunWriter(tmp_path, worker=name, world_size=2, workers=NAMES[:2]) for name in NAMES[:2])
    save(seldom, 0)
    trial = create_trial(tmp_path)
    clock = Clock(trial)
    save(often, *range(10))
    for run in (often, seldom):
        run.mark_step_end(8)
        run.flush()
    trial.refresh()
    assert trial.steps() == list(range(9))
    clock.now += 6
    assert trial.steps() == list(range(10))[: len(trial.steps())]
    assert len(trial.steps()) >= 9
    assert trial.waiting_for(8) == []


def test_workers_that_are_not_included_are_not_waited_for(tmp_path: Path) -> None:
    save(RunWriter(tmp_path, world_size=8, workers=NAMES[:1]), 0, 1)
    assert create_trial(tmp_path).steps() == [0]


def test_worker_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    runs = ranks(tmp_path)
    trial, _ = followed(runs, 2, 3)
    assert trial.steps() == [0]
    assert trial.waiting_for(2) == ["worker_2"]
    runs[2].end(clean=False)
    assert trial.steps() == [0, 1, 2]


def test_worker_whose_process_is_gone_is_given_up_after_ten_times_settle(tmp_path: Path) -> None:
    trial, clock = followed(ranks(tmp_path, last={"host": HERE, "pid": GONE}), 2, 3)
    clock.now += 49
    assert trial.steps() == [0, 1]
    clock.now += 2
    assert trial.steps() == [0, 1, 2, 3]
    assert trial.waiting_for(3) == []


def test_worker_whose_process_lives_is_waited_for(tmp_path: Path) -> None:
    trial, clock = followed(ranks(tmp_path, last={"host": HERE, "pid": os.getpid()}), 2, 3)
    clock.now += 1000
    assert trial.steps() == [0, 1]
    assert trial.waiting_for(2) == ["worker_2"]


def test_worker_of_another_machine_is_given_up_after_a_minute_of_silence(tmp_path: Path) -> None:
    runs = ranks(tmp_path, last={"host": "elsewhere", "pid": 1})
    trial, clock = followed(runs, 2, 3)
    clock.now += 55
    assert trial.steps() == [0, 1]
    clock.now += 6
    assert trial.steps() == [0, 1, 2, 3]
    save(runs[2], 2)  # the worker was only slow
    assert trial.steps() == [0, 1]
    assert trial.tensor("x").workers(2) == NAMES


def test_list_of_workers_that_is_none_is_refused(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    save(run, 0)
    for workers in ("worker_0", [1], ["../x"]):
        run.put("run.json", {"format": 1, "run_id": "0", "attempts": [{"attempt": 0, "workers": workers}]})
        with pytest.raises(RunCorrupt, match="workers"):
            create_trial(tmp_path)


def test_value_of_each_worker_is_there_at_an_incomplete_step(tmp_path: Path) -> None:
    trial, _ = followed(ranks(tmp_path), 2)
    assert np.array_equal(trial.tensor("x").value(2, worker="worker_1"), [0.0])
