"""The warning that a bucket cannot keep up, at simulated rates."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.hooks.bucket_machine import BucketMachine

pytestmark = pytest.mark.full

MB = 1_000_000
SIZES = st.one_of(st.just(0), st.integers(10_000, 2_000 * MB))  # 0: statistics only
PERIODS = st.floats(0.3, 60)  # seconds between saved steps
INTERVALS = st.integers(1, 500)
RINGS = st.sampled_from([0.5, 1.5, 4.0, 16.0])  # of a saved step
LATENCIES = st.sampled_from([0.0, 0.01, 0.3])
CONCURRENCY = st.sampled_from([1, 8])
PER_REQUEST = st.sampled_from([1.0, 0.25])  # share of the bucket's rate


def settings(
    size: int, interval: int, period: float, ring: float, speed: float, *, concurrency: int, each: float
) -> dict[str, Any]:
    """Settings of a bucket that takes `speed` times the requested rate."""
    tensors = 1000 if size == 0 else 10
    saved = size + 50 * tensors
    total = speed * saved / period
    return {
        "size": size,
        "tensors": tensors,
        "interval": interval,
        "seconds": period / interval,
        "total": total,
        "each": max(each, 1 / concurrency) * total,
        "ring": int(ring * saved),
        "concurrency": concurrency,
    }


def steps_for(seconds: float, period: float) -> int:
    return max(12, int(seconds / period))


def steps_until_reported(period: float, ring: float, speed: float, concurrency: int) -> int:
    """The ring is half full after ring / 2 / (1 - speed) saved steps; then some objects must be accepted."""
    saved_per_object = max(1.0, ring * concurrency / 16)
    return steps_for(80, period) + int(ring / 2 / (1 - speed) + 30 * saved_per_object / speed)


@examples(max_examples=6, deadline=None)
@given(SIZES, INTERVALS, PERIODS, RINGS, st.floats(1.05, 50), CONCURRENCY, PER_REQUEST, st.floats(0, 100))
def test_a_bucket_that_keeps_up_is_never_reported_even_with_an_outage(
    size: int,
    interval: int,
    period: float,
    ring: float,
    speed: float,
    concurrency: int,
    each: float,
    outage: float,
) -> None:
    given_settings = settings(size, interval, period, ring, speed, concurrency=concurrency, each=each)
    machine = BucketMachine(**given_settings, outage=(outage, outage + 20))
    assert machine.train(steps_for(160, period)) == []


@examples(max_examples=6, deadline=None)
@given(SIZES, INTERVALS, PERIODS, RINGS, LATENCIES, CONCURRENCY)
def test_a_fast_bucket_with_a_long_latency_is_never_reported(
    size: int, interval: int, period: float, ring: float, latency: float, concurrency: int
) -> None:
    given_settings = settings(size, interval, period, ring, 100.0, concurrency=concurrency, each=1.0)
    objects = 16 * max(1.0, 1 / ring)
    machine = BucketMachine(**given_settings, latency=min(latency, 0.5 * period / objects))
    assert machine.train(steps_for(90, period)) == []


@examples(max_examples=3, deadline=None)
@given(SIZES, INTERVALS, PERIODS, RINGS, st.floats(0.1, 0.8), CONCURRENCY, PER_REQUEST)
def test_a_bucket_that_is_too_slow_is_reported_once_and_the_proposed_interval_fits(
    size: int, interval: int, period: float, ring: float, speed: float, concurrency: int, each: float
) -> None:
    given_settings = settings(size, interval, period, ring, speed, concurrency=concurrency, each=each)
    (message,) = BucketMachine(**given_settings).train(steps_until_reported(period, ring, speed, concurrency))
    assert "wait in the spool on the local disk" in message
    assert ("statistics of 1,000 tensors" in message) == (size == 0)
    proposed = re.search(r"save_interval=(\d+) would fit", message)
    assert proposed is not None
    assert interval < int(proposed[1]) <= interval * 3 / speed + 1
    given_settings["interval"] = int(proposed[1])
    assert BucketMachine(**given_settings).train(30) == []
