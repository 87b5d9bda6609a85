"""The environments of the benchmarks' peers: exact versions, created once, and never silently missing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_peers.py"


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with its own checkout that has one peer, "wandb", without requirements."""
    spec = importlib.util.spec_from_file_location("make_peers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "peer-wandb.txt").write_text("# nothing\n")
    return module


@pytest.mark.parametrize(
    ("name", "main"),
    [
        ("profilers", "py-spy==0.4.3"),
        ("smdebug", "torch==2.13.0"),
        ("smdebug-keras", "tensorflow-cpu==2.12.1"),
        ("smdebug-xgboost", "xgboost==1.7.6"),
        ("tensorboard", "torch==2.13.0"),
        ("wandb", "torch==2.13.0"),
    ],
)
def test_every_requirement_of_a_peer_is_pinned(name: str, main: str) -> None:
    lines = (ROOT / "requirements" / f"peer-{name}.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in wanted)
    assert main in wanted


def test_versions_compare_without_spelling_and_build(peers: ModuleType) -> None:
    assert peers.pins("PyYAML==6.0 # why\ntyping_extensions==4.1\n# x==1\ntorch==2.13.0+cpu\n") == {
        "pyyaml": "6.0",
        "typing-extensions": "4.1",
        "torch": "2.13.0",
    }


def test_the_python_that_is_found_runs(peers: ModuleType) -> None:
    done = subprocess.run([peers.find_python(), "-c", "print(1)"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_peer_is_made_once(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(peers, "holds", lambda python, wanted: False)

    def install(name: str, wanted: dict[str, str]) -> str:
        made.append(name)
        return fake(peers, name)

    monkeypatch.setattr(peers, "_install", install)
    assert [peers.make("wandb"), peers.make("wandb")] == ["", ""]
    assert made == ["wandb"]
    assert peers.ready("wandb")


def test_other_requirements_make_it_anew(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "holds", lambda python, wanted: False)
    monkeypatch.setattr(peers, "_install", lambda name, wanted: fake(peers, name))
    peers.make("wandb")
    (peers.ROOT / "requirements" / "peer-wandb.txt").write_text("six==1.17.0\n")
    assert not peers.ready("wandb")


def test_a_peer_that_cannot_be_installed_is_reported_and_leaves_pips_last_words(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "holds", lambda python, wanted: False)
    monkeypatch.setattr(peers, "find_python", lambda: str(peers.ROOT / "no-python"))
    monkeypatch.setattr(sys, "argv", ["make_peers.py", "wandb"])
    assert peers.main() == 1
    assert "wandb" in capsys.readouterr().out
    assert "no-python" in (peers.ROOT / ".venvs" / "wandb.failed.txt").read_text()


def test_an_unknown_peer_is_an_error_that_names_the_known_ones(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_peers.py", "mlflow"])
    with pytest.raises(SystemExit):
        peers.main()
    assert "smdebug, smdebug-keras, smdebug-xgboost, tensorboard, wandb" in capsys.readouterr().err


def fake(peers: ModuleType, name: str) -> str:
    """A directory that only looks like an environment."""
    python: Path = peers.python_of(name)
    python.parent.mkdir(parents=True, exist_ok=True)
    python.touch()
    return ""
