"""`tdcore ls` and `tdcore show` of runs with tensors that are sharded over workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import Command
from tests.trial.large_files import EVERY_FILE, NO_FILE, large_files, seal
from tests.trial.sharding import add_part, rows, workers
from tests.trial.writer import place

W = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


def write(root: Path) -> Path:
    """Write a run of three workers: a sharded, a replicated and a partial weight; each worker has a loss."""
    for rank, (run, box) in enumerate(zip(workers(root, 3), rows(W.shape, 3), strict=True)):
        for step in (0, 5):
            add_part(run, "sharded", W, box, step=step)
            add_part(run, "copied", W, rows(W.shape, 1)[0], step=step)
            run.add("summed", W, step=step, shard=place(W.shape, [0, 0], "sum"))
            run.add("loss", 1.0 + rank, step=step, kind="loss")
        run.flush()
        run.end()
    return root


def test_ls_says_how_tensors_are_spread_over_workers(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("ls", write(tmp_path), "--json").json
    assert {tensor["tensor"]: tensor["sharding"] for tensor in found["tensors"]} == {
        "copied": "replicated on 3 workers",
        "loss": None,
        "sharded": "3 parts on 3 workers",
        "summed": "sum over 3 workers",
    }
    assert "3 parts on 3 workers" in tdcore("ls", tmp_path).out


@pytest.mark.parametrize("rows_of_large_files", [EVERY_FILE, NO_FILE])
def test_ls_finds_the_parts_of_a_tensor_that_was_saved_whole_later(
    tdcore: Command, tmp_path: Path, rows_of_large_files: int
) -> None:
    for run, box in zip(workers(tmp_path, 2), rows(W.shape, 2), strict=True):
        for step in range(3):
            add_part(run, "w", W, box, step=step)
            add_part(run, "sharded", W, box, step=step)
        run.add("w", W, step=3)
        run.flush()
        seal(tmp_path / run.merge())
        run.end()
    with large_files(rows_of_large_files):
        found = tdcore("ls", tmp_path, "--json").json["tensors"]
        assert [each["sharding"] for each in found] == ["2 parts on 2 workers"] * 2
        assert tdcore("show", tmp_path, "w", "--json").json["sharding"] == "2 parts on 2 workers"


def test_show_lists_the_statistics_of_whole_tensors(tdcore: Command, tmp_path: Path) -> None:
    found = {each["tensor"]: each for each in tdcore("show", write(tmp_path), "--json").json["tensors"]}
    assert {name: each["last"]["mean"] for name, each in found.items()} == {
        "copied": 3.5, "loss": 2.0, "sharded": 3.5, "summed": None
    }  # fmt: skip
    assert found["sharded"]["steps"] == [0, 5]


def test_show_one_tensor_has_a_row_per_step_of_its_whole(tdcore: Command, tmp_path: Path) -> None:
    found = tdcore("show", write(tmp_path), "sharded", "--json").json
    assert found["sharding"] == "3 parts on 3 workers"
    assert [(row["step"], row["workers"], row["shape"], row["max"]) for row in found["rows"]] == [
        (0, 3, [4, 2], 7.0),
        (5, 3, [4, 2], 7.0),
    ]
    text = tdcore("show", tmp_path, "sharded").out
    assert "3 parts on 3 workers; the statistics are of the whole tensor" in text
    rows_of_loss = tdcore("show", tmp_path, "loss", "--json").json["rows"]
    assert [row["worker"] for row in rows_of_loss] == ["worker_0", "worker_1", "worker_2"] * 2


def test_show_says_whose_magnitudes_it_draws(tdcore: Command, tmp_path: Path) -> None:
    assert "magnitudes at step 5, worker 2: " in tdcore("show", write(tmp_path), "loss").out
    assert "magnitudes at step 5, workers 3: " in tdcore("show", tmp_path, "sharded").out
