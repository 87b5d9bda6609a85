"""Sizes of rings that the user has not set: from a saved step and from the memory of the machine."""

from __future__ import annotations

import resource
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tdcore import _core
from tdcore.session import RingConfig
from tdcore.session.ring_config import make_ring
from tdcore.session.ring_sizes import (
    HOST,
    LEAST_RING,
    MACHINE_SHARE,
    RingSizes,
    capturing_processes,
    most_ring_bytes,
    wanted_bytes,
)
from tests._sim import simulate_device

MIB, GIB = 1 << 20, 1 << 30
PLENTY = 1 << 40


class FakeRing:
    """The numbers of a ring of any size, without its memory."""

    def __init__(self, most: int = 64 * GIB) -> None:
        self.most = most
        self.limit_bytes = LEAST_RING
        self.memory_bytes = 0
        self.expected: list[int] = []
        self.wishes: dict[int, tuple[int, int]] = {}
        self.set_up: set[int] = set()  # devices

    def raise_limit(self, size: int) -> int:
        self.limit_bytes = max(self.limit_bytes, min(size, self.most))
        return self.limit_bytes

    def expect(self, size: int) -> None:
        self.expected.append(size)

    def wish_device_sizes(self, device: int, ring_bytes: int, arena_bytes: int) -> bool:
        if device in self.set_up:
            return False
        self.wishes[device] = (ring_bytes, arena_bytes)
        return True


def sizes_of(
    ring: Any, config: RingConfig | None = None, *, available: int = PLENTY, processes: int = 1
) -> RingSizes:
    return RingSizes(ring, config or RingConfig(), processes=processes, available=lambda: available)


@given(st.integers(0, 1 << 42), st.integers(1, 64))
def test_the_address_space_is_a_power_of_two_within_the_share(available: int, processes: int) -> None:
    most = most_ring_bytes(available, processes)
    assert most & (most - 1) == 0
    assert LEAST_RING <= most <= 64 * GIB
    assert most == LEAST_RING or most * MACHINE_SHARE * processes <= available


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 42), st.integers(1, 16))
def test_a_ring_holds_a_saved_step_or_takes_its_share(step: int, available: int, processes: int) -> None:
    ring = FakeRing()
    sizes_of(ring, available=available, processes=processes).expect({HOST: step})
    size = ring.limit_bytes
    share = available // MACHINE_SHARE // processes
    assert size == LEAST_RING or size <= share
    assert size >= wanted_bytes(step) or size * 2 > share
    assert size == LEAST_RING or size < 2 * wanted_bytes(step)


@given(st.lists(st.integers(0, 20 * GIB), min_size=1, max_size=5), st.integers(0, 1 << 42))
def test_all_rings_of_a_process_share_its_part_of_the_memory(steps: list[int], available: int) -> None:
    ring = FakeRing()
    sizes = sizes_of(ring, available=available)
    sizes.expect(dict(enumerate(steps, start=HOST)))
    larger = [
        size for size in [ring.limit_bytes, *(lane for lane, _ in ring.wishes.values())] if size > LEAST_RING
    ]
    assert sum(larger) <= available // MACHINE_SHARE
    assert len(sizes.as_note().get("ring_sizes", [])) == len(larger)


def test_models_add_up_and_small_models_change_nothing() -> None:
    ring = FakeRing()
    sizes = sizes_of(ring)
    sizes.expect({HOST: 100 * MIB})
    assert ring.limit_bytes == LEAST_RING
    assert sizes.as_note() == {}
    sizes.expect({HOST: 200 * MIB})
    assert ring.limit_bytes == 512 * MIB
    assert ring.expected == [100 * MIB, 300 * MIB]
    (note,) = sizes.as_note()["ring_sizes"]
    assert note == (
        "ring of up to 512 MiB (the default is 256 MiB): a saved step has 300 MiB, and the rings may take "
        "1/16 of the available memory"
    )


def test_the_size_of_outputs_is_known_after_a_saved_step() -> None:
    ring = FakeRing()
    sizes = sizes_of(ring)
    sizes.expect({HOST: 10 * MIB, 0: GIB})
    sizes.measured(GIB + 10 * MIB)
    assert ring.limit_bytes == LEAST_RING
    sizes.measured(2 * GIB)
    assert ring.limit_bytes == 2 * GIB  # the other GiB is on the device
    assert ring.expected == [10 * MIB]  # its memory is allocated when records need it


def test_a_device_that_is_set_up_takes_no_part_of_the_memory_for_a_later_model() -> None:
    ring = FakeRing()
    sizes = sizes_of(ring, available=16 * GIB)
    ring.set_up.add(0)
    sizes.expect({0: 2 * GIB})
    assert sizes.as_note() == {}
    sizes.expect({HOST: 800 * MIB})
    assert ring.limit_bytes == GIB


def test_sizes_that_are_set_are_not_changed() -> None:
    ring = FakeRing()
    config = RingConfig(ring_bytes=MIB, device_ring_bytes=MIB, device_arena_bytes=MIB)
    sizes = sizes_of(ring, config)
    sizes.expect({HOST: GIB, 0: GIB})
    sizes.measured(8 * GIB)
    assert ring.limit_bytes == LEAST_RING
    assert ring.wishes == {0: (0, 0)}
    assert sizes.as_note() == {}
    made = make_ring(RingConfig(ring_bytes=MIB, device_lanes=0))
    assert made.data_bytes == made.limit_bytes == made.raise_limit(GIB) == MIB
    made.close()


@pytest.mark.parametrize(
    ("workers", "world", "environment", "expected"),
    [
        (1, 8, {}, 1),  # only rank 0 captures
        (8, 8, {}, 8),
        (16, 16, {"LOCAL_WORLD_SIZE": "4"}, 4),
        (16, 16, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        (8, 8, {"LOCAL_WORLD_SIZE": "x"}, 8),
        (0, 1, {}, 1),
    ],
)
def test_processes_of_a_machine_divide_its_share(
    workers: int, world: int, environment: dict[str, str], expected: int
) -> None:
    assert capturing_processes(workers, world, environment) == expected


@pytest.mark.parametrize("limited", [resource.RLIMIT_AS, resource.RLIMIT_FSIZE])
def test_a_limit_of_address_space_or_of_files_leaves_the_least_size(
    monkeypatch: pytest.MonkeyPatch, limited: int
) -> None:
    limits = {limited: 1 << 40}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits.get(which, resource.RLIM_INFINITY),) * 2)
    assert most_ring_bytes(PLENTY, 1) == LEAST_RING


def test_a_ring_grows_beyond_its_first_limit_only_when_it_may() -> None:
    ring = _core.Ring(data_bytes=16 * MIB, limit_bytes=4 * MIB, slots=64, policy="drop", names_bytes=1 << 16)
    consumer = _core.Consumer(ring.fds)
    name, values = np.array([ring.intern("x", 0)], np.uint32), np.zeros(100_000, np.float32)

    def fill() -> int:
        kept = 0
        while not ring.capture([values], name, b"\1", kept, 1, kept):
            kept += 1
        return kept

    assert 9 <= fill() <= 10
    assert consumer.data_bytes == 4 * MIB
    assert ring.raise_limit(5 * MIB) == ring.limit_bytes == consumer.data_bytes == 8 * MIB
    assert ring.raise_limit(MIB) == 8 * MIB
    assert 9 <= fill() <= 11
    assert ring.raise_limit(1 << 50) == 16 * MIB
    assert 18 <= fill() <= 21
    records = consumer.drain(1 << 30, 1000)
    assert records.records == consumer.pending_records >= 36
    ring.close()


def device_ring(**options: Any) -> Any:
    return _core.Ring(
        data_bytes=MIB,
        slots=256,
        names_bytes=1 << 16,
        device_lanes=1,
        device_lane_bytes=32 * MIB,
        device_lane_limit=2 * MIB,
        device_lane_slots=1024,
        device_arena_bytes=MIB,
        **options,
    )


@pytest.mark.parametrize("wish", [True, False])
def test_copies_of_a_step_that_fits_into_the_arena_never_make_the_stream_wait(wish: bool) -> None:
    ring = device_ring()
    consumer = _core.Consumer(ring.fds)
    simulate_device(ring, host_tensors=True, delay_us=2000)
    step = [np.full(20_000, number, np.float32) for number in range(64)]  # 5 MB
    size = sum(each.nbytes for each in step)
    if wish:
        assert ring.wish_device_sizes(0, wanted_bytes(size), wanted_bytes(size))
    assert ring.prepare_device(0)
    assert not ring.wish_device_sizes(0, 1 << 40, 1 << 40)
    names = [np.array([ring.intern(str(number), 0)], np.uint32) for number in range(64)]
    for number in range(3):
        for name, values in zip(names, step, strict=True):
            assert not ring.capture([values], name, b"\1", number, 1, number)
            if not wish:
                consumer.release(consumer.drain(1 << 30, 1000))
        while ring.device_reports()[0]["in_flight"]:
            consumer.release(consumer.drain(1 << 30, 1000))
    (report,) = ring.device_reports()
    assert report["ring_bytes"] == (8 * MIB if wish else 2 * MIB)
    assert report["arena_bytes"] == (wanted_bytes(size) if wish else MIB)
    assert (report["arena_waits"] == 0) is wish
    ring.close()


@pytest.mark.parametrize(
    ("limits", "ring_bytes", "arena_bytes"),
    [
        ({"memory_bytes": 200 * MIB}, 32 * MIB, 4 * MIB),  # 1/50 of the free memory
        ({"memory_bytes": 30 * MIB}, 32 * MIB, MIB),
        ({"pin_bytes": 8 * MIB}, 2 * MIB, 20 * MIB),  # as with RLIMIT_MEMLOCK
        ({}, 32 * MIB, 20 * MIB),
    ],
)
def test_a_device_gets_what_the_system_allows(
    limits: dict[str, Any], ring_bytes: int, arena_bytes: int
) -> None:
    ring = device_ring()
    simulate_device(ring, host_tensors=True, **limits)
    before = ring.memory_bytes
    ring.wish_device_sizes(0, 1 << 40, 20 * MIB)
    assert ring.prepare_device(0)
    (report,) = ring.device_reports()
    assert (report["ring_bytes"], report["arena_bytes"], report["error"]) == (ring_bytes, arena_bytes, "")
    assert ring_bytes <= ring.memory_bytes - before < ring_bytes + MIB
    ring.close()


def test_a_lane_without_memory_for_the_chosen_size_gets_its_least_size() -> None:
    ring = device_ring()
    simulate_device(ring, host_tensors=True)
    ring.wish_device_sizes(0, 1 << 40, 0)
    _core._pretend_available_memory(8 * MIB)
    try:
        assert ring.prepare_device(0)
    finally:
        _core._pretend_available_memory(None)
    assert ring.device_reports()[0]["ring_bytes"] == 2 * MIB
    ring.close()
