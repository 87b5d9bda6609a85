"""Speed of `tdcore view` in the Chromium of the distribution: opening a run, first paint, heat map, panning.

Two runs: 1,000,000 rows (200 tensors, 5,000 steps), and 5,000,000 rows (500 tensors, 10,000 steps), with
statistics of all tensors. Each round starts a server and a browser with an empty cache. A page is opened from
its address as soon as the server prints it. The server then loads its modules, opens the run and makes the
answer of the overview:

- server start: from the start of the command until it prints the address;
- first paint: the browser's time of its first contentful paint, from the start of the navigation;
- shown: until the page has drawn the answer of its request, from the start of the navigation;
- from start: the same, from the start of the command;
- server CPU: CPU seconds of the server from its start until then, which a busy machine changes less;
- answer: time of the first request, until the browser has its body; and the size of the body;
- again: the same request, when the run is open;
- frames: the times between 120 frames while the wheel moves the zoomed chart along the steps. The page
  requests the visible steps again, more finely, as it does for a user.

All files are in the page cache. Times are medians over rounds. The browser draws without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.environment import ROOT, add_out, save
from benchmarks.read import make_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.view.view_server import ViewServer

SIZES = {"1,000,000 rows": (200, 5_000), "500 x 10,000": (500, 10_000)}
PAGES = {"overview": "main canvas", "layers": "main canvas", "tensor": "main canvas"}
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
_MOVES = 120
_PATIENCE_MS = 300_000

_AGAIN = """
async name => {
  const urls = performance.getEntriesByType("resource").map(each => each.name);
  const begun = performance.now();
  await (await fetch(urls.find(url => url.includes(`/api/${name}`)), {cache: "no-store"})).text();
  return (performance.now() - begun) / 1e3;
}
"""
_FRAMES = """
moves => new Promise(done => {
  const times = [];
  const frame = now => {
    times.push(now);
    if (times.length > moves) done(times.slice(1).map((time, at) => time - times[at]));
    else requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})
"""


def measure_page(
    browser: Browser, server: ViewServer, page: str, hash_: str, started: float
) -> dict[str, Any]:
    """Open one page with an empty cache.

    Args:
        browser: The browser.
        server: A server that has printed its address.
        page: Name of the page.
        hash_: The part of the address after "#".
        started: Time at which the server was started.
    """
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    with contextlib.closing(context):
        context.set_default_timeout(_PATIENCE_MS)
        tab = context.new_page()
        answers: dict[str, Any] = {}

        def finished(request: Any) -> None:
            name = request.url.partition("/api/")[2].partition("?")[0]
            if name == page and name not in answers:
                answers[name] = (request.timing["responseEnd"] / 1e3, len(request.response().body()))

        tab.on("requestfinished", finished)
        process = psutil.Process(server.process.pid)
        begun = time.perf_counter()
        tab.goto(f"{server.url}#{hash_}")
        tab.locator(PAGES[page]).first.wait_for()
        while page not in answers:
            tab.wait_for_timeout(5)
        tab.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shown, used = time.perf_counter(), sum(process.cpu_times()[:2])
        paint = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1e3")
        seconds, size = answers[page]
        again = tab.evaluate(_AGAIN, page)
        return {
            "server start": begun - started,
            "first paint": paint,
            "shown": shown - begun,
            "from start": shown - started,
            "server CPU": used,
            "answer": seconds,
            "answer bytes": size,
            "again": again,
            **pan(tab),
        }


def pan(tab: Page) -> dict[str, float]:
    """Zoom in, then move along the steps by the wheel, and measure the times between frames."""
    box = tab.locator("main canvas").first.bounding_box()
    assert box is not None
    middle, height = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.mouse.move(middle, height)
    tab.keyboard.down("Control")
    for _ in range(6):
        tab.mouse.wheel(0, -240)
    tab.keyboard.up("Control")
    tab.wait_for_timeout(500)
    tab.evaluate(f"() => {{ window.frames_done = ({_FRAMES})({_MOVES}) }}")
    tab.keyboard.down("Shift")
    for move in range(_MOVES):
        tab.mouse.wheel(0, 30 if move % 60 < 30 else -30)
    tab.keyboard.up("Shift")
    frames = sorted(tab.evaluate("window.frames_done"))
    return {
        "frame ms, median": statistics.median(frames),
        "frame ms, 95 %": frames[int(0.95 * (len(frames) - 1))],
        "frame ms, longest": frames[-1],
    }


def measure(folder: Path) -> dict[str, Any]:
    """One round: each page, each with a new server and a new browser."""
    from playwright.sync_api import sync_playwright

    from tests.view.view_server import view_server

    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit("there is no chromium; install it with: apt-get install chromium")
    results: dict[str, Any] = {}
    for page in PAGES:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=program, args=list(_FLAGS))
            started = time.perf_counter()
            with view_server(folder, "--no-rules") as server:
                more = "&name=tensor_7" if page == "tensor" else ""
                hash_ = f"/{page}?run={folder.name}{more}"
                results[page] = measure_page(browser, server, page, hash_, started)
            browser.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=list(SIZES), help="one of the two runs")
    parser.add_argument(
        "--keep", type=Path, help="folder of the runs; existing runs are used, new runs are kept"
    )
    add_out(parser)
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    result: dict[str, Any] = {"method": __doc__}
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        for size in [options.only] if options.only else SIZES:
            tensors, steps = SIZES[size]
            folder = (options.keep or Path(name)) / f"run-{tensors}x{steps}"
            if not (folder / "run.json").exists():
                make_run(folder, steps, tensors=tensors)
            rounds = [measure(folder) for _ in range(options.repeats)]
            result[size] = {"median": _medians(rounds), "rounds": rounds}
    report(result)
    print("saved", save("view", result, options.out))


def _medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    first = rounds[0]
    return {
        key: _medians([each[key] for each in rounds])
        if isinstance(value, dict)
        else statistics.median(each[key] for each in rounds)
        for key, value in first.items()
    }


def report(result: dict[str, Any]) -> None:
    """Print the medians."""
    from rich.console import Console
    from rich.table import Table

    for size in SIZES:
        if size not in result:
            continue
        medians = result[size]["median"]
        table = Table("what", *PAGES, title=f"{size}: seconds, if no unit is given (medians)")
        for what in medians["overview"]:
            cells = (medians[page][what] for page in PAGES)
            table.add_row(what, *(f"{cell:,.0f}" if "bytes" in what else f"{cell:.3f}" for cell in cells))
        Console().print(table)


if __name__ == "__main__":
    main()
