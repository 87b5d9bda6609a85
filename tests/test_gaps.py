"""Readers show gaps: tensors that the writer of a run counted as captured and not kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tdcore import SaveConfig, Trial, create_trial
from tdcore.hooks.pytorch import Hook
from tdcore.trial import Gap
from tests.test_cli import Command
from tests.trial.writer import RunWriter
from tests.waiting import wait_until


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def rows_of(place: Path) -> int:
    """Return the number of rows in complete index files; 0 while a file is written or merged."""
    files = place.glob("index/worker_0/*.parquet")
    try:
        return sum(pq.read_metadata(file).num_rows for file in files)
    except (OSError, pa.ArrowException):
        return 0


def train_and_remove_the_folder(place: Path) -> Trial:
    """Train ten steps with six tensors each; remove the folder after the fifth step is on disk."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    hook = Hook(
        out_dir=str(place),
        save_config=SaveConfig(save_interval=1),
        include_collections=["weights", "gradients"],
    )
    hook.register_module(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if step == 4:
            wait_until(lambda: rows_of(place) >= 30, "the rows were written")
            shutil.rmtree(place)
    hook.close()
    return create_trial(place)


def test_a_folder_that_was_removed_during_a_training_is_shown_by_every_reader(
    tdcore: Command, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    trial = train_and_remove_the_folder(place)
    assert trial.steps() == [5, 6, 7, 8, 9]
    (gap,) = trial.gaps
    assert (gap.reason, gap.tensors, gap.last_step) == ("gone", 30, 4)
    (missing,) = trial.missing()
    assert (missing.what, missing.gap) == ("gap", gap)
    line = "up to step 4 of worker_0 of attempt 0 are not in the run: the folder of the run was removed"
    printed = tdcore("ls", place).out
    assert line in printed
    assert "ended clean" not in printed
    assert "its record has gaps" in printed
    found = tdcore("ls", place, "--json").json
    assert found["drops"]["gone"]["tensors"] == 30
    assert found["lost_rows"]
    assert line in tdcore("show", place).out
    assert tdcore("show", place, "--json").json["gaps"][0]["tensors"] == 30
    assert tdcore("ls", tmp_path, "--json").json["runs"][0]["drops"]["gone"]["tensors"] == 30


def test_gaps_are_read_from_the_end_file(run: RunWriter) -> None:
    run.add("x", np.ones(2), step=7)
    run.flush()
    run.end(
        gaps=[
            {"first_step": 2, "last_step": 6, "tensors": 5, "bytes": 40, "reason": "io_error",
             "statistics_kept": True},
            {"first_step": None, "last_step": None, "tensors": None, "bytes": None, "reason": "io_error",
             "statistics_kept": False},
        ]
    )  # fmt: skip
    first, second = create_trial(run.root).gaps
    assert first == Gap(
        worker="worker_0", attempt=0, reason="io_error", first_step=2, last_step=6, tensors=5, bytes=40,
        statistics_kept=True,
    )  # fmt: skip
    assert second == Gap(worker="worker_0", attempt=0, reason="io_error")


def test_lines_of_gaps_say_which_steps_and_what_is_kept(tdcore: Command, run: RunWriter) -> None:
    run.add("x", np.ones(2), step=7)
    run.flush()
    gap = {"first_step": 2, "last_step": 6, "tensors": 5, "bytes": 40, "reason": "io_error"}
    run.end(
        gaps=[gap | {"statistics_kept": True}, {"reason": "io_error"}],
        drops={"io_error": {"tensors": 5, "bytes": 40}},
    )
    printed = tdcore("ls", run.root).out
    assert "values of 5 tensors (40 B) of steps 2..6 of worker_0" in printed
    assert "are not in the run; their statistics are: they could not be written" in printed
    assert "tensors of unknown steps of worker_0" in printed
    assert tdcore("ls", run.root, "--json").json["drops"]["io_error"]["tensors"] == 5  # not counted twice


def test_a_damaged_list_of_gaps_does_not_keep_the_run_from_being_read(run: RunWriter) -> None:
    run.add("x", np.ones(2), step=0)
    run.flush()
    run.end(gaps=[3, {"reason": 5, "tensors": "many", "last_step": True}])
    assert create_trial(run.root).gaps == [Gap(worker="worker_0", attempt=0, reason="5")]


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    return RunWriter(tmp_path / "run")
