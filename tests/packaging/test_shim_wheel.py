"""The wheel of the package that has the name smdebug (compat/smdebug-shim)."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

from tests.packaging.making import ROOT, run


def test_the_wheel_of_the_shim_has_only_the_modules_of_smdebug(tmp_path: Path) -> None:
    source = ROOT / "compat" / "smdebug-shim"
    copy = tmp_path / "shim"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path))
    run(sys.executable, "-m", "pip", "wheel", *options, str(copy), cwd=tmp_path)
    (wheel,) = tmp_path.glob("tdcore_smdebug_shim-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(source).as_posix() for path in (source / "smdebug").rglob("*.py")}
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
        str(wheel),
        cwd=tmp_path,
    )
    code = "import smdebug, tdcore; print(smdebug.modes is tdcore.modes, smdebug.__file__)"
    printed = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site)).split()
    assert printed == ["True", str(site / "smdebug" / "__init__.py")]
