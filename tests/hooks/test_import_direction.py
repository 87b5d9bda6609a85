"""Imports of hooks/ go in one direction: a sub-package imports only those before it in LAYERS.

Imports for annotations (`if TYPE_CHECKING:`) and imports inside of functions do not count, because they do
not load modules at import time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "hooks"
PYTORCH = "tdcore.hooks.pytorch"

# Sub-packages of hooks/pytorch, each with those that it may import. Files in hooks/pytorch may import all.
LAYERS: dict[str, set[str]] = {
    "model": set(),
    "compile": {"model"},
    "distributed": {"model"},
    "forward": {"model", "compile"},
    "parameters": {"model", "compile", "distributed"},
    "steps": {"model", "compile", "distributed", "forward", "parameters"},
}
# Modules for the trainers of other libraries, which use the PyTorch hook.
TRAINERS = {"lightning", "transformers"}


def imports_of(file: Path) -> Iterator[str]:
    """Return the names of the modules that the file imports at import time."""
    pending: list[ast.AST] = [ast.parse(file.read_text())]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                pending.extend(node.orelse)
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                pending.append(node)


def test_every_sub_package_has_its_place_in_the_order() -> None:
    folders = {file.parent.name for file in (ROOT / "pytorch").glob("*/*.py")}
    assert folders == set(LAYERS)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_sub_package_imports_only_those_below_it(layer: str) -> None:
    allowed = tuple(f"{PYTORCH}.{name}." for name in (layer, *LAYERS[layer]))
    wrong = [
        f"{file.name}: {name}"
        for file in (ROOT / "pytorch" / layer).glob("*.py")
        for name in imports_of(file)
        if name.startswith(PYTORCH) and not name.startswith(allowed)
    ]
    assert not wrong


def test_what_all_frameworks_share_imports_none_of_them() -> None:
    wrong = [
        f"{file.name}: {name}"
        for file in ROOT.glob("*.py")
        if file.stem not in TRAINERS
        for name in imports_of(file)
        if name.startswith(
            (PYTORCH, "torch", "tdcore.hooks.tensorflow", "tensorflow", "tdcore.hooks.keras", "keras")
        )
    ]
    assert not wrong


def test_the_files_of_a_framework_import_no_other_framework() -> None:
    names = {each: each for each in ("keras", "mxnet", "tensorflow", "jax")} | {"pytorch": "torch"}
    own_file = {each: f"{each}_backend" for each in ("tensorflow", "jax", "torch")}  # the backends of Keras
    wrong = [
        f"{folder}/{file.name}: {name}"
        for folder, own in names.items()
        for file in (ROOT / folder).rglob("*.py")
        for name in {each.partition(".")[0] for each in imports_of(file)}
        if name in {*names.values(), *own_file} - {own} and own_file.get(name) != file.stem
    ]
    assert not wrong


@pytest.mark.parametrize(
    ("folder", "own"), [("boosting", ()), ("xgboost", ("xgboost",)), ("lightgbm", ("lightgbm",))]
)
def test_a_hook_for_boosting_imports_no_other_framework(folder: str, own: tuple[str, ...]) -> None:
    frameworks = {"torch", "xgboost", "lightgbm", "mxnet", "tensorflow", "jax"} - set(own)
    others = (PYTORCH, *(f"tdcore.hooks.{each}" for each in ("xgboost", "lightgbm") if each not in own))
    wrong = [
        f"{file.name}: {name}"
        for file in (ROOT / folder).glob("*.py")
        for name in imports_of(file)
        if name.split(".")[0] in frameworks or name.startswith(others)
    ]
    assert not wrong


def test_no_two_modules_import_each_other_in_a_circle() -> None:
    files = {
        ".".join(("tdcore.hooks", *file.relative_to(ROOT).with_suffix("").parts)): file
        for file in ROOT.rglob("*.py")
        if file.name != "__init__.py"
    }
    imported = {}
    for name, file in files.items():
        wanted = [f"{each}." for each in imports_of(file)]
        imported[name] = {target for target in files if any(each.startswith(f"{target}.") for each in wanted)}
    while imported:  # remove modules that import none of the remaining ones
        free = {name for name, targets in imported.items() if targets.isdisjoint(imported)}
        assert free, f"a circle of imports is among {sorted(imported)}"
        imported = {name: targets for name, targets in imported.items() if name not in free}
