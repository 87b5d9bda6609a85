"""The direction of imports between the packages of tdcore, and no cycles between its files.

The test reads the sources. Imports in functions count like imports at the top of a file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# From bottom to top. A part may import itself and parts of lower layers, but no other part of its own layer.
LAYERS = (
    ("_core", "_version", "liveness", "modes", "text"),
    ("errors",),
    ("format",),
    ("config",),
    ("sinks",),
    ("flusher", "trial"),
    ("actions", "collection", "compat", "maintenance", "session", "stats", "testing"),
    ("analysis", "timeline"),
    ("rules",),
    ("hooks",),
    ("launch",),
    ("run", "smd"),
    ("export", "view"),
    ("plot",),
    ("cli",),
    ("__main__",),
)
LAYER = {part: number for number, layer in enumerate(LAYERS) for part in layer}

# Writers and readers share only the files of a run.
APART = {("session", "trial"), ("hooks", "trial")}

# (importing part, imported part): for type checkers only. Actions get findings of rules.
FOR_TYPES = {("actions", "rules")}

# (importing file, imported file): a property of a public class that imports its package at its first use.
ACCESSORS = {
    ("tdcore.trial.trial", "tdcore.plot"),
    ("tdcore.trial.run_location", "tdcore.compat.place"),  # a recording of smdebug, read as a run
}

# Files that may import the package itself, whose names are from all layers: the demo is written like a user's
# script, and processes get the folder of the package.
OF_PACKAGE = {"tdcore.cli.demo", "tdcore.session.spawning"}

# Files in remaining cycles, through imports in functions. The list may only shrink.
CIRCLES = {"tdcore.hooks.base", "tdcore.rules"}


def modules() -> dict[str, Path]:
    """Return the dotted names of all modules, with their files. hooks/ and rules/ are links in tdcore/."""
    found = {}
    for top in ("tdcore", "hooks", "rules"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:2] in (("tdcore", "hooks"), ("tdcore", "rules")):
                continue  # where rglob follows links
            name = ".".join(parts if top == "tdcore" else ("tdcore", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """Return the modules of tdcore that a module imports, and whether for type checkers only."""

    def walk(node: ast.AST, for_types: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                targets = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name}: write imports of tdcore in full"
                targets = [f"{child.module}.{alias.name}" for alias in child.names]
            else:
                only = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from walk(child, for_types or only)
                continue
            for target in targets:
                if f"{target}.".startswith("tdcore."):
                    yield module_of(target), for_types

    return tuple(walk(ast.parse(MODULES[name].read_text()), False))


def module_of(target: str) -> str:
    """Return the module that an imported name is, or belongs to."""
    while target not in MODULES and target != "tdcore._core":
        target = target.rpartition(".")[0]
    return target


def part_of(module: str) -> str:
    """Return the package or file directly in tdcore/ that a module belongs to."""
    return module.split(".")[1]


@pytest.mark.parametrize("part", sorted(LAYER))
def test_a_part_imports_lower_layers_only(part: str) -> None:
    wrong = []
    for name in MODULES:
        if name == "tdcore" or part_of(name) != part:
            continue
        for target, for_types in imports(name):
            if target == "tdcore":
                if name not in OF_PACKAGE:
                    wrong.append(f"{name} imports tdcore: import the module that has the name")
                continue
            if (name, target) in ACCESSORS:
                continue
            edge = (part, part_of(target))
            if edge[0] == edge[1] or (for_types and edge in FOR_TYPES):
                continue
            if LAYER[edge[1]] >= LAYER[part] or edge in APART:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_every_part_has_a_layer() -> None:
    assert {part_of(name) for name in MODULES if name != "tdcore"} | {"_core"} == set(LAYER)


def test_no_further_files_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {
        name: {target for target, for_types in imports(name) if target in MODULES and not for_types} - {name}
        for name in MODULES
        if name not in CIRCLES | {"tdcore"}
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"files import each other: {' <- '.join(error.args[1])}")
