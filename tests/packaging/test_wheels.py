"""scripts/make_wheels.py makes a manylinux wheel that installs and captures without a compiler."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.making import ROOT, Made

SCRIPT = ROOT / "scripts" / "make_wheels.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_wheels", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(2400)  # the wheel is compiled, and installed with all its dependencies
def test_the_wheel_of_this_python_is_manylinux_and_was_tried_without_a_compiler(made: Made) -> None:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert made.repaired.name.startswith(f"tdcore_capture-0.1.0-{tag}-{tag}-manylinux_2_")
    assert f"{tag}  tried   {made.repaired}" in made.printed
    names = zipfile.ZipFile(made.repaired).namelist()
    assert {
        "tdcore/hooks/pytorch/hook.py",
        "tdcore/hooks/pytorch/steps/driver.py",
        "tdcore/rules/runner.py",
        "tdcore/py.typed",
    } <= set(names)
    assert not any(name.split("/")[0] in {"hooks", "rules", "tests", "benchmarks"} for name in names)


def test_an_interpreter_that_cannot_be_used_is_refused_before_anything_is_built(
    script: ModuleType, tmp_path: Path
) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 127\n")  # like a pyenv shim for a version that is not selected
    broken.chmod(0o755)
    assert script.version_of(str(broken)) is None
    command = [sys.executable, str(SCRIPT), "--python", str(broken), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not a working Python 3.10 to 3.13" in done.stderr
    assert not (tmp_path / "out").exists()


def test_one_interpreter_is_found_for_each_version(script: ModuleType) -> None:
    found = [script.version_of(each) for each in script.find_pythons()]
    assert sys.version_info[:2] in found
    assert len(found) == len(set(found))
    assert set(found) <= set(script.VERSIONS)


def test_a_command_that_fails_gives_the_end_of_what_it_said(script: ModuleType) -> None:
    code = "import sys; print('first'); sys.exit('the last line')"
    with pytest.raises(script.Failed, match=r"(?s)ended with status 1.*first.*the last line"):
        script.run([sys.executable, "-c", code])
