"""The Python examples of docs/actions.md run and behave as the page describes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.actions.loading import ACTIONS
from tdcore.rules import Report
from tests.actions.receiving import receiving
from tests.trial.writer import RunWriter

PAGE = (Path(__file__).resolve().parents[2] / "docs/actions.md").read_text()
RULES, MESSAGES, AWS, TEXT = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ended run with vanishing gradients, in the folder that the examples read."""
    monkeypatch.chdir(tmp_path)
    writer = RunWriter(tmp_path / "runs/example")
    for step in range(3):
        writer.add("gradient/fc.weight", np.full(4, 1e-12, np.float32), step=step, kind="gradient")
    writer.flush()
    writer.end()
    return tmp_path


def report_of(code: str) -> Report:
    names: dict[str, Any] = {}
    exec(code, names)
    report: Report = names["report"]
    assert report.findings
    return report


def test_a_rule_with_actions(example: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert report_of(RULES).problems == ()
    assert "VanishingGradient at step 0" in caplog.text
    assert not (example / "runs/example/control").exists()  # the run has ended, so it gets no request


def test_messages_and_commands(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("SLACK_URL", receiver.url)
        assert report_of(MESSAGES).problems == ()
    ((_, _, posted),) = receiver.got
    assert posted["text"].startswith("VanishingGradient fired in runs/example")
    given = json.loads((example / "findings.json").read_text())
    assert given["findings"] == posted["findings"]


def test_services_of_aws(example: Path, aws: Callable[[str], Any]) -> None:
    assert report_of(AWS).problems == ()
    metrics = aws("cloudwatch").list_metrics(Namespace="training")["Metrics"]
    assert [metric["MetricName"] for metric in metrics] == ["Findings"]
    endpoints = {each["Endpoint"] for each in aws("sns").list_subscriptions()["Subscriptions"]}
    assert {"first.last+runs@example.org", "+4915112345678"} <= endpoints


def test_actions_from_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACK_URL", "https://hooks.slack.com/services/x")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    exec(TEXT, {})


def test_every_action_is_in_the_page() -> None:
    for name, (_, class_name, _) in ACTIONS.items():
        assert re.search(rf"^\| `{name}` \| `{class_name}\(", PAGE, re.MULTILINE), name
