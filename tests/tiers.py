"""Which tests run in `make test-full` only; `make test` runs the others.

These are the tests of the folders below, those with the mark `full`, and those of tests/full_tier.txt: test
functions that took more than a second when all tests were last measured. A new test is quick until then.

    pytest tests -n 2 --junitxml report.xml && python -m tests.tiers report.xml      measures them anew
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path

__all__ = ["is_full", "slow_functions"]

ROOT = Path(__file__).resolve().parent
LIST = ROOT / "full_tier.txt"
FOLDERS = ("benchmarks", "faults", "healthy", "hooks/distributed", "jax", "keras", "loops", "trainers")
_SECONDS = 1.0


def is_full(path: Path, function: str) -> bool:
    """Whether a test function is of the full tier.

    Args:
        path: Its file.
        function: Its name, without parameters.
    """
    place = path.relative_to(ROOT).as_posix()
    return place.startswith(tuple(f"{each}/" for each in FOLDERS)) or f"{place}::{function}" in _listed()


@cache
def _listed() -> frozenset[str]:
    return frozenset(LIST.read_text(encoding="utf-8").split())


def slow_functions(report: Path) -> list[str]:
    """Test functions of a JUnit report, any of whose cases took too long: "test_ring.py::test_name"."""
    found = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        path = ROOT.parent / f"{case.attrib['classname'].replace('.', '/')}.py"
        if path.is_file() and float(case.attrib["time"]) > _SECONDS:
            found.add(f"{path.relative_to(ROOT).as_posix()}::{case.attrib['name'].partition('[')[0]}")
    return sorted(place for place in found if not place.startswith(tuple(f"{each}/" for each in FOLDERS)))


if __name__ == "__main__":
    LIST.write_text("\n".join(slow_functions(Path(sys.argv[1]))) + "\n", encoding="utf-8")
