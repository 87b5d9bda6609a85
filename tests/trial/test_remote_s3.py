"""Runs in a bucket, on real servers: opened, followed, judged, and shown by the command line."""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tdcore.cli import main
from tdcore.errors import RunNotFound
from tdcore.rules import ExplodingTensor, VanishingGradient
from tdcore.rules import run as judge
from tdcore.session import RingConfig, Session
from tdcore.sinks import open_sink
from tdcore.trial import create_trial
from tdcore.trial.trial_factory import open_trial
from tests.s3.fixtures import Place
from tests.trial.writer import EPOCH_NS, RunWriter

SECONDS = timedelta(seconds=30)


def upload(run: RunWriter, url: str, known: set[str] | None = None) -> None:
    """Upload the run to its place: segments first, end files last.

    known: uploaded keys, which this function updates.
    """
    known = set() if known is None else known
    sink = open_sink(url)
    order = ["run.json", "attempts", "collections.json", "data", "index", "end"]
    files = [path for path in run.root.rglob("*") if path.is_file()]
    keys = sorted((path.relative_to(run.root).as_posix() for path in files), key=lambda key: (
        order.index(key.partition("/")[0]), key
    ))  # fmt: skip
    for key in keys:
        if key not in known or key == "run.json":
            sink.put(key, [(run.root / key).read_bytes()])
    known.update(keys)
    sink.close()


def fill(run: RunWriter, first: int = 0, last: int = 6, size: float = 1.0) -> None:
    """Write steps with a weight, its gradient and a loss, two steps per flush."""
    for step in range(first, last):
        run.add("Net_fc.weight", np.arange(12, dtype=np.float32).reshape(3, 4) + step, step=step)
        run.add("gradient/Net_fc.weight", np.full((3, 4), size), step=step, kind="gradient")
        run.add("CrossEntropyLoss_output_0", 1.0 / (step + 1), step=step, kind="loss", payload=False)
        if step % 2:
            run.flush()


def test_a_run_in_a_bucket_reads_as_one_in_a_folder(run: RunWriter, s3_place: Place, cache: Path) -> None:
    fill(run)
    run.end()
    upload(run, s3_place.url())
    there, here = create_trial(s3_place.url()), create_trial(run.root)
    try:
        assert there.name == s3_place.prefix
        assert there.status == "ended"
        assert there.steps() == here.steps()
        assert there.stats().equals(here.stats())
        for name in ("Net_fc.weight", "gradient/Net_fc.weight"):
            mine, theirs = here.tensor(name).values(), there.tensor(name).values()
            assert [value.tolist() for value in theirs.values()] == [
                value.tolist() for value in mine.values()
            ]
        assert there.missing() == []
        assert list(cache.rglob("*.parquet"))
    finally:
        there.close()


def test_a_run_in_a_bucket_is_followed_while_it_is_written(run: RunWriter, s3_place: Place) -> None:
    known: set[str] = set()
    fill(run, 0, 2)
    upload(run, s3_place.url(), known)
    trial = create_trial(s3_place.url(), refresh_interval=timedelta(0))
    try:
        for last in (4, 6):
            fill(run, last - 2, last)
            upload(run, s3_place.url(), known)
            trial.wait_for_steps([last - 2], timeout=SECONDS, interval=timedelta(milliseconds=10))
            assert trial.tensor("Net_fc.weight").value(last - 2)[0, 0] == last - 2
        run.end()
        upload(run, s3_place.url(), known)
        trial.refresh()
        assert trial.steps() == list(range(6))
        assert trial.loaded_all_steps
    finally:
        trial.close()


def test_a_trainer_that_saves_nothing_for_long_has_not_died(
    s3_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TDCORE_SPOOL", str(tmp_path / "spools"))
    ring = RingConfig(ring_bytes=1 << 20, slots=64, names_bytes=1 << 16)
    session = Session(
        s3_place.url(),
        worker="worker_0",
        configuration={},
        framework="test",
        framework_version="1",
        ring=ring,
    )
    now = [1000.0]
    with closing(open_sink(s3_place.url())) as sink, closing(session):
        trial = open_trial(sink, clock=lambda: now[0])
        now[0] += 100_000
        assert trial.status == "running"
        assert trial.missing() == []
        (claim,) = trial._reader.progress.claims([("worker_0", 0)]).values()
        assert (claim["pid"], claim["host"]) == (os.getpid(), socket.gethostname())
        assert claim["spool"].startswith(str(tmp_path))
        session.close()
        trial.refresh()
        assert trial.loaded_all_steps


def test_a_run_in_a_bucket_is_judged_and_keeps_the_findings(run: RunWriter, s3_place: Place) -> None:
    fill(run, size=1e-9)
    run.end()
    upload(run, s3_place.url())
    report = judge(s3_place.url(), [VanishingGradient(), ExplodingTensor()])
    assert report.exit_code == 1
    assert {(found.step, found.last_step, found.count) for found in report.findings} == {(0, 5, 6)}
    lines = map(json.loads, s3_place.objects()["findings/VanishingGradient.jsonl"].splitlines())
    assert [(line["step"], line["last_step"], line["count"]) for line in lines] == [(0, 5, 6)]


def test_a_prefix_without_a_run_says_so(s3_place: Place) -> None:
    with pytest.raises(RunNotFound, match=rf"{s3_place.prefix} has no run\.json") as caught:
        create_trial(s3_place.url())
    assert "endpoint_url" not in str(caught.value)
    assert str(caught.value).endswith("; `tdcore ls` lists the runs below a prefix")


def test_ls_of_a_prefix_lists_the_runs_below_it_without_their_options(
    run: RunWriter, s3_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place, _, options = s3_place.url().partition("?")
    upload(run, f"{place}/demo?{options}")
    monkeypatch.setenv("COLUMNS", "200")
    assert command(monkeypatch, "ls", s3_place.url()) == 0
    printed = capsys.readouterr().out
    assert f"{place}/demo" in printed
    assert "endpoint_url" not in printed


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run `tdcore` in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["tdcore", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


def test_the_command_line_takes_urls(
    tmp_path: Path, s3_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunWriter(tmp_path / "run", epoch_ns=EPOCH_NS, host="node-7")
    fill(run)
    run.put("attempts/0000-worker_0.json", {"host": "node-7", "spool": "/spool/0", "pid": 1, "started_ns": 0})
    upload(run, s3_place.url())
    monkeypatch.setenv("COLUMNS", "200")
    assert command(monkeypatch, "ls", s3_place.url()) == 0
    text = capsys.readouterr().out
    assert "0..5 (6) saved" in text
    assert "worker_0 of attempt 0 has not ended" in text
    assert "run `tdcore upload /spool/0` on node-7" in text
    assert command(monkeypatch, "show", s3_place.url(), "Net_fc.weight", "--json") == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)["rows"]] == list(range(6))
    rules = ["rules", "run", s3_place.url(), "-r", "vanishing_gradient", "--json", "--no-write", "--ended"]
    assert command(monkeypatch, *rules) == 0
    assert json.loads(capsys.readouterr().out)["verdicts"][0]["status"] == "no issue"
