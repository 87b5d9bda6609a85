"""Pages of case studies show the code of the scripts, and pictures made by scripts/make_screenshots.py."""

from __future__ import annotations

import re

import pytest

from tests.studies.running import ROOT, blocks, page_of

STUDIES = sorted(path.stem for path in (ROOT / "examples" / "studies").glob("*.py"))
PICTURES = ROOT / "docs" / "assets" / "studies"
MOST_BYTES = 100_000  # of a picture


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_shows_parts_of_its_script(name: str) -> None:
    script = (ROOT / "examples" / "studies" / f"{name}.py").read_text(encoding="utf-8")
    shown = blocks(page_of(name), "python")
    assert shown
    for block in shown:
        assert block in script


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_and_the_gallery_show_pictures_of_the_study(name: str) -> None:
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert f"(studies/{name.replace('_', '-')}.md)" in gallery
    for text in (page_of(name), gallery):
        assert re.search(rf"assets/studies/{name}\S*\.png", text)


def test_every_picture_is_small_and_is_shown() -> None:
    pages = "".join(map(page_of, STUDIES))
    for picture in PICTURES.glob("*"):
        assert f"assets/studies/{picture.name}" in pages
        assert picture.stat().st_size <= MOST_BYTES
