"""FeatureImportanceOverweight: the share of the largest features, and steps without usable importances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.rules import FeatureImportanceOverweight, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import judge_run
from tests.rules.trees import grown_tree, save_trees, two_moons


def shares(*steps: list[float], kind: str = "weight") -> Trace:
    """Return a trace of importances of features f0, f1, ... at each step."""
    trace = Trace()
    for step, values in enumerate(steps):
        for at, value in enumerate(values):
            trace.add(step, f"feature_importance/{kind}/f{at}", "custom", np.float64(value))
    return trace


@pytest.mark.proves("TDC116", "fires")
def test_a_tree_that_was_given_the_label_among_its_features_is_found(tmp_path: Path) -> None:
    points, labels = two_moons(features=8)
    # a feature that leaks the target
    points[:, 5] = labels + 0.1 * np.random.default_rng(0).normal(size=labels.size)
    place = save_trees(tmp_path, [grown_tree(points, labels, max_depth=3)], features=8)
    (finding,), verdict = judge_run(FeatureImportanceOverweight(nfeatures=2, threshold=0.6), place)
    assert verdict.status is Status.ISSUE
    assert "f5" in finding.why


@pytest.mark.proves("TDC116", "quiet")
def test_a_tree_that_uses_all_its_features_stays_quiet(tmp_path: Path) -> None:
    place = save_trees(tmp_path, [grown_tree(*two_moons(features=8), max_depth=12)], features=8)
    found, verdict = judge_run(FeatureImportanceOverweight(nfeatures=2, threshold=0.6), place)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 1


@pytest.mark.proves("TDC116", "not evaluable")
def test_the_rule_does_not_apply_to_a_network_without_importances(losses_run: Path) -> None:
    _, verdict = judge_run(FeatureImportanceOverweight(), losses_run)
    assert verdict.status is Status.NOT_APPLICABLE
    assert (
        'name="feature_importance", include_regex=[".*feature_importance/(weight|split)"]'
        in FeatureImportanceOverweight().needs().fix
    )


@pytest.mark.proves("TDC116", "boundary")
def test_a_share_of_exactly_the_threshold_does_not_fire_and_above_it_does() -> None:
    rule = FeatureImportanceOverweight(threshold=0.75)
    assert not judge(rule, shares([4.0, 4.0, 4.0, 2.0, 2.0]))[0]
    (finding,) = judge(rule, shares([4.0, 4.0, 4.0 + 1e-6, 2.0, 2.0]))[0]
    assert finding.tensor == "feature_importance/weight/f2"
    assert judge(FeatureImportanceOverweight(threshold=0.7499), shares([4.0, 4.0, 4.0, 2.0, 2.0]))[0]


@pytest.mark.proves("TDC116", "boundary")
def test_as_many_features_as_are_summed_are_not_judged_and_one_more_is() -> None:
    _, verdict = judge(FeatureImportanceOverweight(), shares([0.5, 0.3, 0.2]))
    assert verdict.status is Status.NOT_EVALUABLE
    assert "step with 3 features or fewer" in verdict.reason
    assert judge(FeatureImportanceOverweight(), shares([0.5, 0.3, 0.15, 0.05]))[0]


def test_importances_need_not_sum_to_one() -> None:
    assert not judge(FeatureImportanceOverweight(), shares([10.0] * 5))[0]
    assert judge(FeatureImportanceOverweight(), shares([100.0, 10.0, 10.0, 10.0, 10.0]))[0]


def test_types_and_steps_are_judged_apart_in_any_windows() -> None:
    trace = shares([0.9, 0.05, 0.03, 0.02], [0.25] * 4, [0.9, 0.05, 0.03, 0.02])
    for row in shares([0.25] * 4, [0.25] * 4, [0.25] * 4, kind="gain").rows:
        trace.rows.append(row)
    rule = FeatureImportanceOverweight(tensor_regex="feature_importance/weight,feature_importance/gain")
    found = same_in_any_cuts(rule, trace)
    assert [(finding.step, finding.numbers["kind"]) for finding in found] == [
        (0, "feature_importance/weight"),
        (2, "feature_importance/weight"),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_shares_are_those_of_sorted_lists(seed: int) -> None:
    random = np.random.default_rng(seed)
    values = random.gamma(0.3, size=(8, 7))
    found = judge(FeatureImportanceOverweight(), shares(*values.tolist()))[0]
    expected = np.sort(values, axis=1)[:, -3:].sum(axis=1) / values.sum(axis=1)
    assert [finding.step for finding in found] == np.flatnonzero(expected > 0.8).tolist()
    measured = [float(finding.numbers["share"]) for finding in found]
    np.testing.assert_allclose(measured, expected[expected > 0.8])


def test_importances_that_are_all_zero_or_no_scalars_are_not_judged() -> None:
    trace = shares([0.0] * 5)
    trace.add(1, "feature_importance/weight/all", "custom", [1.0, 2.0])
    _, verdict = judge(FeatureImportanceOverweight(), trace)
    assert verdict.missing == {"importance is not a scalar": 1, "importances sum to 0": 1}


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("FeatureImportanceOverweight:threshold=0.5,nfeatures=2,tensor_regex=.*gain")
    assert rule == FeatureImportanceOverweight(threshold=0.5, nfeatures=2, tensor_regex=".*gain")


@pytest.mark.parametrize(
    "parameters", [{"threshold": 1.5}, {"nfeatures": 0}, {"tensor_regex": ""}, {"tensor_regex": "("}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FeatureImportanceOverweight(**parameters)
