"""The history of a machine: samples of a clock that is wrong for some time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.rules.measures.machine_history import _History

SECOND = 10**9
START = 1_700_000_000 * SECOND
YEAR = 365 * 86400 * SECOND


def history_of(times: npt.NDArray[np.int64], cuts: tuple[int, ...] = ()) -> _History:
    """Return a history with samples whose CPU use is their number; it is filled in pieces."""
    history = _History(host="node")
    values = np.repeat(np.arange(len(times), dtype=np.float64)[:, None], 4, axis=1)
    for begin, end in pairwise([0, *cuts, len(times)]):
        if end > begin:
            history.add(times[begin:end], values[begin:end])
    return history


@pytest.mark.parametrize("wrong", [YEAR, -YEAR])
def test_a_sample_of_a_wrong_clock_does_not_hide_the_other_samples(wrong: int) -> None:
    times = START + SECOND * np.arange(100)
    times[40] += wrong
    history = history_of(times)
    for at in (10, 60, 95):
        number = times[at] // (5 * SECOND)
        assert history.means(np.array([number]))[0] == np.mean(
            [each for each in range(100) if times[each] // (5 * SECOND) == number]
        )


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([1, 1, 1, 1, 7, 6000, -6000, 4 * 10**7, -(10**5)]), min_size=2, max_size=60),
    st.sets(st.integers(1, 59)),
)
def test_pieces_do_not_change_the_history(seconds: list[int], cuts: set[int]) -> None:
    times = START + SECOND * np.cumsum(seconds)
    whole = history_of(times)
    pieces = history_of(times, tuple(sorted(cut for cut in cuts if cut < len(times))))
    assert (whole.numbers == pieces.numbers).all()
    there = whole.numbers >= 0
    assert (whole.sums[there] == pieces.sums[there]).all()
    assert (whole.counts[there] == pieces.counts[there]).all()
