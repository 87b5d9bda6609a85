"""The examples about XGBoost and LightGBM, and the code of docs/xgboost.md, print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xgboost")
ROOT = Path(__file__).resolve().parents[2]


def printed_by(example: str, folder: Path) -> str:
    code = ROOT / "examples" / example
    done = subprocess.run(
        [sys.executable, code, folder], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return done.stdout


def test_the_example_finds_the_leak_and_the_repaired_model_has_no_finding(tmp_path: Path) -> None:
    faulty, repaired = printed_by("xgboost_overweight.py", tmp_path).split("repaired model")
    assert "FeatureImportanceOverweight, round 10: 3 of 8 features (settled_amount, " in faulty
    assert repaired.splitlines()[1:] == ["  no findings"]


def test_the_example_finds_learned_noise_and_the_repaired_model_has_no_finding(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    faulty, repaired = printed_by("lightgbm_overfit.py", tmp_path).split("repaired:")
    for rule in ("Overfit", "TreeDepth"):
        assert f"{rule}: issue" in faulty
        assert f"{rule}: no issue" in repaired


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "xgboost.md").read_text()
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(code, names)
    run = names["run"]
    assert len(run.tensor("validation-logloss").steps()) == 30
    assert run.tensor("average_shap/f3").steps() == [0, 10, 20]
    assert not run.notes().get("not_recorded")
