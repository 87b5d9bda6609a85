"""The command line on runs of other users and on small terminals: no escape sequences, no lost text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.cli.output import sparkline
from tdcore.text.quoting import quoted, quoted_lines
from tdcore.trial.progress import RunProgress
from tdcore.trial.reader import Reader
from tests.test_cli import Command, write
from tests.trial.writer import RunWriter

pytestmark = pytest.mark.timeout(120)

EVIL = "w\x1b]0;title\x07\x1b[2J\x9b31m\nattempt 7: closed\u202egpj"


@pytest.fixture
def tdcore(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.setenv("COLUMNS", "160")
    return Command(monkeypatch, capsys)


def write_evil(place: Path) -> Path:
    """Write a run with escape sequences in every text field."""
    run = RunWriter(place)
    for step in (0, 1):
        run.add(EVIL, np.zeros(3), step=step, kind="gradient")
        run.add("gone", None, step=step, status="absent", reason=EVIL)
    run.flush()
    note = {
        "collections": {EVIL: {"include_regex": ["."], "tensor_names": []}},
        EVIL: [EVIL],
        "faults": {EVIL: EVIL},
    }
    run.put("collections.json", {"format": 1, "attempts": {"0": {**note, "exception": EVIL}}})
    run.end(last_step=1, clean=False, reason=EVIL, drops={EVIL: {"tensors": 1, "bytes": 2}})
    document = json.loads((place / "run.json").read_text())
    document["attempts"][-1]["framework"] = EVIL
    (place / "run.json").write_text(json.dumps(document))
    return place


def assert_plain(text: str) -> None:
    assert not [each for each in text if each != "\n" and quoted(each) != each]


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace", "RUN", "-o", "-"],
        ["ls"], ["show"], ["show", "RUN", "w"], ["show", "RUN", "gone"], ["ls", "RUN", "-r", "w"],
        ["rules", "run", "RUN", "-r", "all_zero:tensor_regex=.,patience=1"], ["show", "RUN", EVIL + "?"],
        ["rules", "sweep", "RUN", "-r", "all_zero:tensor_regex=.,patience=1"],
    ],
)  # fmt: skip
def test_no_escape_sequence_of_a_run_reaches_the_terminal(
    tdcore: Command, tmp_path: Path, arguments: list[str]
) -> None:
    run = write_evil(tmp_path / "run")
    given = [str(run) if each == "RUN" else each for each in arguments]
    result = tdcore(*given, *([run] if len(given) == 1 else []))
    assert_plain(result.out)
    assert_plain(result.err)
    assert not [line for line in result.out.splitlines() if line.startswith("attempt 7")]
    shown = (result.out + result.err).replace("\n", "")
    assert r"w\x1b]0;title\x07" in shown or "sweep" in given or "trace" in given


def test_a_listing_of_runs_in_folders_with_such_names_is_plain(tdcore: Command, tmp_path: Path) -> None:
    write(tmp_path / "a\x1b[2J")
    (tmp_path / "b\x1b[2J").mkdir()
    (tmp_path / "b\x1b[2J" / "run.json").write_text("{")
    result = tdcore("ls", tmp_path)
    assert result.code == 0
    assert_plain(result.out)


def test_quoting_leaves_letters_of_all_languages() -> None:
    text = "größe/層.weight → α₁ \U0001f600"
    assert quoted(text) == text
    assert quoted("a\tb\x7f\x85\ud800\u2066") == r"a\tb\x7f\x85\ud800\u2066"
    assert quoted("a" * 50, 10) == "aaaaaaaaaa... (50 characters)"
    assert quoted_lines("a\nb\r") == "a\nb\\r"


# A damaged run in a list. ----------------------------------------------------------------------------------


def damaged(place: Path, key: str, text: str) -> Path:
    write(place)
    (place / key).write_text(text)
    return place


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("end/worker_0/0000.json", '{"clean": true, "drops": {"ring_full": {"tensors": NaN, "bytes": 0}}}'),
        ("end/worker_0/0000.json", '{"clean": true, "drops": {"ring_full": null}}'),
        ("end/worker_0/0000.json", '{"clean": true, "drops": [1]}'),
        ("end/worker_0/0000.json", '{"clean": true, "drops": {"x": {"tensors": -1}}}'),
        ("end/worker_0/0000.json", '{"clean": true, "drops": {"x": {"tensors": 1e400}}}'),
        ("end/worker_0/0000.json", '{"clean": true, "drops": {"x": {"bytes": 99999999999999999999}}}'),
        ("end/worker_0/0000.json", '{"clean": true, "clean": false}'),
        ("end/worker_0/0000.json", '{"clean": true, "reason": ["x"]}'),
        ("run.json", '{"format": 1, "run_id": "", "attempts": []}'),
        ("run.json", '{"format": 1, "run_id": "a", "attempts": [{"attempt": 0}, {"attempt": 0}]}'),
        ("run.json", '{"format": 1, "run_id": "a", "attempts": [{"attempt": 10000}]}'),
        ("run.json", '{"format": 1, "run_id": "a", "attempts": [], "x": ' + "[" * 70 + "]" * 70 + "}"),
        ("run.json", '{"format": 1, "run_id": "a", "attempts": [' + "[]," * 1_000_001 + "[]]}"),
        ("findings/rule.jsonl", "[1]\n"),
    ],
)  # fmt: skip
def test_a_bad_run_is_one_line_that_names_the_file_and_the_others_are_listed(
    tdcore: Command, tmp_path: Path, key: str, text: str
) -> None:
    write(tmp_path / "good")
    (tmp_path / "bad/findings").mkdir(parents=True)
    damaged(tmp_path / "bad", key, text)
    result = tdcore("ls", tmp_path)
    assert (result.code, result.err) == (0, "")
    assert "2 runs in" in result.out
    assert "unreadable" in result.out
    (line,) = [line for line in result.out.splitlines() if line.startswith(f"{tmp_path}/bad: {key}")]
    assert len(line) < 1000
    found = {Path(run["run"]).name: run for run in tdcore("ls", tmp_path, "--json").json["runs"]}
    assert found["bad"]["error"].startswith(key)
    assert found["good"]["steps"] == 3


def test_a_fifo_in_one_run_does_not_hide_the_others(tdcore: Command, tmp_path: Path) -> None:
    write(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    os.mkfifo(tmp_path / "bad/run.json")
    found = {Path(run["run"]).name: run for run in tdcore("ls", tmp_path, "--json").json["runs"]}
    assert "run.json" in found["bad"]["error"]
    assert "is a FIFO" in found["bad"]["error"]
    assert found["good"]["steps"] == 3


def test_many_attempts_cost_no_look_at_the_run_each(
    tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run")
    document = json.loads((tmp_path / "run/run.json").read_text())
    document["attempts"] = [{**document["attempts"][0], "attempt": number} for number in range(9_999)]
    (tmp_path / "run/run.json").write_text(json.dumps(document))
    looks: list[None] = []
    refresh = Reader.refresh

    def counted(reader: Reader) -> None:
        looks.append(None)
        refresh(reader)

    monkeypatch.setattr(Reader, "refresh", counted)
    found = tdcore("ls", tmp_path, "--json").json["runs"]
    assert len(found[0]["attempts"]) == 9_999
    assert len(looks) == 1


def test_judging_a_run_of_many_attempts_asks_for_the_newest_a_few_times(
    tdcore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    document = json.loads((tmp_path / "run.json").read_text())
    document["attempts"] = [{**document["attempts"][0], "attempt": number} for number in range(9_999)]
    (tmp_path / "run.json").write_text(json.dumps(document))
    asked: list[None] = []
    newest: Any = vars(RunProgress)["latest_attempt"]

    def counted(progress: RunProgress) -> int:
        asked.append(None)
        return int(newest.fget(progress))

    monkeypatch.setattr(RunProgress, "latest_attempt", property(counted))
    assert tdcore("rules", "run", tmp_path, "-r", "all_zero", "--attempt", "all").code == 4
    assert len(asked) < 100


# Small terminals. ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [["ls"], ["show"], ["show", "RUN", "größe"]])
def test_a_terminal_without_blocks_and_lines_gets_ascii(
    tmp_path: Path, encoding: str, arguments: Any
) -> None:
    run = RunWriter(tmp_path / "run")
    for step in range(20):
        run.add("größe", np.full(4, float(step)), step=step)
    run.flush()
    run.end(last_step=19)
    given = [tmp_path / "run" if each == "RUN" else each for each in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "tdcore.cli", *map(str, given), *([str(run.root)] if len(given) == 1 else [])],
        env={**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"},
        capture_output=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert ("größe" if encoding == "latin-1" else r"gr\xf6\xdfe") in text
    if "show" in arguments:
        assert "***#" in text or "***##" in text


@pytest.mark.parametrize("values", [[0.0, 1e-320], [-1.7e308, 1.7e308], [1.0, 1.0], [5e-324, 0.0]])
def test_the_history_has_room_for_the_smallest_and_largest_numbers(values: list[float]) -> None:
    assert len(sparkline(values, 10)) == 2


def show_at(tdcore: Command, monkeypatch: pytest.MonkeyPatch, width: int, *arguments: object) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    result = tdcore("show", *arguments)
    assert result.code == 0
    return result.out.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_the_history_has_room_at_every_width(
    tdcore: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    run = RunWriter(tmp_path)
    for step in range(40):
        run.add(
            "gradient/transformer.h.11.mlp.c_proj.weight", np.full(3, 1.0 + step), step=step, kind="gradient"
        )
    run.flush()
    lines = show_at(tdcore, monkeypatch, width, tmp_path)
    assert max(map(len, lines)) <= width
    history = max(sum(each in "▁▂▃▄▅▆▇█" for each in line) for line in lines)
    assert history >= min(18, width // 5)


def test_one_tensor_fits_into_80_columns(
    tdcore: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = show_at(tdcore, monkeypatch, 80, write(tmp_path), "Net_fc.weight")
    assert max(map(len, lines)) <= 80
    assert any("20" in line and "ok" in line for line in lines)


def test_a_tensor_that_was_never_there_is_shown_as_absent(
    tdcore: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = RunWriter(tmp_path)
    for step in (0, 10):
        run.add("x", np.ones(3), step=step)
        run.add("gradient/x", None, step=step, kind="gradient", status="absent", reason="no_backward")
    run.flush()
    lines = show_at(tdcore, monkeypatch, 100, tmp_path)
    assert any("gradient/x" in line and "absent" in line for line in lines)
    lines = show_at(tdcore, monkeypatch, 100, tmp_path, "gradient/x")
    assert sum("absent (no_backward)" in line for line in lines) == 2
    found = tdcore("show", tmp_path, "--json").json["tensors"]
    assert {each["tensor"]: each["status"] for each in found} == {"x": "ok", "gradient/x": "absent"}
