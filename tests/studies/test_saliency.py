"""The study of saliency: the faulty network looks at the mark in the corner, the repaired one does not."""

from __future__ import annotations

import numpy as np
import pytest

import tdcore as td
from tdcore.analysis import saliency
from tests.studies.running import Study, not_printed, page_of, run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("saliency", tmp_path_factory.mktemp("study"))


def test_the_rule_finds_the_digit_of_the_mark_in_the_faulty_training_only(study: Study) -> None:
    repaired = study.lines.index("repaired training:")
    findings = [at for at, line in enumerate(study.lines) if "Confusion" in line]
    assert any("predictions of class 3 " in study.lines[at] for at in findings)
    assert all(at < repaired for at in findings)


def test_the_faulty_network_looks_at_the_corner_and_the_repaired_one_does_not(study: Study) -> None:
    faulty, images, *_ = study.numbers("faulty: saliency in the corner")
    repaired = study.numbers("repaired: saliency in the corner")[0]
    assert images > 50
    assert faulty > 1.5 * repaired
    assert repaired < 9


def test_the_repaired_network_is_better(study: Study) -> None:
    before, after = (float(line.split()[1]) for line in study.lines if "accuracy" in line)
    assert before < 0.85
    assert after > 0.93


@pytest.mark.parametrize("name", ["faulty", "repaired"])
def test_the_terms_of_the_captured_step_add_up_to_the_captured_scores(study: Study, name: str) -> None:
    trial = td.create_trial(study.folder / f"{name}-explained")
    found = saliency.from_trial(trial, 0)
    scores = trial.tensor("Net_output_0").value(0, td.ModeKeys.EVAL).max(axis=1)
    np.testing.assert_allclose(found.total, scores, rtol=1e-4)


def test_the_page_shows_lines_that_the_script_prints(study: Study) -> None:
    assert not_printed(study, page_of("saliency")) == []
