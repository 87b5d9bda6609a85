"""CloudWatchMetric and CloudWatchEvent: new findings as numbers for alarms, and as events on a bus."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from tdcore.actions.aws import Aws, region_of
from tdcore.actions.base import Notice, Notifier
from tdcore.errors import ActionError, ConfigError

__all__ = ["CloudWatchEvent", "CloudWatchMetric"]

_NAMESPACE = re.compile(r"(?!AWS/)[A-Za-z0-9._/#:-]{1,255}", re.ASCII)
_MAX_METRICS = 500  # per call; the service takes 1000
_MAX_DETAIL_BYTES = 200_000  # an event may have 256 KiB in all


class CloudWatchMetric(Notifier):
    """Send the number of new notice keys as metric "Findings" with the dimension Rule.

    Args:
        namespace: Namespace of the metric, which must not begin with "AWS/".
        region: AWS region; None: the standard chain.
        again_after: Time after which the same notice key is counted again; None: never.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "cloudwatch_metric"

    def __init__(self, namespace: str = "tdcore", *, region: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(namespace, str) or _NAMESPACE.fullmatch(namespace) is None:
            raise ConfigError(
                "CloudWatchMetric.namespace must be 1 to 255 letters, digits and any of . - _ / # :, and not "
                f"begin with AWS/, got {namespace!r}"
            )
        self._namespace = namespace
        self._aws = Aws("CloudWatchMetric", region)

    def __repr__(self) -> str:
        return f"CloudWatchMetric({self._namespace!r}, region={self._aws.region!r})"

    def send(self, notice: Notice) -> bool:
        """Send one message for new findings. Raises ActionError."""
        client = self._aws.client("cloudwatch")
        data = [
            {
                "MetricName": "Findings",
                "Dimensions": [{"Name": "Rule", "Value": rule[:1024]}],
                "Value": float(count),
                "Unit": "Count",
            }
            for rule, count in Counter(finding.rule for finding in notice.findings).items()
        ]
        with self._aws.errors("CloudWatch refused"):
            for first in range(0, len(data), _MAX_METRICS):
                client.put_metric_data(
                    Namespace=self._namespace, MetricData=data[first : first + _MAX_METRICS]
                )
        return True


class CloudWatchEvent(Notifier):
    """Send new findings to an event bus (EventBridge), with detail type "tdcore findings".

    The detail is {"text": ..., "run": ..., "count": ..., "findings": [...]}.

    Args:
        bus: Name or ARN of the event bus.
        source: Source of the events.
        region: AWS region; None: the standard chain.
        again_after: Time after which the same notice key is reported again; None: never.
        max_listed: Maximum number of findings in one event.

    Raises:
        ConfigError: A value is invalid.
    """

    name = "cloudwatch_event"

    def __init__(
        self, bus: str = "default", *, source: str = "tdcore", region: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        for parameter, value in (("bus", bus), ("source", source)):
            if not isinstance(value, str) or not 1 <= len(value) <= 256 or value.startswith("aws."):
                raise ConfigError(
                    f"CloudWatchEvent.{parameter} must have 1 to 256 characters and not begin with 'aws.', "
                    f"got {value!r}"
                )
        self._bus, self._source = bus, source
        self._aws = Aws("CloudWatchEvent", region_of("CloudWatchEvent.bus", bus, region))

    def __repr__(self) -> str:
        return f"CloudWatchEvent({self._bus!r}, region={self._aws.region!r})"

    def send(self, notice: Notice) -> bool:
        """Send one message for new findings. Raises ActionError."""
        client = self._aws.client("events")
        detail = json.dumps({"text": notice.text, **notice.to_json()})
        if len(detail) > _MAX_DETAIL_BYTES:
            detail = json.dumps({"text": notice.text[:10_000], **notice.to_json(), "findings": []})
        entry = {
            "Source": self._source,
            "DetailType": "tdcore findings",
            "Detail": detail,
            "EventBusName": self._bus,
        }
        with self._aws.errors("EventBridge refused"):
            answer = client.put_events(Entries=[entry])
        if answer.get("FailedEntryCount"):
            refused = answer["Entries"][0]
            raise ActionError(
                f"EventBridge refused ({self._aws.region}): {refused.get('ErrorCode')}: "
                f"{refused.get('ErrorMessage')}"
            )
        return True
