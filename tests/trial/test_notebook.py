"""Runs, tensors, findings, verdicts and diagnoses as HTML: their facts, and hostile texts as text only."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules import run as run_rules
from tdcore.rules.base import Finding, Status, Verdict
from tdcore.rules.diagnosis.diagnosis import Diagnosed, Diagnosis
from tdcore.rules.diagnosis.evidence import Evidence
from tdcore.text.html import card, escaped, facts, history, listing
from tdcore.text.quoting import quoted
from tdcore.trial import create_trial
from tests.trial.writer import RunWriter

EVIL = "<script>alert('x')</script><img src=x onerror=\"y\">\x1b[2J&lt;\u202e"
ELEMENTS = {"div", "table", "tr", "td", "th", "svg", "polyline", "circle"}
ATTRIBUTES = {
    *("style", "width", "height", "viewbox", "role", "aria-label", "points", "fill"),
    *("stroke", "stroke-width", "cx", "cy", "r"),
}


class Page(HTMLParser):
    """The elements, attributes and texts of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            self.values.append(value or "")
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}|"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def checked(value: object) -> Page:
    """The HTML of a value, which has only harmless elements and loads nothing."""
    page = Page(value._repr_html_())  # type: ignore[attr-defined]
    assert set(page.elements) <= ELEMENTS
    assert page.attributes <= ATTRIBUTES
    assert not any("url(" in value or "//" in value for value in page.values)
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text
    return page


def evil_run(place: Path) -> Path:
    run = RunWriter(place)
    for step in range(3):
        run.add(EVIL, 1.0 / (step + 1), step=step, kind="loss")
        run.add(f"gradient/{EVIL}", 1e-9 * np.ones(3), step=step, kind="gradient", origin=EVIL)
        run.add(f"gone {EVIL}", None, step=step, status="absent", reason=EVIL)
    run.flush()
    run.end(reason=EVIL)
    return place


def test_hostile_texts_of_a_run_add_no_element(tmp_path: Path) -> None:
    place = evil_run(tmp_path)
    report = run_rules(place, ["vanishing_gradient", "exploding_tensor"])
    trial = create_trial(place, EVIL)
    shown = "<script>alert('x')</script>"
    assert checked(trial).text.count(shown) >= 3  # the run, its loss, and its finding
    for name in (EVIL, f"gradient/{EVIL}", f"gone {EVIL}"):
        if trial.has_tensor(name):
            assert shown in checked(trial.tensor(name)).text
    assert shown in checked(report.findings[0]).text
    assert any(shown in checked(verdict).text for verdict in report.verdicts)


def test_hostile_texts_of_findings_verdicts_and_diagnoses_add_no_element() -> None:
    finding = Finding(
        rule=EVIL, code=EVIL, step=3, mode=EVIL, mode_step=1, worker=EVIL, attempt=0, tensor=EVIL,
        numbers={}, why=EVIL, do=EVIL, count=2, last_step=4, last_mode_step=2,
    )  # fmt: skip
    verdict = Verdict(
        rule=EVIL, code=EVIL, status=Status.ISSUE, findings=(finding,), finding_count=12, reason=EVIL
    )
    evidence = Evidence(why=EVIL, mode=EVIL, step=1, tensors=(EVIL,), strength=1.0)
    cause = Diagnosed(cause=EVIL, strength=1.0, evidence=(evidence,), change=EVIL, check=EVIL)
    for value in (finding, verdict, Diagnosis(causes=(cause,)), Diagnosis(unexplained={EVIL: 1})):
        assert "<script>alert('x')</script>" in checked(value).text
    assert "and 11 more" in checked(verdict).text
    assert "no cause was found" in checked(Diagnosis()).text


def test_a_run_shows_its_status_steps_tensors_losses_and_findings(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(4):
        run.add("loss", 8.0 / 2**step, step=step, kind="loss")
        run.add("gradient/w", 1e-9 * np.ones(2), step=step, kind="gradient")
    run.flush()
    run.add("loss", 0.5, step=4, kind="loss")
    run.flush()
    run.end(gaps=[{"first_step": 1, "last_step": 2, "tensors": 7, "bytes": 40, "reason": "io_error"}])
    run_rules(tmp_path, ["vanishing_gradient"])
    text = checked(create_trial(tmp_path, "demo")).text
    parts = (
        "run demo|",
        "ended|",
        "5 TRAIN|",
        "1 loss",
        "1 gradient",
        "loss, TRAIN",
        "0.5|",
        "VanishingGradient|",
    )
    assert [part for part in parts if part not in text] == []
    assert "missing data|7 tensors (40 B) of steps 1..2 of worker_0 of attempt 0 are not in the run" in text


def test_a_tensor_shows_its_newest_statistics_and_its_history_for_each_mode(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    for step in range(5):
        run.add("w", np.array([3.0, -4.0]) * (1 + step), step=step, kind="weight", origin="Linear")
    run.add("w", np.array([np.nan, np.inf]), step=5, mode="EVAL", mode_step=0, kind="weight", origin="Linear")
    run.flush()
    page = checked(create_trial(tmp_path).tensor("w"))
    assert "weight, Linear|" in page.text
    assert "F64 2|" in page.text
    assert "TRAIN|step 4|17.5|25|-20|15|0|" in page.text
    assert "EVAL|EVAL step 0 (global 5)|-|" in page.text
    assert page.elements.count("svg") == 2


def test_a_run_without_rows_and_a_tensor_that_is_absent_have_html(tmp_path: Path) -> None:
    run = RunWriter(tmp_path)
    assert "running|" in checked(create_trial(tmp_path)).text
    run.add("w", np.ones(2), step=0)
    run.add("w", None, step=1, status="absent", reason="no_gradient")
    run.flush()
    assert "absent (no_gradient)|" in checked(create_trial(tmp_path).tensor("w")).text


@given(st.text(), st.text())
def test_any_text_is_shown_as_text(one: str, other: str) -> None:
    page = Page(card(escaped(one), facts([("label", escaped(other))]), listing([one], [[escaped(other)]])))
    assert set(page.elements) <= ELEMENTS
    assert page.attributes == {"style"}
    assert html.unescape(escaped(one)) == quoted(one, 300)


@given(st.lists(st.none() | st.floats(), max_size=300))
def test_a_history_of_any_numbers_stays_inside_its_picture(values: list[float | None]) -> None:
    drawn = history(values)
    if not values:
        assert drawn == ""
        return
    page = Page(drawn)
    assert page.elements[0] == "svg"
    numbers = [
        float(number)
        for value in page.values
        if value[:1].isdigit() and "," in value
        for number in value.replace(",", " ").split()
    ]
    assert all(math.isfinite(number) and 0 <= number <= 180 for number in numbers)


def test_a_history_has_one_point_per_value_and_a_dot_per_value_that_is_not_finite() -> None:
    page = Page(history([1.0, 2.0, 3.0, math.nan, 2.0, None]))
    assert page.elements == ["svg", "polyline", "circle", "circle"]
    line = next(value for value in page.values if value[:1].isdigit() and "," in value)
    points = [[float(each) for each in point.split(",")] for point in line.split()]
    assert [y for _, y in points] == [25.0, 14.0, 3.0]
