"""hooks/ and rules/ are next to tdcore/ in the repository, and are tdcore.hooks and tdcore.rules."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ["hooks", "rules"])
def test_the_link_in_tdcore_leads_to_the_folder_at_the_top(name: str) -> None:
    # Without the links, type checkers check three files only and report success.
    link = ROOT / "tdcore" / name
    assert link.is_symlink()
    assert link.resolve() == ROOT / name


def test_hooks_and_rules_import_under_the_package() -> None:
    import tdcore.hooks
    import tdcore.rules

    assert tdcore.hooks.__name__ == "tdcore.hooks"
    assert tdcore.rules.__name__ == "tdcore.rules"


def test_only_the_bindings_include_python() -> None:
    for path in (ROOT / "csrc").rglob("*.*"):
        if "bindings" in path.relative_to(ROOT).parts:
            continue
        text = path.read_text()
        assert "pybind11" not in text, path.name
        assert "Python.h" not in text, path.name
