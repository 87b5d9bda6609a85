"""Generated training loops: a hook records exactly the rows of the rule, and changes no bit of the training.

These tests run the first 120 loops, and stage loops of .ci/run the following ones. TDCORE_FULL=1 runs 5,000;
`python -m tests.loops` runs any number and prints a line that reproduces each failing loop.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.loops.generator import Loop, loops, random_loop
from tests.loops.runner import Summary, summarize

_PARTS, _LOOPS_PER_PART = 4, 30
_FULL = os.environ.get("TDCORE_FULL") == "1"
_full_only = pytest.mark.skipif(not _FULL, reason="runs for a quarter of an hour; set TDCORE_FULL=1")
_PRINTED = 5  # failing loops in a message


def assert_no_differences(summary: Summary) -> None:
    """Fail with the first failing loops and the lines that reproduce them."""
    if summary.failing:
        failing = len(summary.failing)
        summary.failing = summary.failing[:_PRINTED]
        pytest.fail(f"{failing} loops fail, the first are:\n{summary.report(details=5)}", pytrace=False)


@pytest.mark.parametrize("part", range(_PARTS))
def test_every_row_of_generated_loops_is_that_of_the_reference(part: int, tmp_path: Path) -> None:
    numbers = range(part * _LOOPS_PER_PART, (part + 1) * _LOOPS_PER_PART)
    assert_no_differences(summarize((random_loop(0, number) for number in numbers), tmp_path))


@settings(max_examples=500 if _FULL else 20, deadline=None, suppress_health_check=list(HealthCheck))
@given(loop=loops())
def test_no_loop_that_hypothesis_finds_has_a_difference(
    loop: Loop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "hypothesis"
    assert_no_differences(summarize([loop], folder))


@_full_only
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(50))
def test_every_row_of_5000_loops_is_that_of_the_reference(part: int, tmp_path: Path) -> None:
    numbers = range(1000 + part * 100, 1000 + (part + 1) * 100)
    assert_no_differences(summarize((random_loop(0, number) for number in numbers), tmp_path))
