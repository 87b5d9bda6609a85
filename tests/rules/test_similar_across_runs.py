"""SimilarAcrossRuns: pairs of rows, tolerances, and rows that cannot be compared."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tdcore.errors import ConfigError
from tdcore.rules import SimilarAcrossRuns, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.measures.other_run import OpenedRuns, opened
from tdcore.rules.safe_pickle import dump, load
from tdcore.rules.trace import Trace
from tests.rules.judging import judge, same_in_any_cuts
from tests.rules.trainings import blobs, judge_run, network, train

W = "Net_fc.weight"
KINDS = ("weights", "gradients")


def saved(*values: Any, payload: bool = True, name: str = W, **options: Any) -> Trace:
    """Return a trace of a tensor at steps 0, 1, 2, ..."""
    trace = Trace()
    for step, each in enumerate(values):
        trace.add(step, name, "weight", each, payload=payload, **options)
    return trace


def against(other: Trace, **parameters: Any) -> SimilarAcrossRuns:
    return SimilarAcrossRuns(other_trials=[other], **parameters)


@pytest.mark.proves("TDC114", "fires")
def test_runs_whose_data_comes_in_another_order_part_at_the_first_loss(tmp_path: Path) -> None:
    batches = blobs(4)
    one = train(tmp_path / "one", network(), batches, collections=KINDS, values=True)
    other = train(tmp_path / "other", network(), batches[::-1], collections=KINDS, values=True)
    found, verdict = judge_run(SimilarAcrossRuns(other_trials=str(other)), one)
    assert verdict.status is Status.ISSUE
    assert (found[0].step, found[0].tensor) == (0, "CrossEntropyLoss_output_0")
    assert not any(finding.tensor.endswith("weight") and finding.step == 0 for finding in found[:1])
    assert str(other) in found[0].why


@pytest.mark.parametrize("values", [True, False])
def test_a_long_other_run_is_compared_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: bool
) -> None:
    batches = blobs(6)
    one = train(tmp_path / "one", network(), batches, collections=KINDS, values=values)
    same = train(tmp_path / "same", network(), batches, collections=KINDS, values=values)
    late = [*batches[:5], batches[0]]
    other = train(tmp_path / "other", network(), late, collections=KINDS, values=values)
    monkeypatch.setattr("tdcore.rules.run_source._BATCH_ROWS", 10)
    found, verdict = judge_run(SimilarAcrossRuns(other_trials=str(other)), one)
    assert (found[0].step, found[0].tensor) == (5, "CrossEntropyLoss_output_0")
    assert not any("not saved" in reason for reason in verdict.missing)
    assert not judge_run(SimilarAcrossRuns(other_trials=str(same)), one)[0]


@pytest.mark.proves("TDC114", "quiet")
@pytest.mark.parametrize("values", [True, False])
def test_the_same_training_twice_stays_quiet(tmp_path: Path, values: bool) -> None:
    one, other = (
        train(tmp_path / name, network(), blobs(4), collections=KINDS, values=values)
        for name in ("one", "other")
    )
    found, verdict = judge_run(SimilarAcrossRuns(other_trial=str(other)), one)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged > 20
    assert not verdict.missing


@pytest.mark.proves("TDC114", "not evaluable")
def test_without_another_run_or_without_common_tensors_it_is_not_evaluable(
    losses_run: Path, healthy_run: Path
) -> None:
    _, verdict = judge_run(SimilarAcrossRuns(), healthy_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert "no other run to compare with was given (other_trials)" in verdict.reason
    weights = SimilarAcrossRuns(other_trials=str(losses_run), collection_names="weights")
    _, verdict = judge_run(weights, healthy_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert f"not saved by {losses_run} at this step" in verdict.reason
    assert 'CollectionConfig(name="weights"' in verdict.fix


def test_a_run_that_is_not_there_is_an_error_that_names_it(tmp_path: Path, losses_run: Path) -> None:
    _, verdict = judge_run(SimilarAcrossRuns(other_trials=str(tmp_path / "none")), losses_run)
    assert verdict.status is Status.ERROR
    assert f"there is no run at {tmp_path / 'none'} to compare with" in verdict.reason


@pytest.mark.proves("TDC114", "boundary")
def test_a_difference_of_exactly_the_tolerance_does_not_fire_and_more_does() -> None:
    rule = against(saved([1.0, 2.0]), rtol=0.25, atol=0.5)
    assert not judge(rule, saved([1.75, 1.0]))[0]
    (finding,) = judge(rule, saved([1.75 + 1e-9, 1.0]))[0]
    assert (finding.numbers["different"], finding.numbers["kind"]) == (1, "values, other run 0")
    assert judge(rule, saved([1.75, 1.0 - 1e-9]))[0]


@pytest.mark.proves("TDC114", "boundary")
def test_statistics_are_held_against_the_same_tolerances() -> None:
    rule = against(saved([2.0], payload=False), rtol=0.0, atol=0.25)
    assert not judge(rule, saved([2.03], payload=False))[0]
    (finding,) = judge(rule, saved([2.25], payload=False))[0]
    assert finding.numbers["statistic"] == "square_sum"
    (finding,) = judge(rule, saved([2.26], payload=False))[0]
    assert (finding.numbers["kind"], finding.numbers["statistic"]) == ("statistics, other run 0", "min")
    assert "(by statistics)" in finding.why


def test_statistics_decide_when_one_run_has_no_values() -> None:
    assert not judge(against(saved([1.0, 2.0], payload=False)), saved([1.0, 2.0]))[0]
    assert judge(against(saved([1.0, 2.0], payload=False)), saved([1.0, 2.1]))[0]


def test_values_in_another_order_differ_although_statistics_agree() -> None:
    assert judge(against(saved([1.0, 2.0])), saved([2.0, 1.0]))[0]
    assert not judge(against(saved([1.0, 2.0], payload=False)), saved([2.0, 1.0]))[0]


def test_another_shape_is_a_difference() -> None:
    (finding,) = judge(against(saved(np.zeros((2, 3)))), saved(np.zeros((3, 2))))[0]
    assert "the shape is [3, 2] here and [2, 3] there" in finding.why


@pytest.mark.parametrize("payload", [True, False])
def test_values_that_are_not_finite_agree_when_they_are_the_same(payload: bool) -> None:
    odd = [np.nan, np.inf, -np.inf, 1.0]
    assert not judge(against(saved(odd, payload=payload)), saved(odd, payload=payload))[0]
    swapped = [np.nan, np.inf, np.inf, 1.0]
    assert judge(against(saved(odd, payload=payload)), saved(swapped, payload=payload))[0]


def test_rows_belong_together_by_step_of_their_mode() -> None:
    here, there = Trace(), Trace()
    for epoch in range(2):  # the other run validates more often
        here.add(2 * epoch, W, "weight", [1.0 + epoch], mode="TRAIN", mode_step=epoch, payload=True)
        here.add(2 * epoch + 1, W, "weight", [5.0], mode="EVAL", mode_step=epoch, payload=True)
        there.add(3 * epoch, W, "weight", [1.0 + epoch], mode="TRAIN", mode_step=epoch, payload=True)
        for at in range(2):
            there.add(3 * epoch + at, W, "weight", [5.0], mode="EVAL", mode_step=2 * epoch + at, payload=True)
    found, verdict = judge(against(there), here)
    assert not found
    assert verdict.judged == 4


def test_calls_and_workers_are_told_apart_and_what_is_missing_is_counted() -> None:
    here = saved([1.0]).add(0, W, "weight", [2.0], call=1, payload=True)
    here.add(0, W, "weight", [3.0], worker="worker_1", payload=True).add(1, "new", "weight", [1.0])
    there = saved([1.0]).add(0, W, "weight", [2.0], call=1, payload=True)
    found, verdict = judge(against(there), here)
    assert not found
    assert (verdict.judged, verdict.missing) == (2, {"not saved by a trace at this step": 2})


def test_several_other_runs_are_compared_one_by_one() -> None:
    rule = SimilarAcrossRuns(other_trials=[saved([1.0]), saved([2.0]), saved([3.0])])
    found = judge(rule, saved([1.0]))[0]
    assert [finding.numbers["kind"] for finding in found] == ["values, other run 1", "values, other run 2"]


def test_what_is_compared_can_be_named() -> None:
    here, there = saved([1.0]), saved([2.0])
    here.add(0, "loss", "loss", 1.0)
    there.add(0, "loss", "loss", 3.0)
    assert [f.tensor for f in judge(against(there, tensor_regex="^loss$"), here)[0]] == ["loss"]
    assert [f.tensor for f in judge(against(there, collection_names="weights"), here)[0]] == [W]


def test_findings_are_the_same_in_any_windows() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(12, 3))
    moved = values + (random.random((12, 1)) < 0.3)
    assert same_in_any_cuts(against(saved(*values)), saved(*moved))
    assert same_in_any_cuts(against(saved(*values, payload=False)), saved(*moved))


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("similar_across_runs:other_trials=runs/a,runs/b,collection_names=losses,rtol=0.1")
    assert rule == SimilarAcrossRuns(other_trials="runs/a,runs/b", collection_names="losses", rtol=0.1)


@pytest.mark.parametrize("parameters", [{"rtol": -1.0}, {"atol": -1.0}, {"tensor_regex": "("}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        SimilarAcrossRuns(**parameters)


def test_the_other_run_is_held_no_longer_than_the_judgement(tmp_path: Path) -> None:
    other = train(tmp_path, network(), blobs(2), collections=KINDS, values=True)
    look = OpenedRuns()
    assert opened(str(other), look) is opened(str(other), look)
    run = weakref.ref(opened(str(other), look))
    assert run() is not None
    load(dump(look))  # values that were read are not stored in a state
    del look
    gc.collect()
    assert run() is None
