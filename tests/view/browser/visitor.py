"""Visitor: a tab of a browser that records errors of the page and requests to other machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect

from tests.waiting import wait_until

__all__ = ["PAGES", "Visitor"]

PAGES = ("overview", "layers", "tensor", "ranks", "time", "compare", "predictions", "rules")
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
_LAPTOP = {"width": 1366, "height": 768}
_PATIENCE_MS = 60_000.0
_STREAM = "/api/events"  # this request never ends

expect.set_options(timeout=_PATIENCE_MS)


class Visitor:
    """One tab.

    Args:
        browser: The browser.
        url: Address of the page; a file or a server.

    Attributes:
        page: The tab.
        problems: Errors that the page has caused.
        foreign: Addresses of requests to other places than `url`.
    """

    def __init__(self, browser: Browser, url: str) -> None:
        self.url = url
        self.problems: list[str] = []
        self.foreign: list[str] = []
        self._pending: set[Request] = set()
        self._context = browser.new_context(viewport=_LAPTOP)  # type: ignore[arg-type]
        self._context.set_default_timeout(_PATIENCE_MS)
        self.page: Page = self._context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("popup", lambda page: self.problems.append(f"popup: {page.url}"))
        self.page.on("request", self._request)
        self.page.on("requestfinished", lambda request: self._pending.discard(request))
        self.page.on("requestfailed", lambda request: self._pending.discard(request))

    def open(self, page: str = "", **parameters: str) -> None:
        """Open a page of the view from its address, as from a bookmark."""
        query = f"?{urlencode(parameters)}" if parameters else ""
        address = f"{self.url}#/{page}{query}" if page else self.url
        if self.page.url.partition("#")[0] == self.url and page:
            self.page.evaluate("address => { location.hash = address }", address.partition("#")[2])
        else:
            self.page.goto(address)
        self.settle()

    def settle(self) -> None:
        """Wait until the page shows the answers of all its requests."""
        expect(self.page.locator("#main, .fatal")).to_be_visible()
        quiet = 0
        while quiet < 3:
            self.page.wait_for_timeout(40)
            quiet = 0 if self._pending else quiet + 1

    def check(self) -> None:
        """Fail after an error of the page or a request to another machine, or if axe-core has a complaint."""
        results = Axe().run(self.page)
        violations = [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in results.response["violations"]
        ]
        assert not violations, violations
        self.check_quiet()

    def check_quiet(self) -> None:
        """Fail after an error of the page or a request to another machine."""
        problems, self.problems = self.problems, []
        foreign, self.foreign = self.foreign, []
        assert not problems, problems
        assert not foreign, foreign

    def screenshot(self, name: str) -> None:
        """Keep a picture of the whole page in build/screenshots."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def dark(self, on: bool) -> None:
        """Change the colours that the system prefers."""
        self.page.emulate_media(color_scheme="dark" if on else "light")

    def chart(self, text: str) -> Locator:
        """The line chart whose text alternative contains a pattern."""
        return self.page.get_by_role("img", name=re.compile(text))

    def wait_until(self, true: Any, what: str) -> None:
        """Wait for an event while the browser works."""

        def now() -> object:
            self.page.wait_for_timeout(20)
            return true()

        wait_until(now, what)

    def close(self) -> None:
        self._context.close()

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text} ({message.location.get('url', '')[:200]})")

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Request) -> None:
        if _STREAM not in request.url:
            self._pending.add(request)
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.foreign.append(request.url[:300])
