"""The representation of values in a notebook: one line with their type, place and size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tdcore as td
from tdcore.config.hook_config import HookConfig
from tdcore.errors import TensorUnavailable
from tdcore.rules import run, sweep
from tests.trial.writer import RunWriter


def small_run(place: Path, *, end: bool = True) -> Path:
    writer = RunWriter(place)
    for step in range(3):
        writer.add("fc.weight", np.ones((3, 4), dtype=np.float32), step=step)
        writer.add("gradient/fc.weight", 1e-9 * np.ones(4), step=step, kind="gradient", payload=False)
    writer.flush()
    entry = {"include_regex": ["weight"], "tensor_names": ["fc.weight"], "included": True}
    writer.put("collections.json", {"format": 1, "attempts": {"0": {"collections": {"weights": entry}}}})
    if end:
        writer.end(reason="closed")
    return place


def test_values_of_a_run_say_what_they_are_where_and_how_much(tmp_path: Path) -> None:
    trial = td.create_trial(small_run(tmp_path), "demo")
    assert repr(trial) == f"<Trial 'demo' at '{tmp_path}': ended, 6 rows, global steps 0..2>"
    tensor = trial.tensor("fc.weight")
    assert repr(tensor) == "<Tensor 'fc.weight': weight F32 [3, 4], 3 steps, global 0..2>"
    weights = trial.collection("weights")
    assert repr(weights) == "<SavedCollection 'weights': 1 tensor, include_regex=['weight']>"
    assert repr(trial.attempt_info()).startswith("<Attempt 0: tests, 1 worker, on test, started 20")
    (end,) = trial.ends().values()
    assert repr(end) == "<RunEnd of worker_0 in attempt 0: clean, closed>"


def test_reports_of_rules_are_one_line_however_much_was_found(tmp_path: Path) -> None:
    report = run(small_run(tmp_path), ["vanishing_gradient", "tree_depth"], write_findings=False)
    assert repr(report) == f"<Report on {tmp_path}: 1 issue, 1 does not apply; 1 finding>"
    assert repr(report.verdicts[0]) == (
        "<Verdict of VanishingGradient: issue: 1 finding (3 times), first at step 0>"
    )
    assert repr(report.findings[0]).startswith(
        "<VanishingGradient at step 0, gradient/fc.weight: mean |gradient| is 1e-09"
    )
    swept = sweep(tmp_path, ["vanishing_gradient"], engine="serial", write_findings=False)
    assert repr(swept) == "<SweepReport: 1 run: 1 with issues>"
    assert repr(swept.entries[0]).startswith(f"<SweepEntry {tmp_path}: <Report on ")
    assert all(len(repr(each)) <= 160 for each in (report, *report.verdicts, *report.findings))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (td.SaveConfig(), "SaveConfig()"),
        (td.SaveConfig(save_interval=5), "SaveConfig(save_interval=5)"),
        (td.SaveConfigMode(start_step=3), "SaveConfigMode(start_step=3)"),
        (td.ReductionConfig(norms=("l2",)), "ReductionConfig(norms=('l2',))"),
        (td.CollectionConfig(name="x"), "CollectionConfig(name='x')"),
        (td.RingConfig(), "RingConfig()"),
        (HookConfig(out_dir="runs/x"), "HookConfig(out_dir='runs/x')"),
    ],
)
def test_settings_are_shown_as_the_call_that_makes_them(value: object, text: str) -> None:
    assert repr(value) == text
    names = {**vars(td), "HookConfig": HookConfig} | {name: getattr(td, name) for name in td.__all__}
    assert eval(text, names) == value


def test_a_run_that_goes_on_says_that_rows_may_follow(tmp_path: Path) -> None:
    trial = td.create_trial(small_run(tmp_path, end=False), "demo")
    assert "running, 6 rows" in repr(trial)
    assert "once hook.flush() or hook.close() has returned" in repr(trial)
    with pytest.raises(TensorUnavailable, match=r"It may still appear: the run is still being written"):
        trial.tensor("fc.bias")
    RunWriter(tmp_path).end()
    assert trial.open_hint == ""
    with pytest.raises(TensorUnavailable) as ended:
        trial.tensor("fc.bias")
    assert "may still appear" not in str(ended.value)
