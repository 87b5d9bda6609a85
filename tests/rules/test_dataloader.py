"""Dataloader: the number of processes that load data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tdcore.errors import ConfigError
from tdcore.rules import Dataloader, Status
from tdcore.rules.trace import Trace
from tests.rules.judging import judge
from tests.rules.system_samples import judged_trace_in_a_run, same_in_any_cuts
from tests.rules.timed_steps import even_steps, is_silent_in_a_run, with_samples


def loaded(processes: int, *, cores: int = 8, data: float = 20.0, **more: Any) -> Trace:
    """Return steps and samples of a trainer with this number of child processes."""
    samples = {"trainer_processes": 1 + processes, "core_percent": [50.0] * cores, **more}
    return with_samples(even_steps(600, data=data), **samples)


@pytest.mark.proves("TDC209", "fires")
@pytest.mark.parametrize(("processes", "kind"), [(0, "few"), (5, "few"), (17, "many")])
def test_too_few_and_too_many_processes_are_found(tmp_path: Path, processes: int, kind: str) -> None:
    found, verdict = judged_trace_in_a_run(Dataloader(), tmp_path, loaded(processes))
    assert verdict.status is Status.ISSUE
    newest = found[-1]
    assert newest.numbers["kind"] == kind
    assert newest.numbers["percent"] == pytest.approx(100 * max(processes, 1) / 8)
    assert ("loads the data itself" in newest.why) == (processes == 0)
    assert "num_workers=8" in newest.do


def test_the_limit_of_the_container_counts_and_other_trainers_of_the_machine() -> None:
    newest = judge(Dataloader(), loaded(4, cores=64, cpu_limit=8.0))[0][-1]
    assert newest.numbers["cores"] == 8
    two = loaded(2)
    for step in range(600):
        two.add_step_time(step, worker="worker_1", data=20, forward=15, backward=28)
    with_samples(two, worker="worker_1", trainer_processes=3)
    found, _ = judge(Dataloader(), two)
    assert {each.worker for each in found} == {"worker_0", "worker_1"}
    assert {each.numbers["percent"] for each in found} == {50.0}
    assert "for each of 2 trainers" in found[-1].why
    assert "num_workers=4" in found[-1].do


@pytest.mark.proves("TDC209", "quiet")
def test_fitting_processes_and_few_without_waits_are_not_reported(tmp_path: Path) -> None:
    assert is_silent_in_a_run(Dataloader(), tmp_path / "fitting", loaded(8))
    assert is_silent_in_a_run(Dataloader(), tmp_path / "no waits", loaded(0, data=1.0))
    assert judge(Dataloader(compat=True), loaded(0, data=1.0))[0]


@pytest.mark.proves("TDC209", "not evaluable")
def test_a_run_without_times_or_without_samples_is_not_evaluable(tmp_path: Path) -> None:
    _, verdict = judged_trace_in_a_run(Dataloader(), tmp_path / "none", Trace())
    assert "not evaluable: the run has no times of steps" in verdict.text
    _, verdict = judged_trace_in_a_run(Dataloader(), tmp_path / "times", even_steps(600))
    assert "not evaluable: the run has no system samples" in verdict.text


@pytest.mark.proves("TDC209", "boundary")
def test_the_limits_are_percent_of_the_cores() -> None:
    assert not judge(Dataloader(min_threshold=50.0), loaded(4))[0]
    assert judge(Dataloader(min_threshold=50.1), loaded(4))[0]
    assert not judge(Dataloader(max_threshold=150.0), loaded(12))[0]
    assert judge(Dataloader(max_threshold=149.9), loaded(12))[0]
    trace = loaded(0, data=49.0)  # half of the step
    assert judge(Dataloader(min_wait=50.0), trace)[0]
    assert not judge(Dataloader(min_wait=50.1), trace)[0]


@pytest.mark.full
@settings(max_examples=20)
@given(st.integers(0, 20), st.sampled_from([1.0, 30.0]))
def test_pieces_do_not_change_the_findings(processes: int, data: float) -> None:
    same_in_any_cuts(Dataloader(min_seconds=3.0), loaded(processes, data=data), seeds=2)


@pytest.mark.parametrize(
    "parameters", [{"min_threshold": -1}, {"max_threshold": 60}, {"min_wait": 101}, {"min_steps": 0}]
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Dataloader(**parameters)
