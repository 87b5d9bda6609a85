"""Scripts for smdebug run unchanged under the shim, with the results that they have with smdebug 1.0.34.

tests/scripts/older_*.py import smdebug. tests/data/smdebug_scripts*.json has their reports with smdebug.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.make_recordings import hook_configuration
from tests.compat.recordings import FOLDER

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "compat" / "smdebug-shim"
SCRIPTS = ROOT / "tests" / "scripts"


def python(*arguments: str, **environment: str) -> str:
    """Run Python with the shim on its path; return its output."""
    path = os.pathsep.join([str(SHIM), str(ROOT)])
    run = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def report(script: str, *arguments: str, **environment: str) -> Any:
    output = python(str(SCRIPTS / script), *arguments, **environment)
    return json.loads(output.partition("REPORT ")[2] or "null")


def of_smdebug(kind: str, report: str) -> Any:
    return json.loads((FOLDER / f"smdebug_{kind}.json").read_text())[report]


def train(tmp_path: Path, hook: str) -> str:
    """Run the training script with a hook from its arguments, or from a configuration; return the run."""
    out = str(tmp_path / hook)
    if hook == "arguments":
        report("older_pytorch.py", "--out_dir", out)
        return out
    configuration = tmp_path / "hook.json"
    configuration.write_text(json.dumps(hook_configuration(out)))
    report("older_pytorch.py", SMDEBUG_CONFIG_FILE_PATH=str(configuration))
    return out


@pytest.mark.parametrize("hook", ["arguments", "configuration"])
def test_a_training_of_pytorch_and_its_analysis_have_the_results_of_smdebug(
    tmp_path: Path, hook: str
) -> None:
    found, want = report("older_analysis.py", train(tmp_path, hook)), of_smdebug("scripts", hook)
    losses, of_losses = found.pop("values"), want.pop("values")
    assert losses == pytest.approx(of_losses, rel=1e-3)  # another version of torch may round differently
    steps, of_steps = found.pop("steps"), want.pop("steps")
    assert steps["TRAIN"] == of_steps["TRAIN"]
    assert set(steps["EVAL"]) >= set(of_steps["EVAL"])  # tdcore also has the steps of save_scalar()
    assert found == want


def test_the_analysis_of_a_recording_has_the_results_of_smdebug(tmp_path: Path) -> None:
    found = report("older_analysis.py", str(FOLDER / "smdebug_pytorch"), TDCORE_CACHE=str(tmp_path))
    assert found["steps"] == {"TRAIN": [0, 2, 4], "EVAL": [0, 1]}
    assert found["collections"]["weights"] == ["Sequential_0.weight", "Sequential_2.weight"]
    assert found["missing"]
    assert found["fired"] == 5


def test_a_training_of_xgboost_has_the_names_and_steps_of_smdebug(tmp_path: Path) -> None:
    found, want = (
        report("older_xgboost.py", "--out_dir", str(tmp_path / "run")),
        of_smdebug("scripts_xgboost", "xgboost"),
    )
    for name in found["metrics"]:
        scores, of_scores = found.pop(name), want.pop(name)
        assert scores == pytest.approx(of_scores, rel=0.05)  # XGBoost 1.7 builds slightly different trees
    assert found == want


def test_every_module_of_the_shim_has_the_names_that_it_lists() -> None:
    files = [path.relative_to(SHIM).with_suffix("").parts for path in (SHIM / "smdebug").rglob("*.py")]
    names = [".".join(parts).removesuffix(".__init__") for parts in files]
    usable = [name for name in names if not name.startswith(("smdebug.tensorflow", "smdebug.mxnet"))]
    assert len(usable) > 20
    code = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    module = importlib.import_module(name)\n"
        "    assert all(hasattr(module, each) for each in getattr(module, '__all__', ())), name\n"
        "print('tdcore.hooks.xgboost' in sys.modules, len(sys.argv))\n"
    )
    assert python("-c", code, *usable).split() == ["True", str(len(usable) + 1)]


def test_the_shim_depends_on_the_package_of_tdcore() -> None:
    (name,) = re.findall('^name = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    (needed,) = re.findall(r"^dependencies = \[(.*)\]$", (SHIM / "pyproject.toml").read_text(), re.M)
    assert needed == f'"{name}"'


def test_modes_and_errors_of_the_shim_are_those_of_tdcore() -> None:
    code = (
        "import smdebug, smdebug.exceptions, tdcore, tdcore.errors\n"
        "from smdebug.core.modes import ModeKeys\n"
        "assert smdebug.modes is ModeKeys is tdcore.modes\n"
        "assert smdebug.exceptions.NoMoreData is tdcore.errors.NoMoreData\n"
        "from smdebug.profiler.utils import str2bool\n"
        "print(smdebug.__version__, str2bool('Yes'), str2bool('0'))\n"
    )
    assert python("-c", code).split() == ["1.0.34+tdcore", "True", "False"]
