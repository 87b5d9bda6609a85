"""Tables of what the tests show, in docs/, made by the tests: counted by their marks, under `--proofs`.

    pytest tests -m supports --proofs write     writes the table of that mark
    pytest tests --proofs check                 fails when a table in docs/ is not what these tests make it

A test says what it shows by a mark with a row and a column. It counts when it passed. One that was skipped
(a package or a version that this machine lacks) may be in the table or not, so that the check says the same
everywhere; one with the mark `gpu` is listed separately, as a test that must be run elsewhere. A table none
of whose tests ran is left alone. Runs in the process that reports, with pytest-xdist too.
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
    """Tests by cell. skipped: not run here. gpu: that need a GPU, run or not; in none of the others."""

    passed: Counter[Cell] = field(default_factory=Counter)
    skipped: Counter[Cell] = field(default_factory=Counter)
    gpu: Counter[Cell] = field(default_factory=Counter)

    def add(self, report: pytest.TestReport, mark: str) -> bool:
        """Takes in one report of a test. Whether it was one with the mark."""
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
    """One table. rows: what a mark may name -> its first cell. text: the new page, from the old one."""

    mark: str
    path: Path
    rows: Mapping[str, str]
    columns: tuple[str, ...]
    text: Callable[[str, Mapping[Cell, int], Mapping[Cell, int]], str]

    def cells_of(self, item: pytest.Item) -> Iterator[Cell]:
        """What a test is marked with. Raises UsageError for a row or column that there is not."""
        for mark in item.iter_markers(self.mark):
            if len(mark.args) != 2 or mark.args[0] not in self.rows or mark.args[1] not in self.columns:
                raise pytest.UsageError(
                    f"{item.nodeid}: @pytest.mark.{self.mark}{mark.args} names no cell of {self.path.name}: "
                    f"a row of {list(self.rows)} and one of {self.columns}"
                )
            yield mark.args

    def read(self) -> str:
        """The page as it is, "" where there is none."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    def written(self, counts: Counts) -> str:
        """The page that these tests make."""
        return self.text(self.read(), counts.passed, counts.gpu)

    def accepts(self, counts: Counts, *, complete: bool) -> bool:
        """Whether the page says what the tests show. complete: no file of tests was skipped as a whole."""
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
    """Counts what the tests of one session have shown. task: "check" or "write"."""

    def __init__(self, task: str, pages: Iterable[Page]) -> None:
        self._task = task
        self._pages = {page: Counts() for page in pages}
        self._ran: set[Page] = set()
        self._complete = True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Puts the marks where the report of a test has them, in whichever process it runs."""
        for item in items:
            for page in self._pages:
                item.user_properties += [(page.mark, _BETWEEN.join(cell)) for cell in page.cells_of(item)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A whole file that is skipped leaves open what it would have shown."""
        if report.skipped:
            self._complete = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that passed has shown what it is marked with."""
        self._ran.update(page for page, counts in self._pages.items() if counts.add(report, page.mark))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the tables, or compares them."""
        if hasattr(session.config, "workerinput"):
            return  # a worker of pytest-xdist; the process that started it has all reports
        for page in self._ran:
            counts = self._pages[page]
            if self._task == "write":
                page.path.write_text(page.written(counts), encoding="utf-8")
            elif not page.accepts(counts, complete=self._complete):
                print(f"\n{page.path} is not what the tests show. Run these tests with --proofs write")
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
