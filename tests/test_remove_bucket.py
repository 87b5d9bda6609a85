"""`tdcore rm` of a run in a bucket removes the run's objects and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.maintenance.remove import remove_run
from tdcore.sinks import open_sink
from tests.s3.fixtures import Place


@pytest.fixture
def url(s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Upload a run with two attempts, next to objects that do not belong to the run."""
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spools"))
    url = s3_place.url("run")
    for _ in range(2):
        model = nn.Linear(2, 2)
        with td.watch(model, url, save_interval=1, flusher="thread") as hook:
            hook.register_optimizer(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
            for _ in range(3):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
    sink = open_sink(s3_place.url())
    for key in ("run-of-others/run.json", "run/notes.txt"):
        sink.put(key, [b"mine"])
    sink.close()
    return url


def test_a_run_is_removed_and_objects_of_others_stay(s3_place: Place, url: str) -> None:
    before = s3_place.objects()
    removed = remove_run(url)
    assert s3_place.objects() == {"run-of-others/run.json": b"mine", "run/notes.txt": b"mine"}
    assert removed.kept == ["notes.txt"]
    assert removed.files == len(before) - 2


def test_one_attempt_is_removed_and_the_other_one_is_read_as_before(url: str) -> None:
    expected = td.create_trial(url, attempt=1).rows().to_pylist()
    assert len(expected) > 0
    remove_run(url, attempt=0)
    trial = td.create_trial(url)
    assert trial.rows().to_pylist() == expected
    assert {row["attempt"] for row in trial.rows().to_pylist()} == {1}
