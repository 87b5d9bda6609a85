"""Email and SMS: messages through Amazon SNS.

One topic, which is created if it does not exist, has a subscription per address. With a filter policy each
subscription gets only the messages for its address. An existing subscription is used unchanged. Messages
contain only parts of addresses.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

from tdcore.actions.aws import Aws, region_of
from tdcore.actions.base import Notice, Notifier, finding_line, printable
from tdcore.errors import ConfigError

__all__ = ["SMS", "Email"]

_TOPIC = re.compile(
    r"[A-Za-z0-9_-]{1,256}|arn:[A-Za-z0-9-]+:sns:[A-Za-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}"
)
_LOCAL = re.compile(r"[\w!#$%&'*+/=?^`{|}~-]+(\.[\w!#$%&'*+/=?^`{|}~-]+)*")
_LABEL = re.compile(r"[^\W_]([\w-]{0,61}[^\W_])?")
_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}", re.ASCII)
_ATTRIBUTE = "tdcore_to"
_SUBJECT_CHARACTERS = 100
_SMS_CHARACTERS = 300
_MAIL_CHARACTERS = 60_000  # characters have up to four bytes; SNS accepts 256 KiB
_PENDING = ("pendingconfirmation", "pending confirmation")
_DELETED = "deleted"  # AWS lists a subscription for some days after its owner has ended it


class Topic(Notifier):
    """Base of Email and SMS: one address that is subscribed to one topic.

    Args:
        topic: Name of the topic, or ARN of an existing topic.
        region: See tdcore.actions.aws.Aws.
        again_after, max_listed: See Notifier.
    """

    protocol: ClassVar[str]

    def __init__(self, address: str, shown: str, *, topic: str, region: str | None, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(topic, str) or _TOPIC.fullmatch(topic) is None:
            raise ConfigError(
                f"{type(self).__name__}.topic must be a name of letters, digits, '-' and '_', or the ARN of "
                f"a topic, got {topic!r}"
            )
        self._address = address
        self._key = address.lower()  # for filter policies, which are case-sensitive
        self._shown = shown
        self._topic = topic
        kind = type(self).__name__
        self._aws = Aws(kind, region_of(f"{kind}.topic", topic, region))
        self._arn = topic if topic.startswith("arn:") else ""
        self._confirmed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._shown!r}, topic={self._topic!r})"

    def send(self, notice: Notice) -> bool:
        """See Notifier.send. False while the address has not confirmed its subscription."""
        client = self._aws.client("sns")
        with self._aws.errors(f"SNS refused {self._shown}", [self._address]):
            if not self._arn:
                self._arn = client.create_topic(Name=self._topic)["TopicArn"]
            if not self._confirmed:
                self._confirmed = self._subscribe(client)
            if not self._confirmed:
                self.note(
                    f"{self._shown} has not confirmed its subscription to {self._topic}: no message is sent; "
                    "open the link in AWS's message"
                )
                return False
            client.publish(
                TopicArn=self._arn,
                Message=self.message(notice),
                Subject=_subject(notice),
                MessageAttributes={_ATTRIBUTE: {"DataType": "String", "StringValue": self._key}},
            )
        return True

    def message(self, notice: Notice) -> str:
        """Text of a message."""
        raise NotImplementedError

    def _subscribe(self, client: Any) -> bool:
        """Subscribe the address if necessary. Return whether its owner has confirmed the subscription."""
        pages = client.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=self._arn)
        for subscription in (each for page in pages for each in page.get("Subscriptions", [])):
            state = subscription["SubscriptionArn"].lower()
            mine = subscription["Protocol"] == self.protocol and self._is_mine(subscription["Endpoint"])
            if mine and state != _DELETED:
                return state not in _PENDING
        made = client.subscribe(
            TopicArn=self._arn,
            Protocol=self.protocol,
            Endpoint=self._address,
            Attributes={"FilterPolicy": json.dumps({_ATTRIBUTE: [self._key]})},
        )
        return made.get("SubscriptionArn", "").lower() not in (*_PENDING, "")

    def _is_mine(self, endpoint: str) -> bool:
        return endpoint.lower() == self._key


class Email(Topic):
    """Send new findings to an e-mail address, whose owner must confirm once, with a link that AWS sends.

    Args:
        address: The address; its case is kept.
        topic: Name of the SNS topic, or ARN of an existing topic.
        region: AWS region; None: the standard chain.
        again_after: Time after which the same notice key is reported again; None: never.
        max_listed: Maximum number of findings in one message.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "email"
    protocol = "email"

    def __init__(
        self, address: str, *, topic: str = "tdcore-findings", region: str | None = None, **options: Any
    ) -> None:
        local, domain = _checked_address(address)
        super().__init__(address, f"{local[:1]}***@{domain}", topic=topic, region=region, **options)

    def message(self, notice: Notice) -> str:
        """Text of a message for new findings."""
        return notice.text[:_MAIL_CHARACTERS]


class SMS(Topic):
    """Send the first new finding and the number of new findings to a telephone.

    Args:
        number: Number in the international form (E.164), such as "+4915112345678". Spaces, hyphens, dots and
            brackets are removed.
        topic: Name of the SNS topic, or ARN of an existing topic.
        region: AWS region; None: the standard chain.
        again_after: Time after which the same notice key is reported again; None: never.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "sms"
    protocol = "sms"

    def __init__(
        self, number: str, *, topic: str = "tdcore-findings", region: str | None = None, **options: Any
    ) -> None:
        plain = re.sub(r"[ ().-]", "", number) if isinstance(number, str) else ""
        if _NUMBER.fullmatch(plain) is None:
            raise ConfigError(
                "SMS.number must be an international number of 7 to 15 digits, such as +4915112345678"
            )
        super().__init__(plain, f"+***{plain[-2:]}", topic=topic, region=region, **options)

    def message(self, notice: Notice) -> str:
        """Text of a message for new findings."""
        count = len(notice.findings)
        more = f"{count} findings in {notice.run}, first: " if count > 1 else f"{notice.run}: "
        return printable(more + finding_line(notice.findings[0]))[:_SMS_CHARACTERS]


def _checked_address(address: object) -> tuple[str, str]:
    """The parts before and after the @. Only a message would show whether the address exists."""
    local, mark, domain = address.rpartition("@") if isinstance(address, str) else ("", "", "")
    labels = domain.split(".")
    if (
        not mark
        or len(local) > 64
        or len(domain) > 253
        or _LOCAL.fullmatch(local) is None
        or len(labels) < 2
        or not all(_LABEL.fullmatch(label) for label in labels)
        or len(labels[-1]) < 2
        or labels[-1].isdigit()
    ):
        raise ConfigError("Email.address must be an e-mail address, such as first.last+runs@mail.example.org")
    return local, domain


def _subject(notice: Notice) -> str:
    """Subject of a message: up to 100 ASCII characters, the limit of SNS."""
    return notice.subject.encode("ascii", "replace").decode()[:_SUBJECT_CHARACTERS]
