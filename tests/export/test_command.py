"""The command tdcore export: output, exit codes, and errors that name the next step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.runs import write_run

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run") / "demo", hostile=False)


def tdcore(*arguments: object, cwd: Path = ROOT, hide: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command. hide: a package that counts as not installed."""
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        f"u.find_spec = lambda name, package=None: None if name == {hide!r} else real(name, package)\n"
        f"sys.path.insert(0, {str(ROOT)!r}); from tdcore.cli.app import main; main()"
    )
    command = [sys.executable, "-c", code, "export", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_output_is_in_the_working_directory_by_default(run: Path, tmp_path: Path) -> None:
    done = tdcore(run, "--to", "csv", "--attempt", 0, "--kind", "loss", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "demo.csv: 8 values of 8 rows, 2 parts, 1 texts.\n")
    assert sorted(path.name for path in (tmp_path / "demo.csv").glob("[a-z]*")) == [
        "parameters.csv",
        "statistics.csv",
        "texts.csv",
    ]


def test_json_has_the_counts(run: Path, tmp_path: Path) -> None:
    done = tdcore(run, "--to", "parquet", "-o", tmp_path / "out", "--json")
    document = json.loads(done.stdout)
    assert (document["parts"], document["without_statistics"], document["status"]) == (4, 16, "ended")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--to", "paper"], 2, "'paper' is not a target of an export; use tensorboard, wandb"),
        (["--to", "csv", "--statistics", "median"], 2, "'median' is not a statistic"),
        (["--to", "csv", "--attempt", "9"], 3, "9 is not an attempt of this run"),
        (["--to", "csv", "--follow"], 2, "--follow needs --to tensorboard"),
        (["--to", "tensorboard", "--follow", "--force"], 2, "or leave out --force"),
        (["--to", "csv", "--out", "/proc/here"], 2, "cannot be written"),
    ],
)
def test_wrong_usage_is_explained(
    run: Path, tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    done = tdcore(run, *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(run: Path, tmp_path: Path) -> None:
    for follow in ([], ["--follow"]):
        done = tdcore(run, "--to", "tensorboard", *follow, cwd=tmp_path, hide="tensorboard")
        assert done.returncode == 2
        assert "pip install 'tdcore-capture[tensorboard]'" in done.stderr
        assert list(tmp_path.iterdir()) == []
