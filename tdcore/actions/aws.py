"""Shared code of the actions on AWS: import of boto3, region, clients with timeouts, errors.

boto3 retries temporary failures with exponential backoff. AWS_ENDPOINT_URL and all other settings of boto3
are used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from tdcore.actions.base import redacted
from tdcore.errors import ActionError, ConfigError

__all__ = ["Aws", "region_of"]

_CONNECT_SECONDS, _READ_SECONDS, _TRIES = 5, 15, 4


class Aws:
    """Clients of one region. Threads: one at a time.

    Args:
        action: Name of the action, for messages.
        region: AWS region. None: the standard chain, which is AWS_REGION, AWS_DEFAULT_REGION, and the region
            of the profile in ~/.aws/config. There is no further default.

    Raises:
        ConfigError: boto3 is not installed, or there is no region.
    """

    def __init__(self, action: str, region: str | None) -> None:
        self.action = action
        self.region = region or _region(action)
        _boto3(action)
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """The client of a service, such as "sns", created at the first call. Raises ActionError."""
        if service not in self._clients:
            from botocore.config import Config

            with self.errors(f"a client of {service} cannot be created"):
                self._clients[service] = (
                    _boto3(self.action)
                    .session.Session()
                    .client(
                        service,
                        region_name=self.region,
                        config=Config(
                            connect_timeout=_CONNECT_SECONDS,
                            read_timeout=_READ_SECONDS,
                            retries={"mode": "standard", "total_max_attempts": _TRIES},
                        ),
                    )
                )
        return self._clients[service]

    @contextlib.contextmanager
    def errors(self, what: str, secrets: Iterable[str] = ()) -> Iterator[None]:
        """Convert errors of boto3 to ActionErrors "<what>: ..." that do not contain the secrets."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise ActionError(f"{what} ({self.region}): {redacted(str(error), secrets)}") from None


def region_of(what: str, name: str, region: str | None) -> str | None:
    """The region in an ARN; `region` if `name` is not an ARN. Raises ConfigError."""
    if not name.startswith("arn:"):
        return region
    there = [*name.split(":"), "", "", "", ""][3]
    if region and there and region != there:
        raise ConfigError(f"the ARN of {what} has the region {there}, got region={region!r}; remove region")
    return region or there or None


def _boto3(action: str) -> Any:
    try:
        import boto3
    except ImportError as error:
        raise ConfigError(f'{action} needs boto3; pip install "tdcore-capture[aws]"') from error
    return boto3


def _region(action: str) -> str:
    region = os.environ.get("AWS_REGION")
    if not region:
        from_chain = _boto3(action)
        from botocore.exceptions import BotoCoreError

        try:
            region = from_chain.session.Session().region_name
        except BotoCoreError as error:  # a profile that does not exist
            raise ConfigError(f"{action}: the AWS settings cannot be read:  {error}") from error
    if not region:
        raise ConfigError(
            f"{action} has no AWS region; set AWS_REGION (or AWS_DEFAULT_REGION), put a region into "
            "~/.aws/config, or give region="
        )
    return str(region)
