"""The view of a training that runs: new points without a reload, its buttons, and a server that goes away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

import tdcore as td
from tdcore.hooks.pytorch import Hook
from tests.view.browser.visitor import PAGES, Visitor
from tests.view.view_server import view_server

pytestmark = pytest.mark.slow

Visit = Callable[[str], Visitor]


class Training:
    """A training that makes steps when a test says so."""

    def __init__(self, place: Path) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        self.loss = torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hook = Hook(
            place,
            save_config=td.SaveConfig(save_interval=1),
            include_collections=["weights", "gradients", "losses"],
        )
        self.hook.register_module(self.model)
        self.hook.register_loss(self.loss)

    def step(self, count: int = 1, size: float = 1.0) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.loss(self.model(size * torch.randn(16, 8)), torch.randint(0, 2, (16,))).backward()
            self.optimizer.step()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    made = Training(tmp_path / "run")
    yield made
    made.hook.close()


def last_step(number: int) -> re.Pattern[str]:
    return re.compile(rf"at step {number}\b")


def test_new_points_and_findings_appear_without_a_reload(
    visit: Visit, training: Training, tmp_path: Path
) -> None:
    training.step(5)
    with view_server(tmp_path / "run") as server:
        visitor = visit(server.url)
        visitor.open()
        chart = visitor.chart("Losses and metrics").first
        expect(chart).to_have_accessible_name(last_step(4))
        visitor.page.evaluate("window.same = true")
        training.step(3)
        expect(chart).to_have_accessible_name(last_step(7))
        training.step(size=float("inf"))
        training.step()
        expect(visitor.page.locator(".finding").first).to_be_visible()
        visitor.check()
        visitor.screenshot("live-overview")
        training.hook.close()
        expect(visitor.page.locator("header.top .badge")).to_have_text(re.compile("ended"))
        assert visitor.page.evaluate("window.same") is True
        visitor.check_quiet()


def test_each_page_follows_a_live_run(visit: Visit, training: Training, tmp_path: Path) -> None:
    training.step(2)
    with view_server(tmp_path / "run") as server:
        visitor = visit(server.url)
        for page in PAGES:
            visitor.open(page, **({"name": "gradient/Sequential_0.weight"} if page == "tensor" else {}))
            with visitor.page.expect_response(re.compile("/api/runs")):
                training.step()
            visitor.settle()
            visitor.check_quiet()


def test_the_buttons_ask_first_and_then_reach_the_training(
    visit: Visit, training: Training, tmp_path: Path
) -> None:
    training.step(2)
    with view_server(tmp_path / "run", "--no-rules") as server:
        visitor = visit(server.url)
        visitor.open()
        visitor.page.get_by_role("button", name="Capture more").click()
        dialog = visitor.page.get_by_role("dialog")
        expect(dialog).to_contain_text("4 tensors")
        visitor.check()
        visitor.screenshot("live-capture")
        dialog.get_by_label("Number of steps").fill("3")
        dialog.get_by_role("button", name="Capture", exact=True).click()
        expect(dialog).to_contain_text("Request 0")
        dialog.get_by_role("button", name="Close").click()
        assert (tmp_path / "run" / "control" / "capture-0000-0000.json").exists()

        visitor.page.get_by_role("button", name="Stop the training").click()
        visitor.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        assert not (tmp_path / "run" / "control" / "stop-0000.json").exists()
        visitor.page.get_by_role("button", name="Stop the training").click()
        dialog = visitor.page.get_by_role("dialog")
        visitor.check()
        dialog.get_by_role("textbox").fill("seen enough")
        dialog.get_by_role("button", name="Stop the training").click()
        expect(dialog).to_contain_text("is requested")
        with pytest.raises(td.StopTraining, match="seen enough"):
            training.step(1_000_000)
        visitor.check_quiet()


def test_a_read_only_view_has_no_buttons(visit: Visit, training: Training, tmp_path: Path) -> None:
    training.step(2)
    with view_server(tmp_path / "run", "--read-only", "--no-rules") as server:
        visitor = visit(server.url)
        visitor.open()
        expect(visitor.chart("Losses and metrics").first).to_be_visible()
        expect(visitor.page.locator("header.top .badge").first).to_have_text(re.compile("running"))
        for name in ("Capture more", "Stop the training"):
            expect(visitor.page.get_by_role("button", name=name)).to_have_count(0)
        visitor.check_quiet()


def test_a_run_that_begins_later_appears_in_an_open_page(visit: Visit, tmp_path: Path) -> None:
    with view_server(tmp_path / "run", "--no-rules") as server:
        visitor = visit(server.url)
        visitor.open()
        expect(visitor.page.locator("main")).to_contain_text(re.compile("no run"))
        visitor.check()
        visitor.screenshot("no-run")
        training = Training(tmp_path / "run")
        training.step(3)
        expect(visitor.chart("Losses and metrics").first).to_have_accessible_name(last_step(2))
        training.hook.close()
        visitor.check_quiet()


def test_a_server_that_has_ended_is_reported_in_the_page(
    visit: Visit, training: Training, tmp_path: Path
) -> None:
    training.step(2)
    with view_server(tmp_path / "run", "--no-rules") as server:
        visitor = visit(server.url)
        visitor.open()
        visitor.check_quiet()
        server.stop()
        expect(visitor.page.get_by_text("no connection")).to_be_visible()
        visitor.problems = [each for each in visitor.problems if "ERR_CONNECTION_REFUSED" not in each]
        visitor.problems = [each for each in visitor.problems if "ERR_INCOMPLETE_CHUNKED" not in each]
        visitor.check_quiet()
