"""The study of the latent space: dead units are found in the faulty training only."""

from __future__ import annotations

import pytest

from tests.studies.running import Study, not_printed, page_of, run_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return run_study("latent_space", tmp_path_factory.mktemp("study"))


def test_dead_units_of_the_bottleneck_are_found_in_the_faulty_training_only(study: Study) -> None:
    repaired = study.lines.index("repaired training:")
    findings = [at for at, line in enumerate(study.lines) if "DeadRelu" in line]
    assert any("encoder.3_output_0" in study.lines[at] for at in findings)
    assert all(at < repaired for at in findings)


def test_neighbours_in_the_repaired_latent_space_are_of_the_same_digit(study: Study) -> None:
    shares = [float(line.split()[-2]) for line in study.lines if "nearest neighbour" in line]
    assert len(shares) == 6
    assert max(shares[:3]) < 50
    assert shares[5] > 85
    assert shares[5] > shares[3]


def test_the_repaired_autoencoder_is_better_and_the_picture_is_drawn(study: Study) -> None:
    before, after = (study.numbers(f"{name}: error of the")[0] for name in ("faulty", "repaired"))
    assert after < before / 2
    assert (study.folder / "latent_space.png").is_file()


def test_the_page_shows_lines_that_the_script_prints(study: Study) -> None:
    assert not_printed(study, page_of("latent_space")) == []
