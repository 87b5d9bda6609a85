"""Reduction to pixel columns, against a loop over the columns in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from tdcore.view.answers.buckets import StepColumns, points, reduced
from tests.view.contract import check, unpacked

Floats = npt.NDArray[np.float64]

STEPS = of_numpy.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 40) | st.integers(0, 1 << 62))
VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, columns=st.integers(1, 70))
def test_columns_are_disjoint_ranges_that_contain_all_steps(
    steps: npt.NDArray[np.int64], columns: int
) -> None:
    over = StepColumns.over(steps, columns)
    assert len(over) <= columns
    assert (over.first <= over.last).all()
    assert (over.last[:-1] < over.first[1:]).all()
    assert len(over.of_row) == len(steps)
    assert ((over.first[over.of_row] <= steps) & (steps <= over.last[over.of_row])).all()
    assert np.isin(over.first, steps).all()
    assert np.isin(over.last, steps).all()
    if len(np.unique(steps)) <= columns:
        assert np.array_equal(over.first, np.unique(steps))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), groups=st.integers(1, 5))
def test_groups_have_the_mean_and_the_extremes_of_their_finite_values(
    data: st.DataObject, groups: int
) -> None:
    size = data.draw(st.integers(0, 40))
    values = data.draw(of_numpy.arrays(np.float64, size, elements=VALUES))
    group = data.draw(of_numpy.arrays(np.int64, size, elements=st.integers(0, groups - 1)))
    found = reduced(values, group, groups)
    for each in range(groups):
        mine = values[(group == each) & np.isfinite(values)]
        assert found.finite[each] == len(mine)
        if not len(mine):
            assert np.isnan([found.mean[each], found.min[each], found.max[each]]).all()
            continue
        assert (found.min[each], found.max[each]) == (mine.min(), mine.max())
        largest = np.abs(mine).max()
        expected = largest * float(np.mean(mine / largest)) if largest > 1e-300 else float(np.mean(mine))
        assert abs(found.mean[each] - expected) <= 1e-12 * largest + 5e-324 * len(mine)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), columns=st.integers(1, 20))
def test_a_curve_has_the_counts_of_bad_values(data: st.DataObject, columns: int) -> None:
    steps = data.draw(STEPS)
    values = data.draw(of_numpy.arrays(np.float64, len(steps), elements=VALUES))
    bad = data.draw(of_numpy.arrays(np.bool_, len(steps)))
    curve = points(steps, values, columns, bad=bad)
    check(curve, "Points")
    assert unpacked(curve["bad"]).sum() == np.sum(bad | ~np.isfinite(values))
    assert unpacked(curve["step"]).tolist() == [
        float(step) for step in StepColumns.over(steps, columns).first
    ]
    finite = values[np.isfinite(values)]
    for name, expected in (("min", np.min), ("max", np.max)):
        numbers = unpacked(curve[name])
        if len(finite):
            extreme = expected(numbers[~np.isnan(numbers)])
            assert extreme == expected(finite) or np.isclose(extreme, expected(finite), rtol=1e-6, atol=0)


def test_a_number_outside_of_single_precision_is_not_rounded_to_zero_or_infinity() -> None:
    for size in (1e-300, 1e300, 1e-40):
        curve = points(np.array([3]), np.array([size]), 5)
        assert unpacked(curve["mean"]).tolist() == [size]
        assert curve["mean"]["type"] == "f64"
