"""The two tiers of tests: every entry of the list exists, and every test is in exactly one tier."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.tiers import LIST, ROOT, is_full, slow_functions


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_function_of_the_list_is_there() -> None:
    for line in LIST.read_text(encoding="utf-8").split():
        place, _, function = line.partition("::")
        assert function in functions_of(ROOT / place), f"{line}: remove the line from {LIST}"


@pytest.mark.parametrize(
    ("place", "function", "full"),
    [
        ("loops/test_loops.py", "test_anything", True),
        (
            "rules/test_state_kills.py",
            "test_a_runner_killed_at_any_moment_says_what_an_uninterrupted_one_says",
            True,
        ),
        ("test_tiers.py", "test_every_function_of_the_list_is_there", False),
    ],
)
def test_a_function_is_full_by_its_folder_or_by_the_list(place: str, function: str, full: bool) -> None:
    assert is_full(ROOT / place, function) is full


def test_slow_functions_are_read_from_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_tiers" name="test_a[1]" time="1.5"/>'
        '<testcase classname="tests.test_tiers" name="test_b" time="0.5"/>'
        '<testcase classname="tests.loops.test_loops" name="test_c" time="9"/></testsuite></testsuites>'
    )
    assert slow_functions(report) == ["test_tiers.py::test_a"]
