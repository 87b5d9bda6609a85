"""tdcore show --watch, and the layout of tables: order of the model, 80 columns, no boxes in pipes."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tests.signals import default_signals
from tests.test_cli import Command
from tests.trial.writer import RunWriter

pytestmark = pytest.mark.timeout(60)
LONG = "gradient/TransformerForSequenceClassification_encoder.layers.{}.attention.self_attention.query.weight"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    return Command(monkeypatch, capsys)


def live(place: Path) -> RunWriter:
    """A run of this process, with one step."""
    run = RunWriter(place, host=socket.gethostname(), pid=os.getpid())
    add(run, 0)
    return run


def add(run: RunWriter, step: int) -> None:
    for layer in (10, 0, 2):
        run.add(f"layers.{layer}.weight", np.full(3, 1.0 + step), step=step)
    run.flush()


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tdcore.cli", "show", *map(str, arguments)]


def read_until(stream: IO[str], text: str) -> str:
    """Read lines up to one that contains a text."""
    found = ""
    for line in stream:
        found += line
        if text in line:
            return found
    raise AssertionError(f"the output ended before {text!r}: {found!r}")


# Watching. ------------------------------------------------------------------------------------------------


def test_a_watch_prints_each_change_until_the_run_has_ended(tmp_path: Path) -> None:
    run = live(tmp_path)
    with subprocess.Popen(
        command(tmp_path, "--watch"), stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "80"}
    ) as watching:
        assert watching.stdout is not None
        first = read_until(watching.stdout, "layers.10.weight")
        assert "running" in first
        assert "\x1b" not in first
        add(run, 1)
        second = read_until(watching.stdout, "layers.10.weight")
        assert re.search(r"layers\.0\.weight +1 +2 ", second)
        run.end()
        last = watching.stdout.read()
        assert re.match(r"\d\d:\d\d:\d\d  ended\n", last)
        assert watching.wait() == 0


def test_ctrl_c_ends_the_watch_and_not_the_run(tmp_path: Path) -> None:
    live(tmp_path)
    with default_signals():
        watching = subprocess.Popen(
            command(tmp_path, "-w"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    with watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        read_until(watching.stdout, "layers.10.weight")
        watching.send_signal(signal.SIGINT)
        assert watching.wait() == 0
        assert watching.stderr.read() == ""


def test_a_watch_waits_for_a_tensor_that_does_not_exist_yet(tmp_path: Path) -> None:
    run = live(tmp_path)
    with subprocess.Popen(
        command(tmp_path, "layers.7.weight", "--watch"), stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        read_until(watching.stdout, "no tensor of")
        run.add("layers.7.weight", np.ones(3), step=1)
        run.flush()
        read_until(watching.stdout, "magnitudes at step 1")
        run.end()
        watching.stdout.read()
        assert watching.wait() == 0


def test_on_a_terminal_each_drawing_replaces_the_one_before_and_fits(tmp_path: Path) -> None:
    run = live(tmp_path)
    for layer in range(100):
        run.add(f"many.{layer}", np.ones(2), step=1)
    run.flush()
    main, other = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "LINES": "12", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    watching = subprocess.Popen(command(tmp_path, "--watch"), stdin=other, stdout=other, env=environment)
    os.close(other)
    try:
        first = read_screen(main, "more lines: give a pattern")
        run.end()
        last = read_screen(main, "many.99")
        assert watching.wait() == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(main)
    assert first.count("\x1b[2J\x1b[H") == 1
    assert len(ESCAPE.sub("", first).splitlines()) == 11
    assert last.count("\x1b[2J\x1b[H") == 1


def read_screen(terminal: int, text: str) -> str:
    """Read the output of a program on a terminal, up to a text."""
    found = ""
    while text not in found:
        found += os.read(terminal, 65536).decode(errors="replace")
    return found


@pytest.mark.parametrize("option", ["--json", "--time"])
def test_a_watch_refuses_options_that_it_cannot_follow(tdcore: Command, tmp_path: Path, option: str) -> None:
    live(tmp_path)
    result = tdcore("show", tmp_path, "--watch", option)
    assert result.code == 2
    assert f"--watch and {option} are given" in result.err


# Order and width. -----------------------------------------------------------------------------------------


def test_tensors_are_in_the_order_of_the_model(tdcore: Command, tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for layer in (0, 2, 10):
        run.add(f"b.{layer}.weight", np.ones(2), step=0)
    run.add("a.weight", np.ones(2), step=0)
    for layer in (10, 2, 0):
        run.add(f"gradient/b.{layer}.weight", np.ones(2), step=0, kind="gradient")
    run.add("loss", 1.0, step=0, kind="loss")
    run.flush()
    run.end()
    order = ["loss", "b.0.weight", "b.2.weight", "b.10.weight", "a.weight"]
    order += [f"gradient/b.{layer}.weight" for layer in (0, 2, 10)]
    assert [each["tensor"] for each in tdcore("show", tmp_path, "--json").json["tensors"]] == order
    lines = tdcore("show", tmp_path).out.splitlines()
    assert [line.split()[0] for line in lines[3:] if line.strip()] == order


def wide_run(place: Path) -> Path:
    """Two workers, long names, large steps, two modes, NaN, and a tensor without values."""
    for worker in ("worker_0", "worker_1"):
        run = RunWriter(place, worker=worker, world_size=2)
        for number in range(3):
            step, at = 1_000_000 * number + 5, 1_000_000 * number
            for layer in (0, 2, 10):
                values = np.full((4, 4), 1e-9 * (1 + layer))
                run.add(LONG.format(layer), values, step=step, mode_step=at, kind="gradient")
            run.add(f"{'x' * 200}_output_0", np.array([np.nan, 1.0]), step=step, mode_step=at, kind="output")
            run.add(
                "absent.weight", None, step=step, mode_step=at, status="skipped", reason="unsupported_dtype"
            )
            run.add("loss", 2.0, step=step + 1, mode="EVAL", mode_step=number, kind="loss")
        run.flush()
        run.end()
    return place


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "RUN"],
        ["show", "RUN", "--mode", "eval"],
        ["show", "RUN", "query"],
        ["show", "RUN", LONG.format(2)],
        ["show", "RUN", f"{'x' * 200}_output_0"],
        ["ls", "RUN"],
        ["ls", "PARENT"],
        ["rules", "list"],
        ["rules", "explain", "TDC101"],
        ["rules", "run", "RUN", "--rule", "vanishing_gradient", "--rule", "exploding_tensor"],
        [
            "rules",
            "sweep",
            "PARENT",
            "-r",
            "vanishing_gradient",
            "-r",
            "exploding_tensor",
            "-r",
            "weight_update_ratio",
        ],
        ["doctor"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30],
)
def test_tables_fit_80_columns_and_have_no_boxes(
    tdcore: Command, tmp_path: Path, arguments: list[str]
) -> None:
    wide_run(tmp_path / "a-run-with-a-long-name-that-describes-its-settings")
    places = {
        "RUN": str(tmp_path / "a-run-with-a-long-name-that-describes-its-settings"),
        "PARENT": str(tmp_path),
    }
    out = tdcore(*(places.get(each, each) for each in arguments)).out
    assert out.strip()
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert not set("│┃┏┌╭\x1b") & set(out)


def test_long_names_break_at_their_separators(tdcore: Command, tmp_path: Path) -> None:
    lines = tdcore("show", wide_run(tmp_path), "query").out.splitlines()
    pieces = [line[:30].split(" ")[0] for line in lines if line.startswith(("0.", "2.", "10.", "query"))]
    assert "".join(pieces).count("attention.") >= 3
    joined = "".join(line[:30].split("  ")[0].strip() for line in lines)
    assert LONG.format(10) in joined
