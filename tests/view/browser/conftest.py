"""Fixtures: the browser, and the runs that the pages show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.view.browser.runs import write_empty, write_hostile, write_large, write_ranks
from tests.view.view_server import ROOT, ViewServer, view_server

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """The Chromium of the distribution. With TDCORE_BROWSER=required, as in CI, the tests are not skipped."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        text = "there is no chromium; install it with: apt-get install chromium"
        if os.environ.get("TDCORE_BROWSER") == "required":
            pytest.fail(text)
        pytest.skip(text)
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: `faulty` and `mended` of the demo, `ranks` (4 workers), `empty`, `large`, and a hostile one."""
    folder = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "tdcore.cli", "demo", "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    write_ranks(folder / "ranks")
    write_empty(folder / "empty")
    write_large(folder / "large")
    write_hostile(folder / HOSTILE)
    return folder


HOSTILE = '"><img src=x onerror=hacked=1>'


@pytest.fixture(scope="package")
def server(folder: Path) -> Iterator[ViewServer]:
    """A view of the folder."""
    with view_server(folder) as running:
        yield running


@pytest.fixture
def visit(browser: object) -> Iterator[Callable[[str], object]]:
    """Open a tab at an address. Each tab must be free of errors at the end."""
    from tests.view.browser.visitor import Visitor

    visitors: list[Visitor] = []

    def open_tab(url: str) -> Visitor:
        visitors.append(Visitor(browser, url))  # type: ignore[arg-type]
        return visitors[-1]

    yield open_tab
    for visitor in visitors:
        visitor.close()
