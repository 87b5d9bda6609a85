"""UnchangedTensor: when two saves are equal, by statistics and by values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Engine, Status, UnchangedTensor
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, losses, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

NAME = "Net_fc.weight"
RULE = UnchangedTensor(tensor_regex="fc")


def saved(*values: Any, payload: bool = True, dtype: str = "F32") -> Trace:
    trace = Trace()
    for step, each in enumerate(values):
        trace.add(step, NAME, "weight", np.asarray(each), payload=payload, dtype=dtype)
    return trace


def one_batch(place: Path, rate: float) -> Path:
    return train(
        place,
        network(),
        blobs(1) * 5,
        collections=["gradients"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
    )


@pytest.mark.proves("TDC121", "fires")
def test_one_batch_with_a_learning_rate_of_zero_gives_the_same_loss_and_gradients(tmp_path: Path) -> None:
    found, _ = judge_run(UnchangedTensor(), one_batch(tmp_path, 0.0))
    assert {finding.step for finding in found} == {2}
    assert {"CrossEntropyLoss_output_0", "gradient/Sequential_0.weight"} <= {f.tensor for f in found}


@pytest.mark.proves("TDC121", "quiet")
def test_the_same_batch_with_a_learning_rate_stays_quiet(tmp_path: Path) -> None:
    found, verdict = judge_run(UnchangedTensor(), one_batch(tmp_path, 0.1))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC121", "not evaluable")
def test_a_run_without_the_tensors_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(UnchangedTensor(collection_names="gradients"), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


@pytest.mark.proves("TDC121", "boundary")
@pytest.mark.parametrize(("change", "fires"), [(0.0099, True), (0.0101, False)])
def test_a_change_within_the_tolerance_is_none(change: float, fires: bool) -> None:
    rule = UnchangedTensor(rtol=0.0, atol=0.01)
    found, _ = judge(rule, losses([1.0, 1.0 + change, 1.0]))
    assert bool(found) == fires
    of_new = UnchangedTensor(rtol=0.01, atol=0.0, num_steps=2)  # relative to the newer value
    assert judge(of_new, losses([0.990001, 1.0]))[0]
    assert not judge(of_new, losses([1.0, 0.99]))[0]


def test_num_steps_counts_saves_and_a_tensor_is_reported_once_until_it_changes() -> None:
    trace = losses([1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0], every=10)
    assert [finding.step for finding in same_in_any_cuts(UnchangedTensor(), trace)] == [20, 80]
    assert [finding.step for finding in judge(UnchangedTensor(num_steps=2), trace)[0]] == [10, 50, 70]


def test_equal_statistics_are_enough_and_nothing_is_read() -> None:
    source = saved(*[np.arange(5.0)] * 3).source()
    source._payloads.clear()  # reading the value would raise
    engine = Engine(source, [RULE])
    (finding,) = engine.step()
    assert finding.why == "unchanged by its statistics over 3 saved steps"
    assert not engine.verdicts(finished=True)[0].missing


def test_values_are_compared_where_statistics_are_close_but_not_equal() -> None:
    base = np.linspace(1, 2, 50)
    trace = saved(*[base * (1 + 1e-7 * at) for at in range(5)])
    found = same_in_any_cuts(RULE, trace)
    assert [(finding.step, finding.numbers["kind"]) for finding in found] == [(3, "values")]


def test_a_tensor_that_only_statistics_take_for_the_same_is_not_reported() -> None:
    base = np.linspace(-1, 1, 50)
    trace = saved(*[np.roll(base, at) * (1 + 1e-7 * at) for at in range(6)])
    found = same_in_any_cuts(RULE, trace)
    assert not found


def test_close_statistics_without_values_are_not_judged() -> None:
    base = np.linspace(1, 2, 50)
    trace = saved(*[base * (1 + 1e-7 * at) for at in range(5)], payload=False)
    found, verdict = judge(RULE, trace)
    assert not found
    assert verdict.missing == {"statistics agree within the tolerance, and the values were not saved": 4}


def test_shuffled_integers_are_not_unchanged() -> None:
    base = np.arange(10)
    assert not same_in_any_cuts(RULE, saved(*[np.roll(base, at) for at in range(6)], dtype="I64"))
    assert same_in_any_cuts(RULE, saved(*[base] * 6, dtype="I64"))


def test_nan_is_the_same_only_when_that_is_wanted() -> None:
    values = [np.nan, 1.0, np.inf]
    assert not judge(RULE, saved(values, values, values))[0]
    assert judge(UnchangedTensor(tensor_regex="fc", equal_nan=True), saved(values, values, values))[0]


def test_rounding_errors_below_the_tolerance_are_not_unchanged() -> None:
    noise = np.random.default_rng(0).normal(0.0, 1e-9, (4, 8))
    assert not same_in_any_cuts(RULE, saved(*noise))
    assert same_in_any_cuts(RULE, saved(*[noise[0]] * 3))


def test_another_shape_is_a_change() -> None:
    assert not judge(RULE, saved(np.zeros(3), np.zeros(4), np.zeros(3)))[0]


@given(
    values=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=6),
    change=st.lists(st.floats(-2e-3, 2e-3), min_size=6, max_size=6),
)
def test_statistics_never_call_a_close_pair_a_changed_one(values: list[float], change: list[float]) -> None:
    older: npt.NDArray[np.float64] = np.array([*values, 1.0])  # not all of it within 10 atol of zero
    newer = older + np.array([*change[: len(values)], 0.0])
    rule = UnchangedTensor(tensor_regex="fc", rtol=1e-3, atol=1e-3, num_steps=2)
    # Three saves, because values are compared from the second pair in a row on.
    found, _ = judge(rule, saved(newer, older, newer))
    forth, back = (bool(np.allclose(a, b, rtol=1e-3, atol=1e-3)) for a, b in ((newer, older), (older, newer)))
    if forth and back:
        assert found
    if not forth and not back:
        assert not found


def test_parameters_of_the_older_rule_come_as_text() -> None:
    rule = load_rule("unchanged_tensor:collection_names=losses,num_steps=5,rtol=1e-3,atol=0,equal_nan=True")
    assert rule == UnchangedTensor(
        collection_names="losses", num_steps=5, rtol=1e-3, atol=0.0, equal_nan=True
    )


@pytest.mark.parametrize(
    "parameters", [{"num_steps": 1}, {"rtol": -1.0}, {"atol": float("nan")}, {"tensor_regex": "("}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        UnchangedTensor(**parameters)


def test_rounding_errors_are_unchanged_by_the_older_rule_alone() -> None:
    trace = saved(*(scale * np.array([1e-9, -2e-9]) for scale in (1.0, 2.0, -1.0, 1.5)))
    assert not judge(RULE, trace)[0]
    compat = UnchangedTensor(tensor_regex="fc", compat=True)
    assert [finding.step for finding in same_in_any_cuts(compat, trace)] == [3]
    assert not judge(compat, saved(*(scale * np.array([1e-7, -2e-7]) for scale in (1.0, 2.0, -1.0, 1.5))))[0]


def test_a_tensor_without_elements_is_not_judged() -> None:
    found, verdict = judge(RULE, saved(*[np.empty((0, 4))] * 5))
    assert not found
    assert verdict.status is Status.NOT_EVALUABLE
