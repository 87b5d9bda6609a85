"""Actions in this process: the log, and functions of the user."""

from __future__ import annotations

import logging

import pytest

from tdcore.actions import Callback, LogFindings
from tdcore.rules import Finding
from tests.actions.findings import Running, finding


def test_findings_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tdcore.rules"):
        LogFindings().act([finding(), finding(tensor="")], Running(), None)
    assert [record.getMessage() for record in caplog.records] == [
        "VanishingGradient at step 7, gradient/w: too small; use ReLU",
        "VanishingGradient at step 7, run: too small; use ReLU",
    ]


def test_a_fault_that_lasts_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    log = LogFindings()
    with caplog.at_level(logging.WARNING, "tdcore.rules"):
        for step in range(9):
            log.act([finding(step=step)], Running(), None)
    assert len(caplog.records) == 1


def test_a_callback_gets_the_findings() -> None:
    given: list[Finding] = []
    Callback(given.extend).act([finding()], Running(), None)
    assert [each.step for each in given] == [7]
