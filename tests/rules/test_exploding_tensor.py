"""ExplodingTensor: the tensors that count as exploding."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tdcore.errors import ConfigError
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules import ExplodingTensor, FirstNonFinite, Status
from tdcore.rules.engine import Engine
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

NAN, INF = math.nan, math.inf


def names(rule: ExplodingTensor | FirstNonFinite, trace: Trace) -> list[str]:
    return [finding.tensor for finding in judge(rule, trace)[0]]


def mixed() -> Trace:
    trace = Trace(collections={"custom": ["c"]})
    for name, kind, value in (
        ("a", "weight", NAN),
        ("b", "gradient", INF),
        ("c", "custom", -INF),
        ("d", "loss", 1.0),
    ):
        trace.add(0, name, kind, [1.0, value])
    return trace


@pytest.mark.proves("TDC102", "boundary")
def test_nan_and_both_infinities_fire_in_order_of_execution() -> None:
    assert names(ExplodingTensor(), mixed()) == ["a", "b", "c"]


def test_only_nan_leaves_infinities_alone() -> None:
    assert names(ExplodingTensor(only_nan=True), mixed()) == ["a"]


@pytest.mark.proves("TDC102", "boundary")
def test_the_largest_finite_values_do_not_fire() -> None:
    found, verdict = judge(ExplodingTensor(), Trace().add(0, "a", "weight", [1.7e308, -1.7e308]))
    assert not found
    assert verdict.status is Status.NO_ISSUE


def test_a_collection_limits_what_is_judged() -> None:
    assert names(ExplodingTensor(collection_names="gradients"), mixed()) == ["b"]
    assert names(ExplodingTensor(collection_names=["custom"]), mixed()) == ["c"]


def test_collections_and_patterns_are_joined() -> None:
    assert names(ExplodingTensor(collection_names="gradients", tensor_regex="^a$"), mixed()) == ["a", "b"]


def test_a_list_may_come_as_one_string_with_commas() -> None:
    assert names(ExplodingTensor(tensor_regex="^a$, ^c$"), mixed()) == ["a", "c"]


def test_patterns_are_searched_and_not_anchored() -> None:
    trace = Trace().add(0, "Net_conv1.weight", "weight", [NAN])
    assert names(ExplodingTensor(tensor_regex="conv"), trace) == ["Net_conv1.weight"]


def test_the_collection_all_is_everything() -> None:
    assert names(ExplodingTensor(collection_names="all"), mixed()) == ["a", "b", "c"]


def test_an_unknown_collection_is_not_evaluable() -> None:
    _, verdict = judge(ExplodingTensor(collection_names="no_such"), mixed())
    assert verdict.status is Status.NOT_EVALUABLE
    assert "'no_such'" in verdict.reason


def test_the_finding_counts_each_kind() -> None:
    found, _ = judge(ExplodingTensor(), Trace().add(0, "a", "weight", [NAN, INF, -INF, -INF, 0.0]))
    assert found[0].numbers == {"nan": 1, "pos_inf": 1, "neg_inf": 2, "elements": 5}
    assert found[0].why == "1 NaN, 1 +Inf, 2 -Inf among 5 values"


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a regular expression"):
        ExplodingTensor(tensor_regex="(")


MASK = np.triu(np.full((4, 4), -INF), 1)


def test_an_attention_mask_is_meant_to_be_infinite() -> None:
    trace = Trace().add(0, "layers_input_mask", "input", MASK)
    assert names(ExplodingTensor(), trace) == []
    assert names(ExplodingTensor(compat=True), trace) == ["layers_input_mask"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("output", MASK),
        ("input", MASK + 1),
        ("input", np.full(4, -INF)),
        ("input", [0.0, -INF, NAN]),
        ("input", [0.0, -INF, INF]),
    ],
    ids=["an output", "other values", "no value is finite", "a NaN", "both infinities"],
)
def test_what_is_not_quite_an_attention_mask_is_reported(kind: str, values: Any) -> None:
    assert names(ExplodingTensor(), Trace().add(0, "x", kind, values)) == ["x"]


@pytest.mark.parametrize("rule", [ExplodingTensor, FirstNonFinite])
@pytest.mark.parametrize("name", ["trees/Split", "fold_0/trees/Missing"])
def test_nan_at_the_leaves_of_trees_is_not_a_fault(rule: Any, name: str) -> None:
    assert names(rule(), Trace().add(0, name, "custom", [0.5, NAN])) == []
    assert names(rule(only_nan=True), Trace().add(0, name, "custom", [0.5, NAN])) == []
    assert names(rule(), Trace().add(0, name, "custom", [0.5, NAN, INF])) == [name]
    assert names(rule(), Trace().add(0, "trees/Gain", "custom", [0.5, NAN])) == ["trees/Gain"]
    assert names(ExplodingTensor(compat=True), Trace().add(0, name, "custom", [0.5, NAN])) == [name]


@pytest.mark.parametrize("rule", [ExplodingTensor, FirstNonFinite])
def test_a_run_whose_patterns_have_used_up_their_time_is_judged(
    rule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tdcore.rules.engine.RunPatterns", partial(RunPatterns, seconds=0))
    trace = Trace().add(0, "a", "weight", NAN).add(0, "trees/Split", "custom", [0.5, NAN])
    engine = Engine(trace.source(), [rule()], rules_of_run=True)
    assert [finding.tensor for finding in engine.step()] == ["a"]


@pytest.mark.proves("TDC102", "fires")
def test_a_learning_rate_that_is_far_too_high_ends_in_values_that_are_not_finite(tmp_path: Path) -> None:
    place = train(
        tmp_path,
        network(),
        [(1e3 * inputs, labels) for inputs, labels in blobs(8)],
        collections=["gradients"],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e6),
    )
    found, _ = judge_run(ExplodingTensor(), place)
    assert {"CrossEntropyLoss_output_0", "gradient/Sequential_0.weight"} <= {f.tensor for f in found}


@pytest.mark.proves("TDC102", "quiet")
def test_a_training_that_learns_stays_quiet(healthy_run: Path) -> None:
    found, verdict = judge_run(ExplodingTensor(), healthy_run)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 0


@pytest.mark.proves("TDC102", "not evaluable")
def test_a_run_without_the_named_collection_is_not_evaluable(losses_run: Path) -> None:
    _, verdict = judge_run(ExplodingTensor(collection_names="gradients"), losses_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="gradients"' in verdict.fix


def test_windows_do_not_matter() -> None:
    trace = Trace()
    for step in range(6):
        trace.add(step, "a", "weight", [NAN if step % 2 else 1.0])
    assert [finding.step for finding in same_in_any_cuts(ExplodingTensor(), trace)] == [1, 3, 5]
