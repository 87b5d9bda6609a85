"""The study of a divergence: the first bad tensor is named before the loss is bad, and the repair trains."""

from __future__ import annotations

import pytest

import tdcore as td
from tdcore.analysis.divergence import chain_of_bad_tensors
from tests.studies.running import Study, run_study

SCORES = "blocks.1.attention.scores_output_0"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("transformer_divergence", tmp_path_factory.mktemp("study"))


def test_the_rule_names_the_scores_of_attention(study: Study) -> None:
    start = study.lines.index(next(line for line in study.lines if "FirstNonFinite: issue" in line))
    assert study.lines[start + 1].strip().startswith(f"{SCORES}: the first value that is not finite")


def test_the_chain_leads_from_the_loss_back_to_an_overflow_at_an_earlier_step(study: Study) -> None:
    chain = chain_of_bad_tensors(td.create_trial(study.folder / "faulty"))
    first, loss = chain[0], next(each for each in chain if each.kind == "loss")
    assert first.name == SCORES
    assert first.infinite > 0
    assert first.nan == 0
    assert 1e3 < first.sizes[-1] < 65_504
    assert first.growth > 1
    assert loss.step > first.step


def test_the_repaired_training_learns_and_has_no_finding(study: Study) -> None:
    assert any(line.startswith("faulty") and "loss nan" in line for line in study.lines)
    steps, loss = study.numbers("repaired:")
    assert steps == 120
    assert loss < 2.6
    assert study.lines[-1].strip() == "FirstNonFinite: no issue"
    assert chain_of_bad_tensors(td.create_trial(study.folder / "repaired")) == []


def test_both_pictures_are_drawn(study: Study) -> None:
    assert len(list(study.folder.glob("transformer_divergence_*.png"))) == 2
