"""Straggler: the slow rank, its phase, and ranks that do not wait for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Status, Straggler
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import USUAL, even_steps, fired_share, is_silent_in_a_run, noisy_steps


def ranks(
    lag: float, phase: str = "data", *, world: int = 4, slow: int = 2, wait_in: str = "backward"
) -> Trace:
    """Return steps of several ranks: one is slower in a phase, and the others wait for it."""
    trace = Trace()
    for step in range(600):
        for rank in range(world):
            late = phase if rank == slow else wait_in
            phases = USUAL | {late: USUAL.get(late, 0.0) + lag}
            trace.add_step_time(step, worker=f"worker_{rank}", **phases)
    return trace


@pytest.mark.proves("TDC215", "fires")
@pytest.mark.parametrize("phase", ["data", "forward", "rest", "gc", "compile", "loss"])
def test_the_slow_rank_and_its_phase_are_found(tmp_path: Path, phase: str) -> None:
    found, verdict = judged_trace_in_a_run(Straggler(), tmp_path, ranks(30.0, phase))
    assert verdict.status is Status.ISSUE
    assert {(each.worker, each.numbers["kind"]) for each in found} == {("worker_2", phase)}
    assert found[-1].numbers["lag_ms"] == pytest.approx(30.0)
    assert found[-1].numbers["others_wait_ms"] == pytest.approx(30.0)
    assert "the other 3 ranks wait 30.0 ms per step" in found[-1].why


@pytest.mark.parametrize("wait_in", ["optimizer", "compute", "forward"])
def test_ranks_may_wait_in_the_optimizer_or_in_the_forward_pass(wait_in: str) -> None:
    found, _ = judge(Straggler(), ranks(30.0, world=2, slow=1, wait_in=wait_in))
    assert {(each.worker, each.numbers["kind"]) for each in found} == {("worker_1", "data")}
    assert "the other rank waits 30.0 ms" in found[-1].why


@pytest.mark.proves("TDC215", "quiet")
def test_equal_ranks_and_ranks_that_do_not_wait_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(Straggler(), tmp_path / "equal", ranks(0.0))
    assert is_silent_in_a_run(Straggler(), tmp_path / "noisy", noisy_steps(1, 600, workers=2))
    alone = ranks(0.0, world=2)
    for row in alone.step_times[0, "worker_1"]:
        row["data_ns"] += 30_000_000
        row["duration_ns"] += 30_000_000
    assert is_silent_in_a_run(Straggler(), tmp_path / "alone", alone)


@pytest.mark.full
def test_noise_is_rarely_reported_and_a_slow_rank_in_noise_is() -> None:
    def slow(rank: int, phases: dict[str, float]) -> None:
        phases["data"] += 30.0 if rank == 1 else 0.0

    assert fired_share(Straggler(), lambda seed: noisy_steps(seed, 600, workers=2), 20) == 0
    slow_share = fired_share(Straggler(), lambda seed: noisy_steps(seed, 600, workers=2, change=slow), 20)
    assert slow_share >= 0.9


@pytest.mark.proves("TDC215", "not evaluable")
def test_a_run_without_times_is_not_evaluable_and_one_rank_is_not_compared(tmp_path: Path) -> None:
    _, verdict = judge(Straggler(), Trace().add(0, "w", "weight", [1.0]))
    assert "not evaluable: the run has no times of steps" in verdict.text
    _, verdict = judged_trace_in_a_run(Straggler(), tmp_path / "one", even_steps(600))
    assert verdict.status is Status.NOT_APPLICABLE
    trace = ranks(30.0, world=2, slow=1)
    for row in trace.step_times[0, "worker_1"]:
        row["mode_step"] += 7
    _, verdict = judged_trace_in_a_run(Straggler(), tmp_path / "shifted", trace)
    assert verdict.status is Status.NOT_EVALUABLE


@pytest.mark.proves("TDC215", "boundary")
def test_the_lag_and_the_wait_decide() -> None:
    trace = ranks(20.0)  # 20 of 70 ms
    assert judge(Straggler(threshold=28.5), trace)[0]
    assert not judge(Straggler(threshold=28.6), trace)[0]
    assert judge(Straggler(min_lag_ms=19.99), trace)[0]
    assert not judge(Straggler(min_lag_ms=20.01), trace)[0]


@pytest.mark.full
@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 10.0, 40.0]), st.integers(2, 3))
def test_pieces_do_not_change_the_findings(seed: int, ms: float, world: int) -> None:
    def change(rank: int, phases: dict[str, float]) -> None:
        phases["data"] += ms if rank == 1 else 0.0

    rule = Straggler(min_steps=4, min_seconds=0.5, patience=3)
    same_in_any_cuts(rule, noisy_steps(seed, 120, change=change, workers=world), seeds=3)


@pytest.mark.parametrize("parameters", [{"threshold": 0}, {"min_lag_ms": -1}, {"min_steps": 0}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Straggler(**parameters)
