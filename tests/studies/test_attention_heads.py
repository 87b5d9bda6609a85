"""The study of attention heads: the missing mask is visible, and redundant heads cost less than others."""

from __future__ import annotations

import numpy as np
import pytest

import tdcore as td
from tests.studies.running import Study, not_printed, page_of, run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("attention_heads", tmp_path_factory.mktemp("study"))


def futures(study: Study, name: str, block: int) -> list[float]:
    """Share of the weight on future tokens, for each head of a block."""
    start = next(row for row, line in enumerate(study.lines) if line.startswith(name))
    lines = [line for line in study.lines[start : start + 9] if f"block {block} head" in line]
    return [float(line.split("future ")[1].split(",")[0]) for line in lines]


def test_faulty_heads_look_at_the_future_and_repaired_heads_do_not(study: Study) -> None:
    assert len(futures(study, "faulty", 0)) == 4
    assert min(futures(study, "faulty", 0)) > 0.5
    assert futures(study, "repaired", 0) == futures(study, "repaired", 1) == [0.0] * 4


def test_the_faulty_loss_is_too_good_and_the_repaired_loss_is_that_of_a_prediction(study: Study) -> None:
    assert study.numbers("faulty: loss")[0] < 0.5
    assert 1 < study.numbers("repaired: loss")[0] < 2.2


def test_redundant_heads_cost_less_than_other_heads(study: Study) -> None:
    assert any(" is like head " in line for line in study.lines)
    redundant, others = study.numbers("the loss rises by")
    assert redundant < others / 1.5
    _, whole, smaller = study.numbers("after")
    assert smaller < whole + 0.2


def test_the_recorded_weights_are_a_causal_softmax(study: Study) -> None:
    weights = td.create_trial(study.folder / "repaired").tensor("blocks.1.attention.weights_output_0")
    values = weights.value(0, td.modes.EVAL)
    assert values.shape == (64, 4, 48, 48)
    assert values.sum(axis=-1) == pytest.approx(1.0, abs=1e-4)
    assert not np.triu(values, 1).any()


def test_the_picture_is_drawn(study: Study) -> None:
    assert [path.name for path in study.folder.glob("*.png")] == ["attention_heads.png"]


def test_the_page_shows_lines_that_the_script_prints(study: Study) -> None:
    assert not_printed(study, page_of("attention_heads")) == []
