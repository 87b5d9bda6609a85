"""Sinks on the strict S3 stub, with either engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from tdcore.sinks.s3 import S3Sink
from tests.s3.servers import StubServer


@pytest.fixture(params=["obstore", "aiobotocore"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(stub: StubServer, engine: str) -> Iterator[Callable[..., S3Sink]]:
    """opened(patience_seconds, **options) creates a sink on the stub, which is closed after the test."""
    sinks: list[S3Sink] = []

    def make(patience: float = 30.0, **options: str) -> S3Sink:
        sinks.append(S3Sink(stub.url("p", engine=engine, **options), patience=timedelta(seconds=patience)))
        return sinks[-1]

    yield make
    for sink in sinks:
        sink.close()
