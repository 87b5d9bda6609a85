"""Every page of the view in a browser, on recorded runs: healthy, faulty, four ranks, empty and hostile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.view.browser.conftest import HOSTILE
from tests.view.browser.runs import HOSTILE_NAMES
from tests.view.browser.visitor import PAGES, Visitor
from tests.view.view_server import ViewServer

pytestmark = pytest.mark.slow

Visit = Callable[[str], Visitor]
RUNS = {"faulty": "faulty", "mended": "mended", "ranks": "ranks", "empty": "empty", HOSTILE: "hostile"}
TENSORS = {
    "faulty": "gradient/SigmoidNet_deep.0.weight",
    "mended": "gradient/DigitsNet_conv2.weight",
    "ranks": "gradient/fc1.weight",
    HOSTILE: HOSTILE_NAMES[0],
}


@pytest.fixture(scope="module")
def reader(browser: Browser, server: ViewServer) -> Iterator[Visitor]:
    """A tab that stays open for all tests of this file."""
    visitor = Visitor(browser, server.url)
    visitor.open("runs")
    yield visitor
    visitor.close()


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", RUNS, ids=RUNS.get)
def test_a_page_is_readable_and_loads_nothing_from_elsewhere(reader: Visitor, run: str, page: str) -> None:
    more = {"name": TENSORS[run]} if page == "tensor" and run in TENSORS else {}
    for dark in (False, True):
        reader.dark(dark)
        reader.open(page, run=run, **more)
        expect(reader.page.locator("h1, .empty").first).to_be_attached()
        reader.check()
        reader.screenshot(f"{RUNS[run]}-{page}{'-dark' if dark else ''}")


def test_the_list_of_runs_leads_to_each_run(reader: Visitor) -> None:
    reader.dark(False)
    reader.open("runs")
    reader.check()
    reader.screenshot("runs")
    for run in RUNS:
        reader.open("runs")
        reader.page.get_by_role("link", name=run, exact=True).click()
        reader.settle()
        expect(reader.page.get_by_role("heading", level=1)).to_have_text(run)


def test_hostile_texts_are_shown_as_text_and_run_no_script(reader: Visitor) -> None:
    for page in ("runs", *PAGES):
        reader.open(page, run=HOSTILE)
        reader.check_quiet()
        assert reader.page.evaluate("typeof hacked") == "undefined", page
        assert (
            reader.page.locator("img, script:not([src]), iframe, object, embed, main [onerror]").count() == 0
        ), page
        assert reader.page.locator("a[href^='javascript']").count() == 0, page
    reader.open("overview", run=HOSTILE)
    expect(reader.page.get_by_text("<script>hacked=1</script>").first).to_be_visible()


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_a_tensor_with_a_hostile_name_is_shown(reader: Visitor, name: str) -> None:
    reader.open("tensor", run=HOSTILE, name=name)
    expect(reader.page.get_by_role("heading", level=1)).to_be_visible()
    expect(reader.page.locator(".error")).to_have_count(0)
    width = reader.page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    assert width <= 1, "the page is not wider than the window"
    assert reader.page.evaluate("typeof hacked") == "undefined"
    reader.check_quiet()


def test_a_run_with_a_hostile_id_in_the_address_is_an_error_of_the_page(reader: Visitor) -> None:
    reader.open("overview", run="<img src=x onerror=hacked=1>")
    expect(reader.page.get_by_role("alert").first).to_contain_text("<img src=x")
    reader.problems = [each for each in reader.problems if "404" not in each]  # the browser logs each status
    assert reader.page.evaluate("typeof hacked") == "undefined"
    reader.check_quiet()


def test_the_heat_map_leads_to_a_tensor(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("layers", run="faulty")
    visitor.page.locator(".heat-overlay").hover(position={"x": 700, "y": 200})
    expect(visitor.page.locator("#heat-tip")).to_contain_text("gradient/")
    visitor.screenshot("faulty-layers-tip")
    visitor.page.locator(".heat-overlay").click(position={"x": 700, "y": 200})
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text(re.compile("^gradient/"))
    visitor.check_quiet()


def test_a_chart_zooms_by_wheel_and_keys(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("tensor", run="faulty", name=TENSORS["faulty"])
    everything = visitor.page.get_by_role("button", name="All steps")
    expect(everything).to_have_count(0)
    chart = visitor.chart("L2 norm").first
    chart.focus()
    visitor.page.keyboard.press("+")
    expect(everything).to_be_visible()
    visitor.settle()
    everything.click()
    expect(everything).to_have_count(0)
    visitor.check_quiet()


def test_a_zoomed_chart_of_the_overview_requests_the_visible_steps(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("overview", run="faulty")
    visitor.chart("Losses and metrics").first.focus()
    with visitor.page.expect_response(re.compile("/api/curves.*from=")):
        visitor.page.keyboard.press("+")
    visitor.settle()
    visitor.check_quiet()


def test_thousands_of_tensors_are_in_one_picture_and_on_paper(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("layers", run="large")
    expect(visitor.page.get_by_text("5,000 tensors · each column is one step")).to_be_visible()
    expect(visitor.page.get_by_text("A line of pixels shows")).to_be_visible()
    visitor.check()
    visitor.screenshot("large-layers")
    script = """() => addEventListener('beforeprint', () => {
        window.sheets = [...document.querySelectorAll('.heat-sheet canvas')].map(sheet =>
            new Set(sheet.getContext("2d").getImageData(300, 20, 300, 200).data).size > 2);
    })"""
    visitor.page.evaluate(script)
    visitor.page.pdf()
    assert visitor.page.evaluate("window.sheets") == [True] * 12, "each sheet is drawn"
    expect(visitor.page.locator(".heat-sheet")).to_have_count(0)
    expect(visitor.page.locator(".heat-overlay")).to_be_visible()
    visitor.check_quiet()


def test_the_keyboard_alone_reaches_pages_and_tensors(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("overview", run="faulty")
    visitor.page.keyboard.press("2")
    expect(visitor.page.locator("nav [aria-current=page]")).to_have_text("Layers")
    visitor.page.keyboard.press("/")
    visitor.page.get_by_role("combobox", name="Name").fill("gradient deep.0.w")
    expect(visitor.page.get_by_role("listbox").get_by_role("option").first).to_contain_text(TENSORS["faulty"])
    visitor.check()
    visitor.screenshot("faulty-search")
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.get_by_role("heading", level=1)).to_have_text(TENSORS["faulty"])
    visitor.page.keyboard.press("?")
    expect(visitor.page.get_by_role("dialog")).to_be_visible()
    visitor.check()
    visitor.page.keyboard.press("Escape")
    before = visitor.page.evaluate("document.documentElement.outerHTML.length")
    visitor.page.keyboard.press("t")
    visitor.settle()
    assert before
    visitor.check()


def test_a_wrong_regular_expression_is_an_error_of_its_field(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("layers", run="faulty")
    visitor.page.keyboard.press("f")
    visitor.page.keyboard.type("(")
    expect(visitor.page.locator(".field-error").first).not_to_be_empty()
    visitor.check_quiet()


def test_two_runs_are_compared_from_the_list(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.open("runs")
    visitor.page.get_by_role("checkbox", name="Compare faulty").check()
    visitor.page.get_by_role("checkbox", name="Compare mended").check()
    visitor.page.get_by_role("link", name="Compare 2 runs").click()
    visitor.settle()
    expect(visitor.page.get_by_role("heading", name="Where the runs differ")).to_be_visible()
    visitor.check()
    visitor.screenshot("compare")


def test_a_printed_page_has_its_content(visit: Visit, server: ViewServer, tmp_path: Path) -> None:
    visitor = visit(server.url)
    visitor.open("overview", run="faulty")
    document = visitor.page.pdf()
    assert document.startswith(b"%PDF")
    visitor.page.emulate_media(media="print")
    visitor.settle()
    expect(visitor.page.get_by_role("heading", level=1)).to_be_visible()
    visitor.screenshot("faulty-overview-printed")
    visitor.check_quiet()


def test_a_narrow_window_needs_no_sideways_scrolling(visit: Visit, server: ViewServer) -> None:
    visitor = visit(server.url)
    visitor.page.set_viewport_size({"width": 760, "height": 900})
    for page in PAGES:
        visitor.open(page, run="faulty", **({"name": TENSORS["faulty"]} if page == "tensor" else {}))
        width = visitor.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert width <= 1, page
    visitor.check_quiet()
