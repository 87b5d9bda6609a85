"""`tdcore rm` removes only files of tdcore, follows no links, and refuses while a process writes the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.cli.app import main
from tdcore.errors import ConfigError, RunCorrupt, RunNotFound
from tdcore.export import Selection
from tdcore.export.follow import follow_run
from tdcore.maintenance.remove import remove_run, writers
from tdcore.session import RingConfig, Session
from tests.trainers.checks import Trainer
from tests.trial.writer import RunWriter


def record(out: Path) -> None:
    """Record a run, and add findings, requests and a temporary file to it."""
    model = nn.Linear(2, 2)
    with td.watch(model, out, save_interval=1, reduction_config=None, flusher="thread") as hook:
        hook.register_optimizer(optimizer := torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    (out / "findings").mkdir(exist_ok=True)
    (out / "findings" / "VanishingGradient.jsonl").write_text("{}\n")
    (out / "control").mkdir(exist_ok=True)
    (out / "control" / "stop-0000.json").write_text("{}")
    (out / "data" / "worker_0" / ".tmp-0123456789abcdef-left").write_text("x")


def rm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str]:
    """Run `tdcore rm` as a user does; return its exit code and everything that it printed."""
    monkeypatch.setattr("sys.argv", ["tdcore", "rm", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), " ".join((printed.out + printed.err).split())


def test_a_run_is_gone_with_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run")
    code, printed = rm(capsys, monkeypatch, tmp_path / "run", "--yes")
    assert code == 0
    assert "removed" in printed
    assert not (tmp_path / "run").exists()


def test_files_of_others_stay_and_are_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    record(out)
    (out / "notes.txt").write_text("mine")
    (out / "index" / "worker_0" / "mine.parquet").write_text("mine")
    (out / "plots").mkdir()
    (out / "plots" / "run.json").write_text("mine")
    removed = remove_run(out)
    assert removed.kept == ["index/worker_0/mine.parquet", "notes.txt", "plots"]
    left = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    assert left == ["index/worker_0/mine.parquet", "notes.txt", "plots/run.json"]


def test_the_live_export_in_the_folder_of_the_run_is_removed_too(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    for attempt in range(2):
        run = RunWriter(out, attempt=attempt)
        for step, mode in enumerate(("TRAIN", "EVAL")):
            run.add("loss", 1.0, step=step, mode=mode, kind="loss")
        run.flush()
        run.end()
        follow_run(out, out / "tensorboard", selection=Selection(attempt=attempt))
    remove_run(out, attempt=0)
    assert [path.name for path in (out / "tensorboard").iterdir()] == ["attempt_1"]
    assert remove_run(out).kept == []
    assert not out.exists()


def test_links_are_left_and_what_they_point_to_is_untouched(tmp_path: Path) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    record(out)
    other.mkdir()
    victim = other / "0000-000000000000-000000000001.safetensors"
    victim.write_text("not yours")
    (out / "data" / "worker_1").symlink_to(other)
    (out / "collections").symlink_to(other)
    (out / "end" / "worker_0" / "0007.json").symlink_to(victim)
    removed = remove_run(out)
    assert victim.read_text() == "not yours"
    assert removed.kept == ["collections", "data/worker_1", "end/worker_0/0007.json"]


def test_a_run_that_is_a_link_itself_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(ConfigError, match="is a link"):
        remove_run(tmp_path / "link")
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "a package"}'])
def test_a_folder_whose_run_json_is_not_a_runs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "collections.json").write_text("mine")
    with pytest.raises(RunCorrupt, match="nothing was removed"):
        remove_run(tmp_path)
    assert (tmp_path / "collections.json").exists()


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collections.json").write_text("mine")
    with pytest.raises(RunNotFound):
        remove_run(tmp_path)
    code, printed = rm(capsys, monkeypatch, tmp_path, "--yes")
    assert code == 3
    assert "there is no run" in printed
    assert (tmp_path / "collections.json").exists()


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    ring = RingConfig(ring_bytes=1 << 20, slots=64)
    with Session(
        tmp_path / "run", configuration={}, framework="none", framework_version="", ring=ring
    ) as open_:
        yield open_


def test_a_run_that_is_being_written_is_refused_unless_forced(
    tmp_path: Path, session: Session, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, printed = rm(capsys, monkeypatch, session.out_dir, "--yes")
    assert code == 1
    assert f"(process {os.getpid()})" in printed
    assert (tmp_path / "run" / "run.json").exists()
    code, _ = rm(capsys, monkeypatch, session.out_dir, "--yes", "--force")
    assert code == 0
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_flusher_that_outlives_its_trainer_still_writes(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, steps=10, end="wait")
    try:
        trainer.wait_for_steps(10)
        (flusher,) = trainer.flushers()
        flusher.suspend()
        trainer.process.kill()
        trainer.wait()
        assert writers(trainer.out) == [f"a flusher of this machine (process {flusher.pid})"]
        flusher.resume()
        trainer.wait_for_flushers()
        assert writers(trainer.out) == []
    finally:
        trainer.stop()


def test_a_trainer_of_another_machine_without_an_end_may_still_write(tmp_path: Path) -> None:
    record(tmp_path / "run")
    (claim,) = (tmp_path / "run" / "attempts").iterdir()
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"host": "elsewhere"}))
    assert writers(tmp_path / "run") == []
    (tmp_path / "run" / "end" / "worker_0" / "0000.json").unlink()
    (who,) = writers(tmp_path / "run")
    assert who == "worker_0 of attempt 0 on elsewhere, which has no end file"


def test_one_attempt_of_several_is_removed_and_the_others_stay_whole(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(3):
        record(out)
    rows = len(list((out / "index").rglob("*.parquet")))
    remove_run(out, attempt=1)
    trial = td.create_trial(out)
    assert list(trial.attempts) == [0, 2]
    assert 0 < len(list((out / "index").rglob("*.parquet"))) < rows
    assert not list(out.rglob("0001*"))
    assert "1" not in json.loads((out / "collections.json").read_text())["attempts"]
    assert trial.tensor("Linear_weight").steps() == [0, 1, 2]
    with pytest.raises(ConfigError, match="has no attempt 1; it has 0, 2"):
        remove_run(out, attempt=1)


def test_the_only_attempt_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "run")
    with pytest.raises(ConfigError, match="remove the run"):
        remove_run(tmp_path / "run", attempt=0)


def test_nobody_there_to_answer_needs_a_yes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "run")
    code, printed = rm(capsys, monkeypatch, tmp_path / "run")
    assert code == 2
    assert "--yes" in printed
    assert (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(("answer", "there"), [("y\n", False), ("n\n", True)])
def test_it_asks_first(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    there: bool,
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    record(tmp_path / "run")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    code, _ = rm(capsys, monkeypatch, tmp_path / "run")
    assert (code, (tmp_path / "run").exists()) == (int(there), there)
