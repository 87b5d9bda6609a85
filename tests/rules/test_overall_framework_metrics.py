"""OverallFrameworkMetrics: the summary of the time of the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.rules import OverallFrameworkMetrics, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, summary_in_cuts
from tests.rules.timed_steps import even_steps


@pytest.mark.proves("TDC211", "summary")
def test_modes_and_phases_have_their_time_and_share(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    trace, durations = Trace(), []
    for step in range(600):
        forward = float(random.uniform(10, 90))
        durations.append(20 + forward + 40)
        trace.add_step_time(step, data=20, forward=forward, backward=40, data_waits=1)
    trace.add_step_time(600, mode="EVAL", mode_step=0, forward=100.0)
    _, verdict = judged_trace_in_a_run(OverallFrameworkMetrics(), tmp_path, trace)
    modes = verdict.summary["modes"]
    total = sum(durations) / 1e3
    assert list(modes) == ["EVAL", "TRAIN"]
    assert modes["EVAL"] == pytest.approx(
        {"steps": 1, "seconds": 0.1, "%": 10 / (total + 0.1)}
        | {f"{name} (ms)": 100.0 for name in ("max", "p99", "p95", "p50", "min")}
    )
    train = modes["TRAIN"]
    assert train["steps"] == 600
    assert train["seconds"] == pytest.approx(total)
    for name, percent in (("max", 100), ("p99", 99), ("p95", 95), ("p50", 50), ("min", 0)):
        assert train[f"{name} (ms)"] == pytest.approx(np.percentile(durations, percent), rel=0.0051)
    phases = verdict.summary["phases of TRAIN"]
    assert list(phases) == ["forward", "backward", "data"]
    assert phases["data"] == pytest.approx({"%": 1200 / total, "seconds": 12.0, "times": 600})
    assert sum(float(row["%"]) for row in phases.values()) == pytest.approx(100)


@pytest.mark.proves("TDC211", "quiet")
def test_a_summary_of_steps_never_fires(tmp_path: Path) -> None:
    found, verdict = judged_trace_in_a_run(OverallFrameworkMetrics(), tmp_path, even_steps(300, data=9e3))
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.text == "no issue (summary of 300 rows)"


@pytest.mark.proves("TDC211", "not evaluable")
def test_a_run_without_times_of_steps_has_no_summary(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(OverallFrameworkMetrics(), tmp_path, Trace())
    assert verdict.text.startswith("not evaluable: the run has no times of steps")
    assert verdict.summary == {}


def test_the_time_of_the_gpu_is_a_share_of_the_steps() -> None:
    _, verdict = judge(OverallFrameworkMetrics(), Trace().add_step_time(0, forward=10, gpu_ns=4_000_000))
    assert verdict.summary["modes"]["TRAIN"]["gpu (%)"] == pytest.approx(40)


def test_a_step_range_restricts_the_summary() -> None:
    _, verdict = judge(load_rule("TDC211:start_step=100,end_step=250"), even_steps(300))
    assert verdict.summary["modes"]["TRAIN"]["steps"] == 150


@settings(max_examples=20)
@given(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=60), st.integers(0, 9))
def test_pieces_and_restarts_do_not_change_the_summary(forward: list[float], seed: int) -> None:
    trace = Trace()
    for step, ms in enumerate(forward):
        mode = "EVAL" if step % 3 == 2 else "TRAIN"
        trace.add_step_time(step, mode=mode, worker=f"worker_{step % 2}", forward=ms)
    whole = judge(OverallFrameworkMetrics(), trace)[1].summary
    assert summary_in_cuts(OverallFrameworkMetrics(), trace, seed) == whole
