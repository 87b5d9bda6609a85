"""Tables of what the tests prove: counted by marks, written, compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.hooks.support import matrix
from tests.shown import Cell, Counts, Page

ROOT = Path(__file__).resolve().parents[1]

CONFTEST = """
from pathlib import Path
import pytest
from tests.shown import Page, Tables

def text(old, passed, gpu):
    row = lambda name: f"| {name} | {passed.get((name, 'runs'), 0)} (+{gpu.get((name, 'runs'), 0)}) |"
    return "\\n".join(map(row, ("cat", "dog"))) + "\\n"

PAGE = Page(
    mark="shows", path=Path("page.md"), rows={"cat": "cat", "dog": "dog"}, columns=("runs",), text=text
)

def pytest_addoption(parser):
    parser.addoption("--proofs")

def pytest_configure(config):
    config.pluginmanager.register(Tables(config.getoption("--proofs"), [PAGE]))
"""
TESTS = """
import pytest

@pytest.mark.shows("cat", "runs")
@pytest.mark.parametrize("n", range(2))
def test_two(n): pass

@pytest.mark.shows("dog", "runs")
def test_one_that_skips(): pytest.skip("not here")

@pytest.mark.gpu
@pytest.mark.shows("dog", "runs")
def test_one_for_a_gpu(): pytest.skip("no GPU")
"""


def run(folder: Path, task: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--proofs",
        task,
        "-c",
        os.devnull,
    ]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [*command, "test_some.py"], cwd=folder, env=environment, capture_output=True, text=True
    )


def test_a_table_counts_what_passed_and_tells_apart_what_needs_a_gpu(tmp_path: Path) -> None:
    assert run(tmp_path, "write").returncode == 0
    assert (tmp_path / "page.md").read_text() == "| cat | 2 (+0) |\n| dog | 0 (+1) |\n"


@pytest.mark.parametrize(
    ("cat", "dog", "agrees"),
    [(2, 0, True), (2, 1, True), (2, 2, False), (1, 0, False), (3, 0, False)],
    ids=["as run", "as where the skipped test runs", "too many", "too few", "more than ran"],
)
def test_a_test_skipped_here_may_be_in_the_table_or_not(
    tmp_path: Path, cat: int, dog: int, agrees: bool
) -> None:
    def text(old: str, passed: Mapping[Cell, int], gpu: Mapping[Cell, int]) -> str:
        return f"| cat | {passed.get(('cat', 'runs'), 0)} |\n| dog | {passed.get(('dog', 'runs'), 0)} |\n"

    rows = {"cat": "cat", "dog": "dog"}
    page = Page(mark="shows", path=tmp_path / "page.md", rows=rows, columns=("runs",), text=text)
    page.path.write_text(f"| cat | {cat} |\n| dog | {dog} |\n")
    counts = Counts(passed=Counter({("cat", "runs"): 2}), skipped=Counter({("dog", "runs"): 1}))
    assert page.accepts(counts, complete=True) is agrees


def test_the_check_fails_the_session_and_says_how_to_write_the_table(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("| cat | 3 (+0) |\n| dog | 0 (+1) |\n")
    done = run(tmp_path, "check")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "page.md is out of date. Run these tests with --proofs write" in done.stdout


def test_a_mark_that_names_no_cell_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "check", TESTS.replace('"cat", "runs"', '"cow", "runs"'))
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "names no cell of page.md" in done.stdout + done.stderr


def test_a_table_none_of_whose_tests_ran_is_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "write", "def test_other(): pass\n").returncode == 0
    assert not (tmp_path / "page.md").exists()


def test_a_group_whose_tests_run_elsewhere_keeps_its_lines(tmp_path: Path) -> None:
    groups = {"Cats": ("cat", "lion"), "Dogs": ("dog",)}
    page = matrix("shows", tmp_path / "page.md", groups, ("runs", "jumps"), keep=True)
    page.path.write_text(page.written(Counts(passed=Counter({("dog", "jumps"): 2}))))
    here = Counts(passed=Counter({("cat", "runs"): 3}))
    page.path.write_text(page.written(here))
    lines = page.read().splitlines()
    assert "| cat | 3 |  |" in lines
    assert "| dog |  | 2 |" in lines
    assert page.accepts(here, complete=True)
    assert not page.accepts(Counts(passed=Counter({("cat", "runs"): 4})), complete=True)
