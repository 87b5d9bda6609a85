"""The study of pruning: the rule stops the pruning without retraining, and only this one."""

from __future__ import annotations

import pytest

from tests.studies.running import Study, not_printed, page_of, run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("pruning", tmp_path_factory.mktemp("study"))


def test_the_rule_stops_the_pruning_without_retraining_only(study: Study) -> None:
    (stop,) = [at for at, line in enumerate(study.lines) if "AccuracyBelow" in line]
    assert study.lines.index("faulty pruning:") < stop < study.lines.index("repaired pruning:")
    number, accuracy, limit = study.numbers("stopped in round")
    assert number >= 2
    assert accuracy < limit


def test_the_retrained_network_is_smaller_and_more_accurate(study: Study) -> None:
    (before, _, low), (whole, small, high) = study.numbers("faulty:"), study.numbers("repaired:")
    assert before == whole
    assert small < whole / 4
    assert high > 0.93 > 0.9 > low


def test_every_round_has_a_run_of_its_own(study: Study) -> None:
    assert len(list((study.folder / "repaired").glob("round-*/run.json"))) == 6
    assert (study.folder / "pruning.png").is_file()


def test_the_page_shows_lines_that_the_script_prints(study: Study) -> None:
    assert not_printed(study, page_of("pruning")) == []
