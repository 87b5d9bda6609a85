"""The direction of includes between the folders of csrc/.

A file includes files of its own folder and of the folders that ALLOWED names, so that a part can be read and
tested without the parts above it.
"""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parent.parent / "csrc"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

# Folder: folders whose files it may include, besides its own.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "stats": {"base"},
    "ring": {"base", "stats"},
    "ring/consumer": {"ring"},
    "capture": {"base", "stats", "ring"},
    "segment": {"base", "ring", "ring/consumer"},
    "device": {"base", "stats", "ring", "capture"},
    "cuda": {"base", "device"},
    "sim": {"base", "stats", "device"},
    "bindings": {"base", "stats", "ring", "ring/consumer", "capture", "segment", "device", "cuda"},
    "bindings/sim": {"bindings", "sim"},
}


def sources() -> dict[str, set[str]]:
    """Each file of csrc/, by its path there, with the local includes that it names."""
    files = [path for path in CSRC.rglob("*.*") if path.suffix in (".hpp", ".cpp", ".cuh")]
    return {path.relative_to(CSRC).as_posix(): set(INCLUDE.findall(path.read_text())) for path in files}


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def test_every_source_is_in_a_folder_of_the_table() -> None:
    assert {folder_of(name) for name in sources()} == set(ALLOWED)


def test_includes_name_the_folder_and_the_file_exists() -> None:
    found = sources()
    assert {
        (name, include) for name, includes in found.items() for include in includes - found.keys()
    } == set()


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_includes_only_folders_below_it(folder: str) -> None:
    edges = {
        (name, include)
        for name, includes in sources().items()
        for include in includes
        if folder_of(name) == folder and folder_of(include) not in {folder, *ALLOWED[folder]}
    }
    assert edges == set()


def test_the_table_allows_nothing_that_no_file_needs() -> None:
    used = {
        (folder_of(name), folder_of(include)) for name, includes in sources().items() for include in includes
    }
    allowed = {(folder, lower) for folder, lowers in ALLOWED.items() for lower in lowers}
    assert {edge for edge in used if edge[0] != edge[1]} == allowed


@pytest.mark.parametrize("graph", ["folders", "files"])
def test_there_is_no_cycle(graph: str) -> None:
    try:
        TopologicalSorter(ALLOWED if graph == "folders" else sources()).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of includes: {' -> '.join(error.args[1])}")
