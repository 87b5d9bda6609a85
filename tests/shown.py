"""Tables in docs/ of what the tests prove, generated from the marks of passed tests with `--proofs`.

    pytest tests -m supports --proofs write     writes the table of that mark
    pytest tests --proofs check                 fails when a table in docs/ does not match the tests

A test declares the cell that it proves by a mark with a row and a column. It counts if it passed. A skipped
test (this machine has no package or version that it needs) may or may not be counted in the table, so that
the check has the same result on all machines. A test with the mark `gpu` is counted separately. A table
without a test in this session is not changed. The plugin works in the process that reports, also with
pytest-xdist.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

__all__ = ["Cell", "Counts", "Page", "Tables", "add_option", "read_counts", "register"]

Cell = tuple[str, str]  # row and column
_BETWEEN = "\t"


@dataclass(kw_only=True)
class Counts:
    """Numbers of tests by cell.

    skipped: skipped tests. gpu: tests that need a GPU, which no other field counts.
    """

    passed: Counter[Cell] = field(default_factory=Counter)
    skipped: Counter[Cell] = field(default_factory=Counter)
    gpu: Counter[Cell] = field(default_factory=Counter)

    def add(self, report: pytest.TestReport, mark: str) -> bool:
        """Add one report of a test; return whether the test has the mark."""
        cells = [_cell(value) for name, value in report.user_properties if name == mark]
        if "gpu" in report.keywords:
            self.gpu.update(cells if report.when == "setup" else ())
        elif report.skipped:
            self.skipped.update(cells)
        elif report.when == "call" and report.passed:
            self.passed.update(cells)
        return bool(cells)


@dataclass(frozen=True, kw_only=True, eq=False)
class Page:
    """One table.

    rows: row of a mark -> first cell of the table row. text: returns the new page for the old one.
    """

    mark: str
    path: Path
    rows: Mapping[str, str]
    columns: tuple[str, ...]
    text: Callable[[str, Mapping[Cell, int], Mapping[Cell, int]], str]

    def cells_of(self, item: pytest.Item) -> Iterator[Cell]:
        """Return the cells of a test's marks. Raises UsageError for an unknown row or column."""
        for mark in item.iter_markers(self.mark):
            if len(mark.args) != 2 or mark.args[0] not in self.rows or mark.args[1] not in self.columns:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.{self.mark}{mark.args} names no cell of {self.path.name}: "
                    f"a row of {list(self.rows)} and one of {self.columns}"
                )
            yield mark.args

    def read(self) -> str:
        """Return the current page, "" if there is none."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    def written(self, counts: Counts) -> str:
        """Return the page that these tests generate."""
        return self.text(self.read(), counts.passed, counts.gpu)

    def accepts(self, counts: Counts, *, complete: bool) -> bool:
        """Return whether the page matches the tests. complete: no test file was skipped as a whole."""
        old = self.read()
        said = read_counts(old, self.rows, self.columns)
        agreed: dict[Cell, int] = {}
        for cell in ((row, column) for row in self.rows for column in self.columns):
            least = counts.passed[cell]
            most = least + counts.skipped[cell] if complete else sys.maxsize
            agreed[cell] = min(max(said.get(cell, 0), least), most)
        return self.text(old, agreed, counts.gpu) == old


def read_counts(text: str, rows: Mapping[str, str], columns: Iterable[str]) -> dict[Cell, int]:
    """The numbers at the start of the cells of a Markdown table; a cell without one is 0."""
    names = {label: row for row, label in rows.items()}
    found: dict[Cell, int] = {}
    for line in text.splitlines():
        label, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for column, cell in zip(columns, cells, strict=False):
            number = cell.split(" ")[0]
            if label in names:
                found[names[label], column] = int(number) if number.isdecimal() else 0
    return found


class Tables:
    """Counts what the tests of one session prove. task: "check" or "write"."""

    def __init__(self, task: str, pages: Iterable[Page]) -> None:
        self._task = task
        self._pages = {page: Counts() for page in pages}
        self._ran: set[Page] = set()
        self._complete = True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Copy the marks into the reports, which may be made in another process."""
        for item in items:
            for page in self._pages:
                item.user_properties += [(page.mark, _BETWEEN.join(cell)) for cell in page.cells_of(item)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a skipped test file, whose cells are unknown."""
        if report.skipped:
            self._complete = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test that passed in the cells of its marks."""
        self._ran.update(page for page, counts in self._pages.items() if counts.add(report, page.mark))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the tables, or compare them."""
        if hasattr(session.config, "workerinput"):
            return  # a worker of pytest-xdist; the main process has all reports
        for page in self._ran:
            counts = self._pages[page]
            if self._task == "write":
                page.path.write_text(page.written(counts), encoding="utf-8")
            elif not page.accepts(counts, complete=self._complete):
                print(f"\n{page.path} is out of date. Run these tests with --proofs write")
                session.exitstatus = pytest.ExitCode.TESTS_FAILED


def add_option(parser: pytest.Parser) -> None:
    """Adds --proofs. For a plugin or a conftest."""
    parser.addoption("--proofs", choices=("check", "write"), help="the tables of what the tests show")


def register(config: pytest.Config, pages: Iterable[Page]) -> None:
    """Counts for these pages if --proofs was given."""
    task = config.getoption("--proofs")
    if task is not None:
        config.pluginmanager.register(Tables(task, pages))


def _cell(value: object) -> Cell:
    row, column = str(value).split(_BETWEEN)
    return row, column
