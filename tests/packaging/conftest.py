"""A clean checkout, and the sdist and the wheel that scripts/make_wheels.py makes of the checkout."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.packaging.making import ROOT, Made, run, tracked_files


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the source tree as `git clone` would: with links, without build products."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in tracked_files():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    return copy


@pytest.fixture(scope="session")
def made(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make the wheel of this Python. The only compilation for all tests of the sdist and of the wheel."""
    out = tmp_path_factory.mktemp("wheels")
    script = checkout / "scripts" / "make_wheels.py"
    printed = run(sys.executable, str(script), "--python", sys.executable, "--out", str(out), cwd=checkout)
    (sdist,) = (checkout / "build" / "wheels" / "sdist").glob("*.tar.gz")
    (wheel,) = (checkout / "build" / "wheels").glob("raw-*/*.whl")
    (repaired,) = out.glob("*.whl")
    return Made(sdist, wheel, repaired, printed)
