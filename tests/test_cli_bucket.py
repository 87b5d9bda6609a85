"""Commands on a run in a bucket: titles have no options of the URL, and commands to type have them."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from tdcore.sinks import open_sink
from tests.s3.fixtures import Place
from tests.test_cli import Command
from tests.trial.writer import RunWriter


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "400")
    return Command(monkeypatch, capsys)


@pytest.fixture
def url(s3_place: Place, tmp_path: Path) -> str:
    """A run in a bucket, with one tensor."""
    run = RunWriter(tmp_path)
    run.add("a", np.ones(1), step=0)
    run.flush()
    run.end()
    sink = open_sink(s3_place.url("run"))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            sink.put(path.relative_to(tmp_path).as_posix(), [path.read_bytes()])
    sink.close()
    return s3_place.url("run")


def test_a_command_to_type_reaches_the_same_bucket(tdcore: Command, url: str) -> None:
    listed = tdcore("profile", url, "--list")
    (command,) = [
        line.partition("tdcore profile ")[2] for line in listed.out.splitlines() if "tdcore profile" in line
    ]
    assert open_sink(shlex.split(command)[0]).get("run.json")


def test_titles_have_no_options_of_the_url(tdcore: Command, url: str) -> None:
    title = tdcore("show", url).out.splitlines()[0]
    assert title.startswith(f"{url.partition('?')[0]}: last saved step")
