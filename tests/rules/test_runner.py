"""run(): once, or following a run while it is written."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from tdcore.actions import RequestStop
from tdcore.errors import ConfigError, RunNotFound
from tdcore.rules import DeadRelu, Engine, ExplodingTensor, Report, Status, VanishingGradient, run
from tdcore.rules.run_source import RunSource
from tdcore.rules.runner import follow
from tests.trial.writer import RunWriter

NO_TIME = timedelta(0)


def gradients(writer: RunWriter, step: int, size: float = 1.0) -> None:
    writer.add("gradient/w", np.array([size, -size]), step=step, kind="gradient")
    writer.flush()


def followed(
    place: Path,
    script: list[Callable[[], object]],
    *,
    until_end: bool = False,
    start_timeout: float | None = None,
) -> Report:
    """Follow a run; the steps of the script happen between two polls."""
    now = [0.0]

    def wait(seconds: float) -> None:
        now[0] += seconds
        script.pop(0)()

    source = RunSource(place, clock=lambda: 0.0)
    return follow(
        Engine(source, [VanishingGradient()], sink=source.sink, actions=[RequestStop(clock=lambda: 7)]),
        source,
        until_end=until_end,
        poll_interval=timedelta(seconds=0.3),
        start_timeout=None if start_timeout is None else timedelta(seconds=start_timeout),
        clock=lambda: now[0],
        wait=wait,
    )


def test_a_finished_run_is_judged_at_once_with_classes_or_instances(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0)
    writer.end()
    report = run(tmp_path, [VanishingGradient, ExplodingTensor()])
    assert report.finished
    assert [verdict.status for verdict in report.verdicts] == [Status.NO_ISSUE, Status.NO_ISSUE]
    assert report.exit_code == 0


def test_an_open_trial_can_be_judged(tmp_path: Path) -> None:
    from tdcore.trial import create_trial

    writer = RunWriter(tmp_path)
    gradients(writer, 0, 1e-9)
    writer.end()
    report = run(create_trial(tmp_path), [VanishingGradient()])
    assert [finding.step for finding in report.findings] == [0]
    assert report.exit_code == 1


def test_a_run_that_goes_on_is_in_progress(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0)
    gradients(writer, 1)
    report = run(tmp_path, [VanishingGradient()])
    assert not report.finished
    assert report.verdicts[0].text == "in progress: no issue up to step 0"
    assert report.exit_code == 4


def test_ended_judges_the_newest_step_of_a_run_that_has_no_end(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0, 1e-9)
    report = run(tmp_path, [VanishingGradient()], ended=True)
    assert report.finished
    assert report.exit_code == 1


def test_following_ends_at_the_first_issue(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    script: list[Callable[[], object]] = [
        lambda: gradients(writer, 0),
        lambda: gradients(writer, 1, 1e-9),
        lambda: gradients(writer, 2, 1e-9),
    ]
    report = followed(tmp_path, script)
    assert [finding.step for finding in report.findings] == [1]
    assert not report.finished
    assert report.exit_code == 1


def test_following_until_the_end_goes_on_after_an_issue(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    script: list[Callable[[], object]] = [
        lambda: gradients(writer, 0, 1e-9),
        lambda: gradients(writer, 1, 1e-9),
        writer.end,
    ]
    report = followed(tmp_path, script, until_end=True)
    assert [(finding.step, finding.last_step) for finding in report.findings] == [(0, 1)]
    assert report.finished


def test_a_run_that_has_not_begun_is_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "later"

    def begin() -> None:
        writer = RunWriter(place)
        gradients(writer, 0)
        writer.end()

    report = followed(place, [lambda: None, lambda: None, begin])
    assert report.verdicts[0].status is Status.NO_ISSUE


def test_waiting_for_a_run_can_be_bounded(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match=r"no run has begun at .* within 1 s"):
        followed(tmp_path / "never", [lambda: None] * 10, start_timeout=1.0)


def test_there_must_be_a_run_when_it_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="there is no run at"):
        run(tmp_path / "never", [VanishingGradient()])
    assert not (tmp_path / "never").exists()


def test_at_least_one_rule_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no rule was given"):
        run(tmp_path, [])


def test_an_interrupt_gives_the_report_so_far(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0)
    gradients(writer, 1)

    def interrupt() -> None:
        raise KeyboardInterrupt

    report = followed(tmp_path, [interrupt])
    assert report.interrupted
    assert report.verdicts[0].text == "in progress: no issue up to step 0"


def test_an_attempt_that_the_run_has_not_is_named_with_those_it_has(tmp_path: Path) -> None:
    gradients(RunWriter(tmp_path, attempt=2), 0)
    with pytest.raises(RunNotFound, match="has no attempt 7; it has 2"):
        run(tmp_path, [VanishingGradient()], attempt=7)
    run(tmp_path, [VanishingGradient()], attempt=2)


def test_a_time_limit_ends_the_watch(tmp_path: Path) -> None:
    gradients(RunWriter(tmp_path), 0)
    report = run(tmp_path, [VanishingGradient()], live=True, timeout=NO_TIME)
    assert not report.finished
    assert report.exit_code == 4


def test_the_stop_action_writes_the_request_while_the_run_goes_on(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, attempt=3)
    script: list[Callable[[], object]] = [
        lambda: gradients(writer, 4, 1e-9),
        lambda: gradients(writer, 5, 1e-9),
        lambda: gradients(writer, 6, 1e-9),
        writer.end,
    ]
    followed(tmp_path, script, until_end=True)
    request = json.loads((tmp_path / "control" / "stop-0003.json").read_text())
    assert request["attempt"] == 3
    assert request["step"] == 4
    assert request["code"] == "TDC101"
    assert request["reason"].startswith("gradient/w: mean |gradient| is 1e-09")


def test_a_run_is_followed_from_another_thread_while_it_is_written(tmp_path: Path) -> None:
    place = tmp_path / "run"
    reports: list[Report] = []
    seen = threading.Event()
    watcher = threading.Thread(
        target=lambda: reports.append(
            run(
                place,
                [VanishingGradient()],
                live=True,
                until_end=True,
                poll_interval=timedelta(seconds=0.01),
                on_findings=lambda found: seen.set(),
            )
        )
    )
    watcher.start()
    writer = RunWriter(place)
    gradients(writer, 0, 1e-9)
    gradients(writer, 1)
    assert seen.wait(30)
    writer.end()
    watcher.join(30)
    assert not watcher.is_alive()
    assert [finding.step for finding in reports[0].findings] == [0]


def test_an_issue_outweighs_everything_and_not_evaluable_outweighs_no_issue(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0)
    writer.end()
    assert run(tmp_path, [VanishingGradient(), DeadRelu()]).exit_code == 3
    assert run(tmp_path, [VanishingGradient(threshold=2.0), DeadRelu()]).exit_code == 1


def test_findings_are_not_written_when_that_is_not_wanted(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    gradients(writer, 0, 1e-9)
    writer.end()
    run(tmp_path, [VanishingGradient()], write_findings=False)
    assert not (tmp_path / "findings").exists()
    run(tmp_path, [VanishingGradient()])
    assert (tmp_path / "findings" / "VanishingGradient.jsonl").exists()


def test_written_findings_are_what_a_trial_reads(tmp_path: Path) -> None:
    from tdcore.trial import create_trial

    writer = RunWriter(tmp_path)
    gradients(writer, 0, 1e-9)
    writer.end()
    report = run(tmp_path, [VanishingGradient()])
    assert create_trial(tmp_path).findings() == [finding.to_json() for finding in report.findings]


def test_a_record_without_rows_says_that_the_step_is_over(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path)
    source = RunSource(tmp_path, clock=lambda: 0.0)
    gradients(writer, 0)
    assert source.next(["step"]).table.num_rows == 0
    writer.mark_step_end(0)
    writer.flush()
    assert source.next(["step"]).table.num_rows == 1
    gradients(writer, 100)
    writer.mark_step_end(100)
    writer.flush()
    writer.merge()
    assert source.next(["step"]).table.column("step").to_pylist() == [100]


def test_a_hook_says_that_a_saved_step_is_over_when_the_next_begins(tmp_path: Path) -> None:
    import torch
    from torch import nn

    from tdcore.config.save_config import SaveConfig
    from tdcore.hooks.pytorch import Hook
    from tdcore.trial.index import Index

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    save = SaveConfig(save_interval=3)
    with Hook(tmp_path, save_config=save, include_collections=["gradients", "weights"]) as hook:
        hook.register_module(model)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    source = RunSource(tmp_path)
    index = Index(source.sink)
    index.advance()
    assert sorted(set(index.column("step").tolist())) == [0, 3]
    assert index.column("ticket").min() > 0  # the action announces this before the first step
    assert index.whole_step("worker_0", 0) == 3
