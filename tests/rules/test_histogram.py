"""Histograms: their counts, compared with NumPy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tdcore.rules.columns import Columns
from tdcore.rules.trace import Trace

VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda x: x if abs(x) > 1e-11 else 0.0), max_size=12)


@given(tensors=st.lists(VALUES, min_size=1, max_size=5), exponent=st.integers(-39, 22))
def test_elements_below_a_power_of_two_are_counted_per_row(tensors: list[list[float]], exponent: int) -> None:
    trace = Trace()
    for values in tensors:
        trace.add(0, "a", "weight", np.array(values))
    histograms = Columns(trace.table()).histograms(np.arange(len(tensors)))
    sizes = [np.abs(np.array(values))[np.array(values) != 0] for values in tensors]
    assert histograms.below(exponent).tolist() == [int((size < 2.0**exponent).sum()) for size in sizes]
    assert histograms.total().tolist() == [size.size for size in sizes]


@given(tensors=st.lists(VALUES, min_size=1, max_size=5), share=st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bin_that_is_named(tensors: list[list[float]], share: float) -> None:
    trace = Trace()
    for values in tensors:
        trace.add(0, "a", "weight", np.array(values))
    exponents = Columns(trace.table()).histograms(np.arange(len(tensors))).quantile(share)
    for values, exponent in zip(tensors, exponents.tolist(), strict=True):
        size = np.sort(np.abs(np.array(values))[np.array(values) != 0])
        if size.size:
            at = max(1, int(np.ceil(share * size.size))) - 1
            assert 2.0**exponent <= size[at] < 2.0 ** (exponent + 1)
        else:
            assert exponent == 0


def test_rows_are_taken_in_the_order_given_and_none_is_none() -> None:
    trace = Trace().add(0, "a", "weight", [1.0]).add(0, "b", "weight", [4.0, 4.0])
    columns = Columns(trace.table())
    assert columns.histograms(np.array([1, 0])).total().tolist() == [2, 1]
    assert columns.histograms(np.empty(0, dtype=np.int64)).total().tolist() == []
