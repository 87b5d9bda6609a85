"""Runs a case study of examples/studies in a new folder, as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Study", "blocks", "not_printed", "page_of", "run_study"]

ROOT = Path(__file__).resolve().parents[2]


class Study(NamedTuple):
    """A study that has run: the lines that it printed, and the folder with its runs and pictures."""

    lines: list[str]
    folder: Path

    def numbers(self, beginning: str) -> list[float]:
        """The numbers in the one printed line that begins with a text, from left to right."""
        (line,) = [each.strip() for each in self.lines if each.strip().startswith(beginning)]
        return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", line[len(beginning) :])]


def run_study(name: str, folder: Path) -> Study:
    """Run the script of a study with a folder as its argument. Warnings are errors.

    Raises:
        AssertionError: The script failed; the text is its standard error output.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / "studies" / f"{name}.py", folder / "out"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Study(done.stdout.splitlines(), folder / "out")


def page_of(name: str) -> str:
    """The text of the study's page."""
    return (ROOT / "docs" / "studies" / f"{name.replace('_', '-')}.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def not_printed(study: Study, page: str) -> list[str]:
    """Lines of output on a page that the script did not print, apart from numbers and line breaks."""
    output = [each for each in blocks(page, "text") if not each.startswith("tdcore ")]  # no commands
    shown = [line for line in "".join(output).splitlines() if line.strip() != "..."]
    printed = _without_numbers(" ".join(study.lines))
    return [line for line in shown if _without_numbers(line) not in printed]


def _without_numbers(text: str) -> str:
    """The text with "#" for each number, which differs slightly between CPUs, and single spaces."""
    return " ".join(re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text).split())
