"""RingConfig: errors name the invalid value, and the number of threads that share a large capture."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest

from tdcore import _core
from tdcore.errors import ConfigError
from tdcore.session import ring_config
from tdcore.session.ring_config import RingConfig, make_ring


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when_full": "explode"}, "when_full"),
        ({"block_timeout": timedelta(seconds=-1)}, "block_timeout"),
        ({"threads": 0}, "threads"),
        ({"device_lanes": 9}, "device_lanes must be from 0 to 8"),
        ({"device_lanes": -1}, "device_lanes"),
        ({"device_ring_bytes": 3 << 20}, "device_ring_bytes must be a power of two"),
        ({"device_ring_bytes": 1 << 15}, "device_ring_bytes"),
        ({"device_arena_bytes": 1000}, "device_arena_bytes must be at least"),
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


@pytest.mark.parametrize(("devices", "lanes"), [(0, 0), (2, 2), (16, 8)])
def test_lanes_follow_the_devices_that_the_process_may_see(
    devices: int, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_config, "visible_nvidia_devices", lambda: devices)
    assert RingConfig().resolved_device_lanes() == lanes
    assert RingConfig(device_lanes=1).resolved_device_lanes() == 1


def test_a_ring_without_devices_has_one_descriptor_and_one_with_them_has_one_more_for_each() -> None:
    before = len(os.listdir("/proc/self/fd"))
    plain = make_ring(RingConfig(ring_bytes=1 << 20, device_lanes=0))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    assert plain.fds == [plain.fd]
    laned = make_ring(RingConfig(ring_bytes=1 << 20, device_lanes=3, device_ring_bytes=1 << 30))
    assert len(laned.fds) == 4
    assert len(os.listdir("/proc/self/fd")) == before + 5
    # A lane that is not in use takes memory for its control page only.
    assert all(os.fstat(fd).st_blocks * 512 <= 64 << 10 for fd in laned.fds[1:])
    consumer = _core.Consumer(laned.fds)
    assert consumer.drain(1 << 20, 10).records == 0
    assert all(os.fstat(fd).st_blocks * 512 <= 64 << 10 for fd in laned.fds[1:])
    plain.close()
    laned.close()
    assert laned.fds == []
