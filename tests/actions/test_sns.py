"""Email and SMS with moto's SNS: one topic, one subscription per address, and the messages of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tdcore.actions import SMS, Email
from tdcore.errors import ActionError, ConfigError
from tests.actions.findings import Running, finding

Clients = Callable[[str], Any]


@pytest.fixture
def topic(aws: Clients, request: pytest.FixtureRequest) -> str:
    """Return the name of a topic for this test only."""
    return f"t{abs(hash(request.node.nodeid))}"


def subscriptions(aws: Clients, topic: str) -> list[tuple[str, str]]:
    sns = aws("sns")
    (arn,) = [
        each["TopicArn"] for each in sns.list_topics()["Topics"] if each["TopicArn"].endswith(f":{topic}")
    ]
    found = sns.list_subscriptions_by_topic(TopicArn=arn)["Subscriptions"]
    return [(each["Protocol"], each["Endpoint"]) for each in found]


def mailbox(aws: Clients, topic: str, address: str) -> Callable[[], list[dict[str, Any]]]:
    """Subscribe a queue to the topic with the filter of this address; return a function that reads it."""
    sns, sqs = aws("sns"), aws("sqs")
    arn = sns.create_topic(Name=topic)["TopicArn"]
    url = sqs.create_queue(QueueName=topic)["QueueUrl"]
    queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"tdcore_to": [address.lower()]})
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=queue, Attributes={"FilterPolicy": policy})

    def received() -> list[dict[str, Any]]:
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        return [json.loads(message["Body"]) for message in answer.get("Messages", [])]

    return received


def test_a_mail_says_what_fired_and_goes_to_its_address_only(aws: Clients, topic: str) -> None:
    received = mailbox(aws, topic, "First.Last+runs@example.org")
    Email("other@example.org", topic=topic).act([finding(tensor="other")], Running(), None)
    Email("First.Last+runs@example.org", topic=topic).act([finding(), finding(tensor="b")], Running(), None)
    (message,) = received()
    assert message["Subject"] == "VanishingGradient fired in runs/demo"
    assert message["Message"].count("VanishingGradient (TDC101) at step 7") == 2
    assert "None" not in message["Message"]


def test_an_address_is_subscribed_once_and_keeps_its_capitals(aws: Clients, topic: str) -> None:
    for _ in range(3):
        Email("First.Last@Example.org", topic=topic).act([finding()], Running(), None)
    Email("first.last@example.org", topic=topic).act([finding()], Running(), None)
    assert subscriptions(aws, topic) == [("email", "First.Last@Example.org")]


def test_a_subject_is_what_sns_takes(aws: Clients, topic: str) -> None:
    received = mailbox(aws, topic, "a@example.org")
    Email("a@example.org", topic=topic).act([finding(rule="Ü" * 300)], Running(), None)
    assert received()[0]["Subject"] == "?" * 100


def test_a_short_message_tells_the_first_and_how_many(aws: Clients, topic: str) -> None:
    received = mailbox(aws, topic, "+4915112345678")
    SMS("+49 (151) 1234-5678", topic=topic).act(
        [finding(why="x" * 400), finding(tensor="b")], Running(), None
    )
    (message,) = received()
    assert message["Message"].startswith(
        "2 findings in runs/demo, first: VanishingGradient (TDC101) at step 7"
    )
    assert len(message["Message"]) == 300
    assert ("sms", "+4915112345678") in subscriptions(aws, topic)


def test_an_existing_topic_can_be_given_by_its_arn(aws: Clients, topic: str) -> None:
    arn = aws("sns").create_topic(Name=topic)["TopicArn"]
    Email("a@example.org", topic=arn).act([finding()], Running(), None)
    assert subscriptions(aws, topic) == [("email", "a@example.org")]


class PendingSns:
    """SNS before an address has confirmed its subscription, a state that moto does not implement."""

    def __init__(self) -> None:
        self.arn = "PendingConfirmation"
        self.subscribed: list[str] = []
        self.published: list[str] = []

    def create_topic(self, Name: str) -> dict[str, str]:  # noqa: N803 -- as boto3 spells it
        return {"TopicArn": f"arn:{Name}"}

    def get_paginator(self, name: str) -> PendingSns:
        return self

    def paginate(self, **_: str) -> list[dict[str, list[dict[str, str]]]]:
        each = [{"Protocol": "email", "Endpoint": e, "SubscriptionArn": self.arn} for e in self.subscribed]
        return [{"Subscriptions": []}, {"Subscriptions": each}]

    def subscribe(self, **given: Any) -> dict[str, str]:
        self.subscribed.append(given["Endpoint"])
        return {"SubscriptionArn": "pending confirmation"}

    def publish(self, **given: Any) -> None:
        self.published.append(given["Message"])


def test_until_an_address_has_confirmed_that_is_said_once_and_its_findings_wait(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    email, sns = Email("someone@example.org"), PendingSns()
    monkeypatch.setattr(email._aws, "client", lambda service: sns)
    for step in range(3):
        email.act([finding(step=step)], Running(), None)
    (note,) = email.take_notes()
    assert note.startswith("s***@example.org has not confirmed its subscription to tdcore-findings")
    assert (sns.subscribed, sns.published) == (["someone@example.org"], [])
    sns.arn = "arn:aws:sns:1"
    email.act([finding(step=3)], Running(), None)
    email.act([finding(step=4)], Running(), None)
    assert len(sns.published) == 1


def test_an_address_that_has_ended_its_subscription_is_asked_anew(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    email, sns = Email("someone@example.org"), PendingSns()
    monkeypatch.setattr(email._aws, "client", lambda service: sns)
    sns.arn, sns.subscribed = "Deleted", ["someone@example.org"]
    email.act([finding()], Running(), None)
    assert sns.subscribed == ["someone@example.org"] * 2
    assert sns.published == []
    assert email.untold() == [finding()]


def test_what_sns_refuses_is_a_failure_without_the_address(aws: Clients) -> None:
    action = Email("someone@example.org", topic="arn:aws:sns:eu-west-1:123456789012:nowhere")
    with pytest.raises(ActionError) as raised:
        action.act([finding()], Running(), None)
    assert "SNS refused s***@example.org (eu-west-1)" in str(raised.value)
    assert "someone" not in str(raised.value) + repr(action)


@pytest.mark.parametrize(
    "address",
    [
        "a@b.org", "First.Last@example.org", "a+b@example.org", "a-b_c@my-host.example.co.uk",
        "x@example.photography", "UPPER@EXAMPLE.ORG", "o'neil@example.ie", "jürgen@müller.de", "1@2.3.io",
        "x@xn--mller-kva.de", "x@example.xn--p1ai",
    ],
)  # fmt: skip
def test_every_usual_address_is_taken(address: str) -> None:
    assert Email(address, region="eu-west-1")._address == address


@pytest.mark.parametrize(
    "address",
    ["", "a", "a@", "@b.org", "a@b", "a b@c.org", "a@b..org", ".a@b.org", "a.@b.org", "a..b@c.org",
     "a@-b.org", "a@b-.org", "a@b.c", "a@1.2.3.44", "a@b@c.org", "a@b.org\n", "x" * 65 + "@b.org", 7],
)  # fmt: skip
def test_what_is_no_address_is_refused_without_being_shown(address: object) -> None:
    with pytest.raises(ConfigError, match=r"Email\.address must be") as raised:
        Email(address, region="eu-west-1")  # type: ignore[arg-type]
    assert "@b" not in str(raised.value)


@pytest.mark.parametrize("number", ["", "4915112345678", "+0151123456", "+49", "+" + "1" * 16, "+49a", 49])
def test_what_is_no_international_number_is_refused(number: object) -> None:
    with pytest.raises(ConfigError, match="international number"):
        SMS(number, region="eu-west-1")  # type: ignore[arg-type]


def test_addresses_are_shown_in_part(aws: Clients) -> None:
    assert repr(Email("someone@example.org")) == "Email('s***@example.org', topic='tdcore-findings')"
    assert repr(SMS("+4915112345678")) == "SMS('+***78', topic='tdcore-findings')"


def test_a_topic_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Email\.topic"):
        Email("a@b.org", topic="two words", region="eu-west-1")
