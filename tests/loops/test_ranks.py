"""Generated loops under DistributedDataParallel, two processes: every rank records the rows of the rule."""

from __future__ import annotations

import os

import pytest

from tests.loops.ranks import many_with_ranks
from tests.loops.test_loops import assert_no_differences

_LOOPS = 400 if os.environ.get("TDCORE_FULL") == "1" else 20


@pytest.mark.timeout(900)
def test_every_row_of_two_ranks_is_that_of_their_references() -> None:
    assert_no_differences(many_with_ranks(0, range(_LOOPS), 2))
