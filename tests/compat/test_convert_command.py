"""tdcore convert, and recordings in a bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tdcore as td
from tdcore.cli import main
from tdcore.compat import convert, open_smdebug
from tdcore.sinks import open_sink
from tests.compat.recordings import expected, folder, split
from tests.s3.fixtures import Place
from tests.s3.servers import Server


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run `tdcore` in this process; return its exit code."""
    monkeypatch.setattr("sys.argv", ["tdcore", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


def upload(kind: str, url: str) -> None:
    sink = open_sink(url)
    for path in sorted(folder(kind).rglob("*")):
        if path.is_file():
            sink.put(path.relative_to(folder(kind)).as_posix(), [path.read_bytes()])
    sink.close()


def test_the_command_writes_a_run_and_prints_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "convert", folder("xgboost"), tmp_path / "new", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "run": str(tmp_path / "new"), "workers": 1, "steps": 3, "rows": 87, "bytes": printed["bytes"],
    }  # fmt: skip
    assert td.create_trial(tmp_path / "new").steps() == [0, 2, 4]


def test_the_command_exits_with_2_for_a_used_place_and_3_without_a_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert command(monkeypatch, "convert", folder("keras"), tmp_path / "used") == 2
    assert "contains files" in capsys.readouterr().err
    assert command(monkeypatch, "convert", tmp_path / "missing", tmp_path / "new") == 3
    assert "is not a recording of smdebug" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [["show"], ["ls"], ["rules", "run"], ["report", "--format", "md"]])
def test_commands_read_a_recording(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = command(monkeypatch, *words, folder("pytorch"))
    assert code == (1 if words == ["rules", "run"] else 0)
    assert "extra/f16" in capsys.readouterr().out


def test_a_recording_in_a_bucket_is_read_listed_and_converted(
    moto: Server, s3_prefix: str, tmp_path: Path
) -> None:
    from tdcore.trial.run_search import runs_below

    s3_place = Place(server=moto, prefix=s3_prefix)
    upload("pytorch", s3_place.url("runs/old"))
    before = s3_place.objects()
    url = s3_place.url("runs/old")
    assert runs_below(s3_place.url("runs")) == [url]
    for trial in (open_smdebug(url), td.create_trial(url)):
        assert trial.steps() == [0, 2, 3, 5, 7]
        for key, value in list(expected("pytorch").values.items())[::7]:
            name, step, worker = split(key)
            assert trial.tensor(name).value(step, worker=worker).tobytes() == value.tobytes()
    convert(url, s3_place.url("new"))
    convert(s3_place.url("runs/old"), tmp_path / "local")
    assert td.create_trial(s3_place.url("new")).stats().equals(td.create_trial(tmp_path / "local").stats())
    assert {key: value for key, value in s3_place.objects().items() if key in before} == before
