"""Runner: judges a run once, or follows it while it is written.

    run("runs/demo", [VanishingGradient()])                         the steps that are there now
    run("runs/demo", ["vanishing_gradient:threshold=1e-6"])         the same, with a rule as text
    run("runs/demo")                      the rules of the run's hook, or else all rules that apply
    run("runs/demo", "all")               all rules that apply
    run("runs/demo", rules, live=True, actions=[RequestStop()])     until the first issue or the run's end
    run("runs/demo", rules, live=True, until_end=True)              until the run's end
    run("runs/demo", rules, workers=8)                              by eight processes (rules/spread/)

While it follows, the runner waits for a run that has not begun. Each poll reads only new rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tdcore.errors import ConfigError, RunNotFound, SinkError
from tdcore.rules.base import Finding, Rule, Verdict
from tdcore.rules.engine import MAX_FINDINGS, Engine
from tdcore.rules.judgement import check_there, finishing_actions, make_report, no_run
from tdcore.rules.run_report import EXIT_CODES, FOLDED, Report
from tdcore.rules.run_rules import RuleChoice, given_rules
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import Source
from tdcore.rules.state import StateFile, locked_state

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.trial import Trial

__all__ = ["EXIT_CODES", "Report", "follow", "run"]


def run(
    trial: str | Path | Trial,
    rules: Iterable[Rule | type[Rule] | str] | None = None,
    *,
    live: bool = False,
    until_end: bool = False,
    actions: Sequence[Action] = (),
    attempt: int | str | None = None,
    start_step: int = 0,
    end_step: int | None = None,
    ended: bool = False,
    write_findings: bool = True,
    poll_interval: timedelta | None = None,
    start_timeout: timedelta | None = None,
    timeout: timedelta | None = None,
    max_findings: int = MAX_FINDINGS,
    on_findings: Callable[[list[Finding]], None] | None = None,
    on_lacking: Callable[[Verdict], None] | None = None,
    state: str | Path | None = None,
    workers: int | None = None,
    engine: Literal["processes", "ray", "dask", "serial"] | None = None,
    cluster: Any = None,
) -> Report:
    """Check a run with rules and return their verdicts.

    After KeyboardInterrupt the report so far is returned, with `interrupted` set. While the runner follows a
    run, it waits for storage that is temporarily unreachable.

    Args:
        trial: Folder, URL or open Trial.
        rules: Instances, classes (with their defaults) or text such as "vanishing_gradient:threshold=1e-6".
            None: the rules of the run's hook, or all rules that apply if it has none. "all", alone or in the
            list: all rules that apply.
        live: Follow the run while it is written, until the first issue or until it has ended.
        until_end: Follow the run until it has ended, also after an issue.
        actions: Actions that get the findings.
        attempt: None: the newest attempt and those after it. A number: this attempt. "all": all attempts.
        start_step: First global step that is judged.
        end_step: Global step after the last step that is judged; None: no end.
        ended: Also judge the newest step, although no file records that the run has ended (its host died).
        write_findings: Write the findings to findings/ in the run.
        poll_interval: Time between two polls. None: 0.3 s for a folder, 1 s for a bucket.
        start_timeout: Maximum time to wait for a run that has not begun, if live or until_end; None: no
            limit.
        timeout: Maximum time to follow the run; None: no limit.
        max_findings: Number of findings that are stored per rule. All findings are counted.
        on_findings: Called with the findings that a poll began or continued, in this thread.
        on_lacking: Called once, when following, with the verdict of each rule that cannot be evaluated with
            the configuration of the run.
        state: File with the progress. A runner that is started again continues there (rules/state.py).
        workers: Divide the judgement of a run that has ended into tasks, with the same report. Maximum number
            of tasks at a time; None with an `engine`: one per CPU, or the size of the cluster.
        engine: Where the tasks run, as in `sweep`; None with `workers`: processes of this machine.
        cluster: The cluster, as in `sweep`.

    Returns:
        The verdict of each rule, with findings.

    Raises:
        RunNotFound: There is no run (when not following), or start_timeout has passed.
        RunCorrupt: The run cannot be read.
        SinkError: The storage refuses access.
        ConfigError: A rule, action or argument is invalid.
    """
    choice = RuleChoice(given=given_rules(rules), start_step=start_step, end_step=end_step)
    following = live or until_end
    if not (workers is None and engine is None and cluster is None):
        return _in_parts(
            trial, choice, attempt=attempt, ended=ended, actions=actions, write_findings=write_findings,
            max_findings=max_findings, on_findings=on_findings, workers=workers, engine=engine,
            cluster=cluster, refused=following or state is not None,
        )  # fmt: skip
    source = RunSource(trial, attempt=attempt)
    sink = source.sink
    pause = source.pause if poll_interval is None else poll_interval
    with closing(sink), locked_state(state):
        if rules is None and not source.begun():
            _wait_for_run(source, following, pause, start_timeout)
        chosen = choice.chosen(source)
        judge = Engine(
            source,
            chosen.rules,
            actions=actions,
            sink=sink,
            write_findings=write_findings,
            max_findings=max_findings,
            rules_of_run=chosen.of_run,
        )
        judge.left_out, judge.asked = tuple(chosen.left_out), chosen.asked
        state_file = None if state is None else StateFile(state, judge, source, attempt=attempt)
        if state_file is not None:
            state_file.resume()
        with finishing_actions(judge):
            if not following:
                check_there(source, attempt)
                found = _poll(judge, state_file, everything=ended)
                if on_findings is not None and found:
                    on_findings(found)
                return make_report(judge, source, state_file, finished=ended or source.finished())
            return follow(
                judge,
                source,
                until_end=until_end,
                poll_interval=pause,
                start_timeout=start_timeout,
                timeout=timeout,
                on_findings=on_findings,
                on_lacking=on_lacking,
                state_file=state_file,
            )


def _in_parts(
    trial: str | Path | Trial,
    choice: RuleChoice,
    *,
    engine: str | None,
    refused: bool,
    **options: Any,
) -> Report:
    from tdcore.rules.spread import judge_in_parts

    if refused:
        raise ConfigError(
            "workers, engine and cluster divide the judgement of a run that has ended; leave them out with "
            "live, until_end or state: a poll of a live run reads only its new rows"
        )
    return judge_in_parts(trial, choice, engine=engine or "processes", **options)


def follow(
    engine: Engine,
    source: Source,
    *,
    until_end: bool,
    poll_interval: timedelta,
    start_timeout: timedelta | None = None,
    timeout: timedelta | None = None,
    on_findings: Callable[[list[Finding]], None] | None = None,
    on_lacking: Callable[[Verdict], None] | None = None,
    state_file: StateFile | None = None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Report:
    """Call the engine until the run has ended, or until the first issue unless `until_end`.

    Findings of an earlier start also count as issues. See `run` for the arguments.

    Args:
        engine: The engine.
        source: The run.
        until_end: See `run`, as for the following arguments.
        state_file: Saves the progress.
        clock: Monotonic seconds, for tests.
        wait: Sleeps for a number of seconds, for tests.
    """
    start = clock()
    begun = False
    reported: set[str] = set()
    try:
        while True:
            found = _poll_reachable(engine, state_file, begun)
            if on_findings is not None and found:
                on_findings(found)
            if source.finished():
                return make_report(engine, source, state_file, finished=True)
            if on_lacking is not None and engine.changed:
                _report_not_evaluable(engine, reported, on_lacking)
            elapsed = clock() - start
            enough = engine.has_findings and not until_end
            if enough or (timeout is not None and elapsed >= timeout.total_seconds()):
                return make_report(engine, source, state_file, finished=False)
            begun = begun or source.begun()
            if not begun and start_timeout is not None and elapsed >= start_timeout.total_seconds():
                raise _not_begun(source, start_timeout)
            wait(poll_interval.total_seconds())
    except KeyboardInterrupt:
        return make_report(engine, source, state_file, finished=False, interrupted=True)


def _wait_for_run(
    source: Source,
    following: bool,
    poll_interval: timedelta,
    start_timeout: timedelta | None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the run exists. Raises RunNotFound; immediately if `following` is False."""
    start = clock()
    while not source.begun():
        if not following:
            raise no_run(source)
        if start_timeout is not None and clock() - start >= start_timeout.total_seconds():
            raise _not_begun(source, start_timeout)
        wait(poll_interval.total_seconds())


def _not_begun(source: Source, start_timeout: timedelta) -> RunNotFound:
    return RunNotFound(f"no run has begun at {source.where} within {start_timeout.total_seconds():g} s")


def _report_not_evaluable(engine: Engine, reported: set[str], on_lacking: Callable[[Verdict], None]) -> None:
    """Call `on_lacking` once for each rule that cannot be evaluated as the run is configured."""
    for verdict in engine.verdicts(finished=False):
        if verdict.status in FOLDED and verdict.asked and verdict.rule not in reported:
            reported.add(verdict.rule)
            on_lacking(verdict)


def _poll(engine: Engine, state_file: StateFile | None, *, everything: bool = False) -> list[Finding]:
    if state_file is not None:
        state_file.before_poll()
    engine.step(everything=everything)
    if state_file is not None:
        state_file.after_poll(engine.changed)
    return engine.news


def _poll_reachable(engine: Engine, state_file: StateFile | None, begun: bool) -> list[Finding]:
    """Poll the run once. If a run that has begun cannot be reached, add this to the problems."""
    try:
        return _poll(engine, state_file)
    except SinkError as error:
        if error.kind != "transient" or not begun:
            raise
        if str(error) not in engine.problems:
            engine.problems.append(str(error))
        return []
