"""Local services of AWS for the tests of actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest

from tests.s3.servers import Server

REGION = "eu-west-1"


@pytest.fixture
def aws(moto: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Clients of moto's services; actions find the services through environment variables."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    monkeypatch.setenv("AWS_REGION", REGION)
    return lambda service: boto3.session.Session().client(service, region_name=REGION)
