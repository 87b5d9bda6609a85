"""Metrics and events, with the services of moto."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from tdcore.actions import CloudWatchEvent, CloudWatchMetric
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding

Clients = Callable[[str], Any]


def test_new_keys_are_counted_per_rule(aws: Clients) -> None:
    action = CloudWatchMetric("tests/counted")
    action.act([finding(), finding(tensor="b"), finding(rule="Overfit")], Running(), None)
    action.act([finding(step=8), finding(tensor="c")], Running(), None)
    now = datetime.now(timezone.utc)

    def total(rule: str) -> float:
        answer = aws("cloudwatch").get_metric_statistics(
            Namespace="tests/counted",
            MetricName="Findings",
            Dimensions=[{"Name": "Rule", "Value": rule}],
            StartTime=now - timedelta(hours=1),
            EndTime=now + timedelta(hours=1),
            Period=86400,
            Statistics=["Sum"],
        )
        return float(sum(point["Sum"] for point in answer["Datapoints"]))

    assert (total("VanishingGradient"), total("Overfit")) == (3.0, 1.0)


def test_an_event_reaches_who_listens_for_it(aws: Clients) -> None:
    events, sqs = aws("events"), aws("sqs")
    url = sqs.create_queue(QueueName="listener")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    pattern = {"source": ["tdcore"], "detail-type": ["tdcore findings"]}
    events.put_rule(Name="findings", EventPattern=json.dumps(pattern))
    events.put_targets(Rule="findings", Targets=[{"Id": "1", "Arn": arn}])
    CloudWatchEvent().act([finding(), finding(tensor="b")], Running(), None)
    (message,) = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    detail = json.loads(message["Body"])["detail"]
    assert (detail["run"], detail["count"]) == ("runs/demo", 2)
    assert [each["tensor"] for each in detail["findings"]] == ["gradient/w", "b"]


def test_an_event_that_would_be_too_large_leaves_its_findings_out(aws: Clients) -> None:
    action, sent = CloudWatchEvent(), []

    class Events:
        def put_events(self, Entries: list[dict[str, str]]) -> dict[str, int]:  # noqa: N803
            sent.extend(Entries)
            return {"FailedEntryCount": 0}

    action._aws._clients["events"] = Events()
    action.act([finding(why="x" * 300_000)], Running(), None)
    assert len(sent[0]["Detail"]) < 20_000
    assert json.loads(sent[0]["Detail"])["count"] == 1


def test_an_entry_that_the_bus_refuses_is_a_failure(aws: Clients) -> None:
    action = CloudWatchEvent()

    class Events:
        def put_events(self, Entries: list[dict[str, str]]) -> dict[str, Any]:  # noqa: N803
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": "Throttled", "ErrorMessage": "slow"}]}

    action._aws._clients["events"] = Events()
    with pytest.raises(ActionError, match="Throttled: slow"):
        action.act([finding()], Running(), None)


def test_a_bus_that_is_not_there_is_a_failure(aws: Clients) -> None:
    with pytest.raises(ActionError, match="EventBridge refused"):
        CloudWatchEvent("nowhere").act([finding()], Running(), None)


@pytest.mark.parametrize("namespace", ["", "AWS/EC2", "a b", "x" * 256, 3])
def test_a_namespace_that_is_none_is_refused(namespace: object) -> None:
    with pytest.raises(ConfigError, match="namespace"):
        CloudWatchMetric(namespace, region="eu-west-1")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"bus": ""}, {"source": "aws.ec2"}, {"source": 3}])
def test_a_bus_or_source_that_is_none_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must have 1 to 256"):
        CloudWatchEvent(region="eu-west-1", **options)
