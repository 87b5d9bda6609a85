"""A report in a browser, opened from the disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.view.browser.conftest import HOSTILE
from tests.view.browser.visitor import PAGES, Visitor
from tests.view.view_server import ROOT

pytestmark = pytest.mark.slow

Visit = Callable[[str], Visitor]


def write_report(run: Path, to: Path) -> str:
    """Write the report of a run, and return its address."""
    command = [sys.executable, "-m", "tdcore.cli", "report", str(run), "-o", str(to)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return to.as_uri()


@pytest.mark.parametrize(
    "run", ["faulty", "ranks", "empty", HOSTILE], ids=["faulty", "ranks", "empty", "hostile"]
)
def test_a_report_from_the_disk_shows_all_pages(visit: Visit, folder: Path, tmp_path: Path, run: str) -> None:
    address = write_report(folder / run, tmp_path / "report.html")
    visitor = visit(address)
    visitor.open()
    for page in PAGES:
        visitor.open(page)
        expect(visitor.page.locator("h1, .empty").first).to_be_attached()
        visitor.check()
        if run != HOSTILE:
            visitor.screenshot(f"report-{run}-{page}")
        assert visitor.page.evaluate("typeof hacked") == "undefined", page


def test_the_report_of_the_demo_is_small(folder: Path, tmp_path: Path) -> None:
    write_report(folder / "faulty", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3 << 20
