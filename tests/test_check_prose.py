"""scripts/check_prose.py finds violations of the prose rule, but none in code, tables or generated pages."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "check_prose.py"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("check_prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_prose = load()


def found(text: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.text) for problem in check_prose.check_page("page.md", text)]


def test_a_long_line_of_prose_is_found() -> None:
    assert found("# Page\n\n" + "word " * 25) == [(3, "125 characters, at most 120")]


@pytest.mark.parametrize(
    "text",
    ["| " + "word " * 30 + "|", "```text\n" + "word " * 30 + "beside\n```", "`beside` and <!-- of which -->"],
    ids=["table", "code", "inline code and comments"],
)
def test_tables_and_code_may_be_long_and_hold_any_word(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize(
    "phrase",
    [
        "The copy runs beside the training.",
        "The files lie in a folder.",
        "What it does is simple.",
        "The flusher tells the hook.",
        "Three rules, two of\nwhich fire.",
        "The collections that were asked for.",
        "A folder that is no run.",
    ],
)
def test_a_banned_phrase_is_found(phrase: str) -> None:
    assert len(found(f"A sentence.\n\n{phrase}\n")) == 1


def test_the_line_of_a_phrase_is_that_of_its_file() -> None:
    (problem,) = found("```\ncode\n```\n\nThis is in order.\nThat stands in a folder.\n")
    assert problem == (6, '"stands in": write "is in", "is stored in"')


def test_the_summary_of_a_docstring_is_checked() -> None:
    source = (
        f'"""{"word " * 30}."""\n\ndef f():\n    """\n    Late."""\n\ndef g():\n    """What it owes."""\n'
    )
    problems = [(problem.line, problem.text[:20]) for problem in check_prose.check_docstrings("a.py", source)]
    assert [line for line, _ in problems] == [1, 4, 8]


def test_all_lines_of_a_docstring_are_checked_but_the_heading_of_a_rule() -> None:
    source = '"""A rule.\n\nWhat it does:\n    Nothing.\n\nIt stands in a file.\n"""\n'
    assert [problem.line for problem in check_prose.check_docstrings("a.py", source)] == [6]


def test_comments_of_python_are_checked_and_strings_are_not() -> None:
    source = 'a = "# for nobody"\nb = 1  # for nobody\n# Two lines, of\n# which one breaks.\n'
    assert sorted(problem.line for problem in check_prose.check_comments("a.py", source)) == [2, 3]


def test_messages_are_checked_and_short_strings_and_docstrings_are_not() -> None:
    source = (
        '"""The file is no run."""\n\n'
        'raise ValueError(\n    f"{a} is no run; there is no {b} and "\n    f"no c"\n)\n'
        'say("nobody answers")\nsay("nobody has answered, nobody")\n'
    )
    found = [(problem.line, problem.text[:12]) for problem in check_prose.check_messages("a.py", source)]
    assert found == [(4, '"is no run":'), (8, '"nobody": wr'), (8, '"nobody": wr')]


def test_comments_of_cpp_are_checked_and_strings_are_not() -> None:
    source = 'auto a = "// nobody";  // nobody\n/* Two lines, of\n * which one breaks. */\n'
    assert sorted(problem.line for problem in check_prose.check_cpp_comments("a.cpp", source)) == [1, 2]


def test_every_file_of_the_repository_passes() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_every_generated_page_exists_and_names_its_program() -> None:
    for name in check_prose.GENERATED.read_text().split():
        assert "Made by" in (ROOT / name).read_text() or "Written by" in (ROOT / name).read_text(), name
