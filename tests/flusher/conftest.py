"""Fixtures for tests of the flusher: a trainer with a ring, and a sink in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tdcore.sinks import MemorySink
from tests.flushing import Trainer


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    yield made
    made.ring.close()


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()
