"""Fixtures for the tests of reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trial.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    """A run that has begun and has no rows yet."""
    return RunWriter(tmp_path / "run")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the copies of index files that other tests have cached."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TDCORE_CACHE", str(folder))
    return folder
