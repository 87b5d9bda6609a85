"""StalledTrainingRule: gaps between rows, a stall that lasts, and ends of runs that are not stalls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tdcore as td
from tdcore.errors import ConfigError
from tdcore.hooks.pytorch import Hook
from tdcore.rules import Engine, StalledTrainingRule, Status
from tdcore.rules.loading import load_rule
from tdcore.rules.run_source import RunSource
from tdcore.rules.trace import Trace
from tests.rules.judging import LOSS, RunningSource, by_key, judge, judge_of
from tests.rules.trainings import judge_run
from tests.trial.writer import EPOCH_NS, RunWriter

SECOND = 10**9


def at_seconds(*seconds: float, worker: str = "worker_0") -> Trace:
    """Return a trace of a loss saved at these times."""
    trace = Trace()
    for step, second in enumerate(seconds):
        trace.add(step, LOSS, "loss", 1.0, worker=worker)
        trace.rows[-1]["time_ns"] = EPOCH_NS + int(second * SECOND)
    return trace


def train_with_heartbeat(place: Path, *, hangs: bool) -> Hook:
    """Train for some steps with a hook, which stays open if the training is to hang."""
    model, criterion = nn.Linear(4, 2), nn.CrossEntropyLoss()
    hook = Hook(
        place,
        save_config=td.SaveConfig(save_interval=1),
        ring=td.RingConfig(ring_bytes=1 << 22),
        flusher="thread",
    )
    hook.register_module(model)
    hook.register_loss(criterion)
    for _ in range(5):
        criterion(model(torch.randn(8, 4)), torch.randint(0, 2, (8,))).backward()
    if not hangs:
        hook.close()
    return hook


@pytest.mark.proves("TDC108", "fires")
def test_a_training_that_hangs_is_found_while_it_hangs_and_once(tmp_path: Path) -> None:
    hook = train_with_heartbeat(tmp_path, hangs=True)
    try:
        source = RunSource(tmp_path, clock=lambda: 0.0)
        hour_later = [0]
        engine = Engine(source, [StalledTrainingRule()], clock_ns=lambda: hour_later[0])
        while engine.rows < 5:  # until the flusher has written all rows
            engine.step(everything=True)
        newest = max(state.time_ns for state in judge_of(engine).memory.values())
        hour_later[0] = newest + 1799 * SECOND
        assert engine.step() == []
        hour_later[0] = newest + 3600 * SECOND
        (finding,) = engine.step()
        assert (finding.step, finding.numbers["seconds"]) == (4, 3600.0)
        assert engine.step() == []
    finally:
        hook.close()


@pytest.mark.proves("TDC108", "quiet")
def test_a_training_that_ends_well_stays_quiet_however_long_ago(tmp_path: Path) -> None:
    train_with_heartbeat(tmp_path, hangs=False)
    found, verdict = judge_run(StalledTrainingRule(threshold=60), tmp_path)
    assert not found
    assert verdict.status is Status.NO_ISSUE
    assert verdict.judged == 4


@pytest.mark.proves("TDC108", "not evaluable")
def test_one_saved_step_is_not_evaluable(sparse_run: Path) -> None:
    _, verdict = judge_run(StalledTrainingRule(), sparse_run)
    assert verdict.status is Status.NOT_EVALUABLE
    assert 'CollectionConfig(name="losses"' in verdict.fix


@pytest.mark.proves("TDC108", "boundary")
def test_a_gap_of_exactly_the_threshold_fires_and_a_shorter_one_does_not() -> None:
    assert not judge(StalledTrainingRule(threshold=10), at_seconds(0, 9.999999, 19))[0]
    (finding,) = judge(StalledTrainingRule(threshold=10), at_seconds(0, 1, 11, 12))[0]
    assert (finding.step, finding.numbers["seconds"]) == (1, 10.0)


@pytest.mark.parametrize("cut", range(1, 6))
def test_gaps_are_the_same_in_any_windows(cut: int) -> None:
    trace = at_seconds(0, 1, 50, 51, 90, 91)
    for row in at_seconds(0, 30, 31, worker="worker_1").rows:
        trace.rows.append(row)
    whole = by_key(judge(StalledTrainingRule(threshold=20), trace)[0])
    assert [(finding.worker, finding.step) for finding in whole] == [
        ("worker_0", 1),
        ("worker_0", 3),
        ("worker_1", 0),
    ]
    parts = [[row for row in trace.rows if (row["step"] < cut) == early] for early in (True, False)]
    engine = Engine(Trace(rows=parts[0]).source(), [StalledTrainingRule(threshold=20)], clock_ns=lambda: 0)
    found = engine.step()
    engine.source = Trace(rows=parts[1]).source()
    found += engine.step()
    assert by_key(found) == whole


def test_a_stall_that_was_reported_while_it_lasted_is_not_reported_again(tmp_path: Path) -> None:
    run = RunWriter(tmp_path, epoch_ns=EPOCH_NS)
    now = [EPOCH_NS]
    engine = Engine(
        RunSource(tmp_path, clock=lambda: now[0] / SECOND), [StalledTrainingRule(threshold=60)],
        clock_ns=lambda: now[0],
    )  # fmt: skip

    def saved(step: int, second: int) -> None:
        run.add(LOSS, 1.0, step=step, kind="loss", time_ns=EPOCH_NS + second * SECOND)
        run.flush()

    saved(0, 0)
    saved(1, 1)
    engine.step()
    now[0] += 70 * SECOND
    (finding,) = engine.step()
    assert (finding.step, finding.numbers["seconds"]) == (1, 69.0)
    saved(2, 100)
    saved(3, 101)
    now[0] += 40 * SECOND
    assert engine.step() == []
    now[0] += 100 * SECOND
    (finding,) = engine.step()
    assert finding.step == 3
    run.end()
    now[0] += 1000 * SECOND
    assert engine.step() == []


def test_what_the_older_rule_did_is_pointed_to_the_action() -> None:
    with pytest.raises(ConfigError, match="pass the action RequestStop"):
        StalledTrainingRule(stop_training_on_fire=True)
    with pytest.raises(ConfigError, match="RequestStop"):
        load_rule("stalled_training_rule:training_job_name_prefix=job")


def test_older_parameters_come_as_text() -> None:
    rule = load_rule("StalledTrainingRule:threshold=120,stop_training_on_fire=False")
    assert rule == StalledTrainingRule(threshold=120.0)


@pytest.mark.parametrize("parameters", [{"threshold": 0}, {"threshold": -1.0}])
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        StalledTrainingRule(**parameters)


def test_workers_that_are_silent_together_make_one_finding_about_the_first() -> None:
    trace = at_seconds(0, 1)
    for worker, newest in (("worker_1", 0.5), ("worker_2", 0.7)):
        trace.rows += at_seconds(0, newest, worker=worker).rows
    now = EPOCH_NS + 2000 * SECOND
    engine = Engine(RunningSource(trace), [StalledTrainingRule()], clock_ns=lambda: now)
    (finding,) = engine.step()
    assert (finding.worker, finding.numbers["workers"], finding.numbers["seconds"]) == ("worker_1", 3, 1999.5)
    assert "2 other workers" in finding.why
    assert not engine.step()
