"""judge_in_parts: judges one run by many tasks. See `tdcore.rules.run`.

Threads: the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdcore.errors import ConfigError, TdcoreError
from tdcore.rules.base import Finding
from tdcore.rules.judgement import check_there, finishing_actions, make_report
from tdcore.rules.run_report import Report
from tdcore.rules.run_rules import RuleChoice
from tdcore.rules.run_source import RunSource
from tdcore.rules.sendable import check_sendable
from tdcore.rules.spread.join import JoinedEngine, must_judge_whole
from tdcore.rules.spread.plan import Part, make_plan
from tdcore.rules.spread.task import PartResult, PartTask
from tdcore.rules.survey import Survey
from tdcore.rules.sweep_engines import ENGINES, check_engine

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.trial import Trial

__all__ = ["is_worth_dividing", "judge_in_parts"]

_PART_ROWS = 1_000_000  # rows of a part on a cluster of unknown size
_LARGE_ROWS = 2_000_000  # about 15 s of one CPU by all rules
_MAX_PARTS = 64  # on such a cluster; each part opens the run


def judge_in_parts(
    place: str | Path | Trial,
    choice: RuleChoice,
    *,
    engine: str,
    workers: int | None,
    cluster: Any,
    attempt: int | str | None,
    ended: bool,
    actions: Sequence[Action],
    write_findings: bool,
    max_findings: int,
    on_findings: Callable[[list[Finding]], None] | None,
) -> Report:
    """Judge a run that has ended by several tasks. The report is that of one judgement.

    If a part cannot be judged, the verdicts of its rules have the error. For the arguments and exceptions see
    `tdcore.rules.run`.

    Raises:
        ConfigError: Also if the run has not ended, or a rule cannot be sent to other processes.
    """
    check_engine(engine, workers)
    check_sendable(choice.given, sent=engine != "serial")
    source = RunSource(place, attempt=attempt)
    with closing(source.sink):
        check_there(source, attempt)
        chosen = choice.chosen(source)
        survey = source.survey()
        if not (ended or source.finished()):
            raise ConfigError(
                f"{source.where} has not ended, so its judgement cannot be divided; leave workers and engine "
                "out, or use ended=True (--ended) if the run will not continue"
            )
        joined = JoinedEngine(
            source,
            chosen.rules,
            actions=actions,
            sink=source.sink,
            write_findings=write_findings,
            max_findings=max_findings,
            rules_of_run=chosen.of_run,
        )
        joined.left_out, joined.asked = tuple(chosen.left_out), chosen.asked
        task = PartTask(
            place=source.where, rules=choice, attempt=attempt, max_findings=max_findings, survey=survey
        )
        parts = make_plan(joined.runs, survey.rows, _tasks(engine, workers, survey))
        with finishing_actions(joined):
            results = _judged(task, parts, ENGINES[engine], workers, cluster, survey)
            joined.join(results)
            if on_findings is not None and joined.news:
                on_findings(joined.news)
            return make_report(joined, source, None, finished=True)


def is_worth_dividing(place: str, *, attempt: int | str | None, ended: bool) -> bool:
    """Whether a run has ended and has so many rows that several tasks judge it faster than one.

    False for a run that cannot be read.
    """
    try:
        source = RunSource(place, attempt=attempt)
        with closing(source.sink):
            if not source.begun():
                return False
            rows = sum(source.survey().rows.values())
            return rows >= _LARGE_ROWS and (ended or source.finished())
    except TdcoreError:
        return False


def _judged(
    task: PartTask, parts: list[Part], engine: Any, workers: int | None, cluster: Any, survey: Survey
) -> list[PartResult]:
    """The results of the parts, in their order, and of rules that must judge the whole run."""
    results = _results(task, parts, engine, workers, cluster)
    again = must_judge_whole(results, task.max_findings)
    if not again:
        return results
    for result in results:
        for label in again:
            result.rules.pop(label, None)
    whole = Part(
        number=len(parts) + 1, labels=tuple(again), workers=tuple(survey.rows), whole=True, counts=False
    )
    return results + _results(task, [whole], engine, workers, cluster)


def _results(
    task: PartTask, parts: list[Part], engine: Any, workers: int | None, cluster: Any
) -> list[PartResult]:
    found: dict[int, PartResult] = {}
    with closing(engine(task, parts, workers, cluster)) as arrivals:
        found.update(arrivals)
    return [found[at] for at in range(len(parts))]


def _tasks(engine: str, workers: int | None, survey: Survey) -> int:
    """Number of tasks that run at the same time."""
    if workers is not None:
        return workers
    if engine in ("processes", "serial"):
        return os.cpu_count() or 1
    return min(_MAX_PARTS, -(-sum(survey.rows.values()) // _PART_ROWS))
