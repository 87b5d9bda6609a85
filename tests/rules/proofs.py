"""The table of proven behaviour of each rule, docs/rules/proofs.md, which is generated from the tests.

    pytest tests -m proves --proofs write     writes the table
    pytest tests/rules --proofs check         fails when the table in docs/ does not match the tests

A test declares the cell that it proves with `@pytest.mark.proves("TDC101", "fires")`. tests/conftest.py loads
this module as a plugin; tests/shown.py counts the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tdcore.rules import RULES
from tdcore.rules.cases import CASES
from tests.shown import Cell, Page

__all__ = ["PROOFS", "SHOWN", "TABLE", "shown_of"]

SHOWN = ("fires", "quiet", "not evaluable", "boundary", "summary")
TABLE = Path(__file__).resolve().parents[2] / "docs" / "rules" / "proofs.md"

_HEAD = """<!-- Made by the tests: pytest tests -m proves --proofs write -->
# Tests of each rule

The table has the number of tests of each kind. All of them passed when the table was written.

- *Fires* and *quiet*: a real training with a planted fault, and the same training without the fault.
  For rules from TDC201 on, except MemoryGrowth: made-up samples and times of steps in the files of a run.
- *Not evaluable*: a run that lacks the data for the rule.
- *Boundary*: values at, below and above the thresholds.
- *Summary*: the tables in the verdict of a summary, compared with NumPy.

A dash is a kind that does not exist for the rule. OverallSystemUsage and OverallFrameworkMetrics are
summaries, which have no threshold and never fire. The boundaries of ProfilerReport are those of its rules.
"""


def _text(old: str, passed: Mapping[Cell, int], gpu: Mapping[Cell, int]) -> str:
    lines = [_HEAD, f"| rule | {' | '.join(SHOWN)} |", f"|---|{'---|' * len(SHOWN)}"]
    for code, label in PROOFS.rows.items():
        kinds = zip(SHOWN, shown_of(code), strict=True)
        counts = " | ".join(str(passed.get((code, what), 0)) if exists else "-" for what, exists in kinds)
        lines.append(f"| {label} | {counts} |")
    return "\n".join(lines) + "\n"


def shown_of(code: str) -> list[bool]:
    """Whether each kind of SHOWN exists for a rule."""
    without = {True: {"summary"}, False: {"fires", "boundary"}}[code in CASES]
    without = {"boundary"} if code == "TDC212" else without
    return [what not in without for what in SHOWN]


PROOFS = Page(
    mark="proves",
    path=TABLE,
    rows={code: f"[{code}]({code}.md) {rule.__name__}" for code, rule in RULES.items()},
    columns=SHOWN,
    text=_text,
)
