"""The full tier: tests that run in `make test-full` only; `make test` runs all others.

The full tier consists of the tests in the folders below, the tests with the mark `full`, and the test
functions in tests/full_tier.txt, which took more than a second when all tests were last measured. A new test
is in the quick tier until the next measurement.

    pytest tests -n 2 --junitxml report.xml && python -m tests.tiers report.xml      measures all tests
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

__all__ = ["is_full", "slow_functions"]

ROOT = Path(__file__).resolve().parent
LIST = ROOT / "full_tier.txt"
FOLDERS = (
    "benchmarks",
    "faults",
    "healthy",
    "hooks/distributed",
    "jax",
    "keras",
    "loops",
    "studies",
    "tensorflow",
    "trainers",
)
_SECONDS = 1.0


def is_full(path: Path, function: str) -> bool:
    """Return whether a test function is in the full tier.

    Args:
        path: File of the test function.
        function: Name of the test function, without parameters.
    """
    place = path.relative_to(ROOT).as_posix()
    return place.startswith(tuple(f"{each}/" for each in FOLDERS)) or f"{place}::{function}" in _listed()


@cache
def _listed() -> frozenset[str]:
    return frozenset(LIST.read_text(encoding="utf-8").split())


def slow_functions(report: Path) -> list[str]:
    """Return the test functions of a JUnit report with a slow case, as "test_ring.py::test_name"."""
    found = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        path = ROOT.parent / f"{case.attrib['classname'].replace('.', '/')}.py"
        if path.is_file() and float(case.attrib["time"]) > _SECONDS:
            found.add(f"{path.relative_to(ROOT).as_posix()}::{case.attrib['name'].partition('[')[0]}")
    return sorted(place for place in found if not place.startswith(tuple(f"{each}/" for each in FOLDERS)))


if __name__ == "__main__":
    LIST.write_text("\n".join(slow_functions(Path(sys.argv[1]))) + "\n", encoding="utf-8")
