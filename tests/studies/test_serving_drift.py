"""The study of drift: the rule notices it, the inputs are kept, and the report names exactly what moved."""

from __future__ import annotations

import pytest

import tdcore as td
from tests.studies.running import Study, not_printed, page_of, run_study

MOVED = {f"{which} {what}" for which in ("mean", "worst") for what in ("radius", "perimeter", "area")}
MOVED |= {f"{what} error" for what in ("radius", "perimeter", "area")}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("serving_drift", tmp_path_factory.mktemp("study"))


def test_the_drift_costs_right_answers_and_the_factors_of_the_report_bring_them_back(study: Study) -> None:
    before, after = study.numbers("faulty:")
    assert before > 94
    assert after < 67
    assert min(study.numbers("repaired:")) > 94
    assert study.lines[-1].strip() == "no issue"


def test_the_rule_fires_at_the_first_drifting_requests(study: Study) -> None:
    fired = [line for line in study.lines if "ActivationDrift at PREDICT step" in line]
    steps = [int(line.split("PREDICT step ")[1].split(",")[0]) for line in fired]
    assert min(steps) == 62  # requests 60, 61 and 62 are three in a row


def test_the_report_names_the_lengths_and_areas_only(study: Study) -> None:
    names = {line.strip().split(":")[0] for line in study.lines if ": median " in line}
    assert names == MOVED


def test_inputs_of_the_first_and_of_drifting_requests_only_were_kept(study: Study) -> None:
    trial = td.create_trial(study.folder / "faulty")
    steps = trial.tensor("Classifier_input_0").steps(td.modes.PREDICT)
    assert steps[:20] == list(range(20))
    assert len(steps) == 40
    assert steps[20] > 60
    (request,) = trial.notes()["capture_requests"]
    assert request["tensors"] == ["Classifier_input_0"]
    assert request["by"] == "rule ActivationDrift"


def test_the_picture_is_drawn(study: Study) -> None:
    assert [path.name for path in study.folder.glob("*.png")] == ["serving_drift.png"]


def test_the_page_shows_lines_that_the_script_prints(study: Study) -> None:
    assert not_printed(study, page_of("serving_drift")) == []
