"""Trial.why_absent: the reason why a tensor has no value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tdcore import create_trial
from tdcore.errors import InvalidWorker, TensorUnavailableForStep
from tdcore.modes import ModeKeys
from tests.trial.writer import RunWriter

GRADIENT = "gradient/Net_fc.weight"
REASONS = {
    "no_backward": "no backward reached it in this step",
    "not_stepped": "its optimizer did not step in this step",
    "cleared": "its gradient was cleared before it was used",
    "accumulated": "a later step has the gradient: no optimizer stepped before the next saved step",
    "scaler_skipped": "the gradient scaler skipped the optimizer's step",
}


def note(run: RunWriter, **notes: Any) -> None:
    run.put("collections.json", {"format": 1, "attempts": {"0": {"collections": {}, **notes}}})


@pytest.mark.parametrize("reason", REASONS)
def test_an_absent_row_gives_its_reason_in_words(run: RunWriter, reason: str) -> None:
    run.add(GRADIENT, None, step=3, kind="gradient", status="absent", reason=reason)
    run.flush()
    trial = create_trial(run.root)
    assert trial.why_absent(GRADIENT, 3) == REASONS[reason]
    with pytest.raises(TensorUnavailableForStep, match=f"no value at this step: {REASONS[reason]}$"):
        trial.tensor(GRADIENT).value(3)


def test_an_absent_row_without_a_reason_falls_back_to_the_notes(run: RunWriter) -> None:
    run.add(GRADIENT, None, step=3, kind="gradient", status="absent")
    run.flush()
    trial = create_trial(run.root)
    assert trial.why_absent(GRADIENT, 3).startswith("it had no value at this step")
    note(run, frozen=["Net_fc.weight"])
    assert trial.why_absent(GRADIENT, 3) == "Net_fc.weight is frozen, so it has no gradient"


def test_a_reason_of_a_newer_writer_is_shown_as_it_is(run: RunWriter) -> None:
    run.add(GRADIENT, None, step=3, kind="gradient", status="absent", reason="lost_in_space")
    run.flush()
    assert create_trial(run.root).why_absent(GRADIENT, 3) == "lost_in_space"


def test_skipped_and_stats_only_rows_say_what_is_there(run: RunWriter) -> None:
    run.add("skipped", None, step=0, status="skipped", reason="sparse")
    run.add("statistics", np.ones(2), step=0, payload=False)
    run.flush()
    trial = create_trial(run.root)
    assert trial.why_absent("skipped", 0) == "it was not captured (sparse)"
    assert trial.why_absent("statistics", 0) == "it was saved without its values: its statistics were saved"


def test_a_tensor_that_has_a_value_gives_no_reason(run: RunWriter) -> None:
    run.add("x", np.ones(2), step=0)
    run.flush()
    assert create_trial(run.root).why_absent("x", 0) == ""


def test_a_step_without_rows_of_the_tensor_names_the_steps_that_have_some(run: RunWriter) -> None:
    for step in range(0, 200, 10):
        run.add("x", np.ones(2), step=step, mode_step=step // 10)
    run.add("y", np.ones(2), step=0, mode_step=0)
    run.add("nothing", None, step=0, mode_step=0, status="absent")
    run.flush()
    run.end()
    trial = create_trial(run.root)
    assert trial.why_absent("y", 10) == "not saved at this step; it was saved at 0"
    assert trial.why_absent("y", 10, ModeKeys.TRAIN).endswith("it was saved at 0")
    text = trial.why_absent("x", 55)
    assert text == (
        "not saved at this step; it was saved at 20 steps, and the nearest are "
        "10, 20, 30, 40, 50, 60, 70, 80, 90, 100"
    )
    assert trial.why_absent("nothing", 10) == "not saved at this step, nor at any other step"
    assert trial.why_absent("unheard_of", 10) == "not saved at this step, nor at any other step"


def test_a_step_that_may_still_come_is_told_from_one_that_will_not(run: RunWriter) -> None:
    for step in (0, 1):
        run.add("x", np.ones(2), step=step)
    run.flush()
    assert "which is not complete yet (last: 0)" in create_trial(run.root).why_absent("x", 7)


def test_a_worker_may_lack_what_another_has(run: RunWriter) -> None:
    other = RunWriter(run.root, worker="worker_1")
    run.add("x", np.ones(2), step=0)
    other.add("x", np.ones(2), step=4)
    run.flush()
    other.flush()
    run.end()
    other.end()
    trial = create_trial(run.root)
    assert trial.why_absent("x", 0) == ""
    found = trial.why_absent("x", 0, worker="worker_1")
    assert found == "not saved by worker_1 at this step; it was saved at 4"
    with pytest.raises(InvalidWorker):
        trial.why_absent("x", 0, worker="worker_7")


def test_the_reason_of_a_module_counts_for_the_modules_below_it(run: RunWriter) -> None:
    run.add("x", np.ones(2), step=0)
    run.flush()
    note(
        run,
        never_called={"encoder": "its parent does not call it", "encoder.layers.1": "no forward called it"},
        not_tapped={"decoder": "a fused kernel"},
    )
    trial = create_trial(run.root)
    assert trial.why_absent("encoder.layers.0.fc_output_0") == ": encoder: its parent does not call it"
    assert trial.why_absent("encoder.layers.1.fc_input_0", 0) == "encoder.layers.1: no forward called it"
    assert trial.why_absent("output_gradient/decoder.fc_output_0") == ": decoder: a fused kernel"
    assert trial.why_absent("encoders.fc_output_0") == ""


def test_parameters_that_no_optimizer_holds_are_named(run: RunWriter) -> None:
    run.add("x", np.ones(2), step=0)
    run.flush()
    note(run, not_owned=["Net_fc.weight"])
    trial = create_trial(run.root)
    assert trial.why_absent(GRADIENT).startswith(": no optimizer holds Net_fc.weight")
    assert trial.why_absent(GRADIENT, 0).startswith("no optimizer holds Net_fc.weight")
    assert trial.why_absent("Net_fc.weight") == ""
