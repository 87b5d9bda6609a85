"""Which tests run in `make test-full` only: those that are long, and those of parts that change seldom.

`make test` runs the others. A single test can have the mark itself: `@pytest.mark.full`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["is_full"]

ROOT = Path(__file__).resolve().parent
FULL = (  # folders and files below tests/
    "benchmarks",
    "faults",
    "healthy",
    "hooks/distributed",
    "hooks/test_compile_modes.py",
    "hooks/test_configurations.py",
    "hooks/test_lightning_gan.py",
    "loops",
    "trainers",
)


def is_full(path: Path) -> bool:
    """Whether the tests of a file are of the full tier."""
    return any((ROOT / each) in (path, *path.parents) for each in FULL)
