"""RingConfig: what cannot work is named, and how many threads share a large capture."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from tdcore.errors import ConfigError
from tdcore.session import RingConfig


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when_full": "explode"}, "when_full"),
        ({"block_timeout": timedelta(seconds=-1)}, "block_timeout"),
        ({"threads": 0}, "threads"),
    ],
)
def test_a_ring_setting_that_cannot_work_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RingConfig(**options)


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 2), (4, 2), (8, 2), (16, 4), (64, 4)])
def test_threads_follow_the_cpus_that_the_process_may_use(
    cpus: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    assert RingConfig().resolved_threads() == threads


def test_a_number_of_threads_that_is_given_is_taken() -> None:
    assert RingConfig(threads=3).resolved_threads() == 3
