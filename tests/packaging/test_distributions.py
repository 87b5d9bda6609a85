"""The installed package: from a wheel, an sdist, an editable checkout, and a clone that lost its links."""

from __future__ import annotations

import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests import _sim
from tests.packaging.making import ROOT, Made, run, tracked_files

pytestmark = pytest.mark.timeout(2400)  # the wheel is compiled, and installed with all its dependencies

PROBE = (
    "import tdcore, tdcore._core, tdcore.hooks.pytorch, tdcore.rules, tdcore.cli;"
    "print(tdcore.__file__); print(tdcore.rules.__file__)"
)


def python_files(folder: str) -> set[str]:
    return {
        f"tdcore/{name}"
        for name in map(str, tracked_files())
        if name.startswith(f"{folder}/") and name.endswith(".py")
    }


def test_the_sdist_mirrors_the_repository(made: Made) -> None:
    with tarfile.open(made.sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = {str(name) for name in tracked_files() if name.parts[0] in {"cmake", "csrc", "hooks", "rules"}}
    assert wanted <= names
    assert {"CMakeLists.txt", "setup.py", "LICENSE", "README.md"} <= names


def test_the_wheel_holds_hooks_rules_extension_and_types(made: Made) -> None:
    names = set(zipfile.ZipFile(made.wheel).namelist())
    assert python_files("hooks") <= names
    assert python_files("rules") <= names
    assert {"tdcore/py.typed", "tdcore/_core.pyi"} <= names
    assert any(name.startswith("tdcore/_core.") and name.endswith(".so") for name in names)
    assert not any(
        name.split("/")[0] in {"hooks", "rules", "tests", "benchmarks", "smdebug", "compat"} for name in names
    )


def test_the_wheel_has_no_simulated_device(made: Made) -> None:
    with zipfile.ZipFile(made.wheel) as archive:
        (extension,) = [name for name in archive.namelist() if name.endswith(".so")]
        assert extension.startswith("tdcore/_core.")
        assert b"SimDevice" not in archive.read(extension)
    assert b"SimDevice" in Path(_sim.__file__).read_bytes()  # the name to search for


def test_the_wheel_imports_away_from_the_repository(made: Made, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--quiet",
        "--target",
        str(site),
        str(made.wheel),
        cwd=tmp_path,
    )
    printed = run(sys.executable, "-c", PROBE, cwd=tmp_path, PYTHONPATH=str(site)).split()
    assert printed == [str(site / "tdcore" / "__init__.py"), str(site / "tdcore" / "rules" / "__init__.py")]


def test_the_installed_checkout_imports_away_from_the_repository(tmp_path: Path) -> None:
    printed = run(sys.executable, "-c", PROBE, cwd=tmp_path).split()
    assert [Path(name).resolve() for name in printed] == [
        ROOT / "tdcore" / "__init__.py",
        ROOT / "rules" / "__init__.py",
    ]


def test_a_clone_without_links_still_packs_hooks_and_rules(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "linkless"
    shutil.copytree(checkout, copy, symlinks=True, ignore=shutil.ignore_patterns("build"))
    for name in ("hooks", "rules"):
        (copy / "tdcore" / name).unlink()
        (copy / "tdcore" / name).write_text(f"../{name}")  # what git checks out on file systems without links
    run(sys.executable, "setup.py", "-q", "build_py", "--build-lib", "built", cwd=copy)
    built = {str(path.relative_to(copy / "built")) for path in (copy / "built").rglob("*.py")}
    assert python_files("hooks") <= built
    assert python_files("rules") <= built
