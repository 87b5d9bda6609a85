"""Phases: their ends, and sums that do not depend on how values are grouped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.rules.columns import Mask
from tdcore.rules.measures.phases import Phase, PhaseCutter
from tdcore.rules.measures.series import NO_POINTS, Points


def points(*phases: tuple[str, list[float]], every: int = 1) -> tuple[Points, Mask]:
    """Return the values of the phases, (mode, values), as one series."""
    steps = {"TRAIN": 0, "EVAL": 0}
    rows = []
    step = 0
    for mode, values in phases:
        for value in values:
            rows.append((step, steps[mode], value, mode == "EVAL"))
            step += every
            steps[mode] += every
    step_, mode_step, value_, is_eval = (np.array(each) for each in zip(*rows, strict=True))
    return Points(unit=step_, step=step_, own_step=step_, mode_step=mode_step, value=value_), is_eval


def ends(phases: list[Phase]) -> list[tuple[bool, int, float]]:
    return [(phase.is_eval, phase.step, phase.mean) for phase in phases]


def test_a_phase_ends_when_another_begins_and_the_last_one_when_told() -> None:
    cutter = PhaseCutter()
    taken = cutter.take(*points(("TRAIN", [1.0, 3.0]), ("EVAL", [5.0]), ("TRAIN", [7.0])))
    assert ends(taken) == [(False, 1, 2.0), (True, 2, 5.0)]
    assert ends(cutter.end()) == [(False, 3, 7.0)]
    assert cutter.end() == []


def test_phases_of_one_mode_are_told_apart_when_those_between_saved_nothing() -> None:
    series, is_eval = points(("EVAL", [1.0, 2.0]), ("TRAIN", [0.0]), ("EVAL", [3.0]))
    only = np.flatnonzero(is_eval)
    cutter = PhaseCutter()
    assert ends(cutter.take(series.at(only), is_eval[only])) == [(True, 1, 1.5)]


def test_steps_that_were_not_saved_do_not_end_a_phase() -> None:
    cutter = PhaseCutter()
    assert cutter.take(*points(("TRAIN", [1.0, 2.0, 3.0]), every=10)) == []


def test_values_that_come_late_change_nothing() -> None:
    series, is_eval = points(("TRAIN", [1.0, 2.0, 3.0]))
    cutter = PhaseCutter()
    cutter.take(series, is_eval)
    assert cutter.take(series, is_eval) == []
    assert cutter.take(NO_POINTS, is_eval[:0]) == []
    assert ends(cutter.end()) == [(False, 2, 2.0)]


def test_the_standard_error_is_that_of_the_mean() -> None:
    values = np.random.default_rng(0).normal(1e6, 1.0, 50)
    cutter = PhaseCutter()
    cutter.take(*points(("EVAL", values.tolist())))
    (phase,) = cutter.end()
    assert phase.mean == pytest.approx(values.mean())
    assert phase.standard_error == pytest.approx(values.std(ddof=1) / np.sqrt(50))
    cutter.take(*points(("EVAL", [1.0])))
    assert Phase(is_eval=True, offset=0, first=1.0, count=1).standard_error == 0.0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_cuts_give_the_same_phases_to_the_last_bit(seed: int) -> None:
    random = np.random.default_rng(seed)
    series, is_eval = points(
        *[
            ("EVAL" if at % 2 else "TRAIN", random.random(int(random.integers(1, 9))).tolist())
            for at in range(6)
        ]
    )
    whole, parts = PhaseCutter(), PhaseCutter()
    expected = whole.take(series, is_eval) + whole.end()
    cuts = np.sort(random.integers(0, series.step.size + 1, 4))
    found: list[Phase] = []
    for rows in np.split(np.arange(series.step.size), cuts):
        found += parts.take(series.at(rows), is_eval[rows])
    assert found + parts.end() == expected
