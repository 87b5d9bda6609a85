"""Runs a case study of examples/studies in a new folder, as a user does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Study", "blocks", "page_of", "run_study", "without_numbers"]

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


def without_numbers(text: str) -> str:
    """The text with "#" for each number: numbers differ slightly between CPUs."""
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
