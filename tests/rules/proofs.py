"""The table of what is shown of each rule, docs/rules/proofs.md, made by the tests that show it.

    pytest tests/rules --proofs check     fails when the table in docs/ is not what these tests make it
    pytest tests/rules --proofs write     writes it

A test says what it shows by `@pytest.mark.proves("TDC101", "fires")`. tests/conftest.py takes this in as a
plugin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["SHOWN", "TABLE", "Proofs", "table"]

SHOWN = ("fires", "quiet", "not evaluable", "boundary")
TABLE = Path(__file__).resolve().parents[2] / "docs" / "rules" / "proofs.md"
_PROPERTY = "proves"


class Proofs:
    """Counts what the tests of one session have shown. config: "check" or "write"."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._passed = Counter[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Puts the mark where the report of a test has it, in whichever process it runs."""
        mark_items(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that passed has shown what it is marked with."""
        if report.when == "call" and report.passed:
            self._passed.update(str(value) for name, value in report.user_properties if name == _PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the table, or compares it."""
        text = table(self._passed)
        if self._task == "write":
            TABLE.write_text(text, encoding="utf-8")
        elif not TABLE.exists() or TABLE.read_text(encoding="utf-8") != text:
            print(f"\n{TABLE} is not what the tests show: pytest tests/rules --proofs write")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def mark_items(items: list[pytest.Item]) -> None:
    """Adds what each test proves to its report, as "code/what"."""
    for item in items:
        for mark in item.iter_markers("proves"):
            code, what = mark.args
            assert what in SHOWN, f"{item.nodeid} proves {what!r}, expected one of {SHOWN}"
            item.user_properties.append((_PROPERTY, f"{code}/{what}"))


_HEAD = """<!-- Made by the tests: pytest tests/rules --proofs write -->
# What is shown of each rule

How many tests show it; all of them passed when this table was made. *Fires* and *quiet*: on a real training
with the fault planted, and on the same one without it. *Not evaluable*: on a run that lacks what the rule
needs. *Boundary*: at, below and above its thresholds.
"""


def table(passed: Mapping[str, int]) -> str:
    """The page. passed: "code/what" -> tests that passed."""
    from tdcore.rules import RULES

    lines = [_HEAD, f"| rule | {' | '.join(SHOWN)} |", f"|---|{'---|' * len(SHOWN)}"]
    for code, rule in RULES.items():
        counts = " | ".join(str(passed.get(f"{code}/{what}", 0)) for what in SHOWN)
        lines.append(f"| [{code}]({code}.md) {rule.__name__} | {counts} |")
    return "\n".join(lines) + "\n"
