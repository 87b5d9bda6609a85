"""Runner: judges a run once, or follows it while it is written.

    run("runs/demo", [VanishingGradient()])                                  what is there now
    run("runs/demo", rules, live=True, actions=[StopTraining()])             until the first issue or the
    run's end run("runs/demo", rules, live=True, until_end=True)                       until the run's end

A run that has not begun is waited for. Each poll reads only what is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tdcore.errors import ConfigError, RunNotFound, SinkError
from tdcore.rules.base import Finding, Rule, Status, Verdict
from tdcore.rules.engine import MAX_FINDINGS, Engine
from tdcore.rules.source import RunSource, Source

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.trial import Trial

__all__ = ["EXIT_CODES", "Report", "follow", "run"]

# In order of precedence: the first status that some rule has decides.
EXIT_CODES = (
    (Status.ISSUE, 1),
    (Status.ERROR, 3),
    (Status.NOT_EVALUABLE, 3),
    (Status.IN_PROGRESS, 4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a set of rules says about one run.

    finished: the run has ended and all of it was judged. interrupted: the watch was ended from outside. rows:
    captured tensors judged. problems: of actions, and of writing findings; none of them changes a verdict.
    """

    run: str
    verdicts: tuple[Verdict, ...]
    finished: bool
    interrupted: bool = False
    rows: int = 0
    problems: tuple[str, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """Findings of all rules (those kept), in order of attempts and steps."""
        found = [finding for verdict in self.verdicts for finding in verdict.findings]
        return sorted(found, key=lambda finding: (finding.attempt, finding.step))

    @property
    def exit_code(self) -> int:
        """0:

        every rule says no issue. 1: an issue. 3: not evaluable, or an error. 4: in progress, no issue so far.
        """
        statuses = {verdict.status for verdict in self.verdicts}
        return next((code for status, code in EXIT_CODES if status in statuses), 0)

    def to_json(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "run": self.run,
            "finished": self.finished,
            "interrupted": self.interrupted,
            "rows": self.rows,
            "exit_code": self.exit_code,
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "problems": list(self.problems),
        }


def run(
    trial: str | Path | Trial,
    rules: Iterable[Rule | type[Rule]],
    *,
    live: bool = False,
    until_end: bool = False,
    actions: Sequence[Action] = (),
    attempt: int | str | None = None,
    ended: bool = False,
    write_findings: bool = True,
    poll_interval: timedelta | None = None,
    start_timeout: timedelta | None = None,
    timeout: timedelta | None = None,
    max_findings: int = MAX_FINDINGS,
    on_findings: Callable[[list[Finding]], None] | None = None,
) -> Report:
    """Judges a run by rules and returns their verdicts.

    trial: folder, URL or open Trial. rules: instances; a class stands for itself with its defaults. live:
    follow the run while it is written, until the first issue or until it has ended. until_end: follow it to
    its end whatever is found. attempt: None for the newest and those that follow, a number for that one,
    "all". ended: judge the newest step too although nothing says that the run has ended (its host died).
    write_findings: keep findings/ in the run. poll_interval: between two looks; None: 0.3 s in a folder, a
    second in a bucket. start_timeout: how long a run that has not begun is waited for
    when following; None: without limit. timeout: how long to follow at all. on_findings: called with what
    each look found. KeyboardInterrupt ends the watch and gives the report so far, with interrupted set.

    Raises RunNotFound when there is no run (not following, or start_timeout over), RunCorrupt when it cannot
    be read, SinkError when its place refuses. A place that is away for a while is waited for when following.
    """
    source = RunSource(trial, attempt=attempt)
    sink = source.sink
    instances = [rule() if isinstance(rule, type) else rule for rule in rules]
    if not instances:
        raise ConfigError("no rule was given; name at least one, such as VanishingGradient()")
    with closing(sink):
        engine = Engine(
            source,
            instances,
            actions=actions,
            sink=sink if write_findings else None,
            max_findings=max_findings,
        )
        for rule in instances:  # rules of the older kind look at the run themselves
            attach = getattr(rule, "attach", None)
            if attach is not None:
                attach(source)
        if not (live or until_end):
            if not source.begun():
                raise RunNotFound(
                    f"there is no run at {source.where}; give a hook's out_dir, or follow it (live) to wait"
                )
            found = engine.step(everything=ended)
            if on_findings is not None and found:
                on_findings(found)
            return _report(engine, source, finished=ended or source.finished())
        return follow(
            engine,
            source,
            until_end=until_end,
            poll_interval=source.pause if poll_interval is None else poll_interval,
            start_timeout=start_timeout,
            timeout=timeout,
            on_findings=on_findings,
        )


def follow(
    engine: Engine,
    source: Source,
    *,
    until_end: bool,
    poll_interval: timedelta,
    start_timeout: timedelta | None = None,
    timeout: timedelta | None = None,
    on_findings: Callable[[list[Finding]], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> Report:
    """Steps the engine until the run has ended, or until the first issue unless `until_end`. See `run`.

    clock, wait: seconds; tests put functions of their own here.
    """
    start = clock()
    begun = False
    try:
        while True:
            found = _step(engine, begun)
            if on_findings is not None and found:
                on_findings(found)
            if source.finished():
                return _report(engine, source, finished=True)
            elapsed = clock() - start
            if (found and not until_end) or (timeout is not None and elapsed >= timeout.total_seconds()):
                return _report(engine, source, finished=False)
            begun = begun or source.begun()
            if not begun and start_timeout is not None and elapsed >= start_timeout.total_seconds():
                raise RunNotFound(
                    f"no run has begun at {source.where} within {start_timeout.total_seconds():g} s"
                )
            wait(poll_interval.total_seconds())
    except KeyboardInterrupt:
        return _report(engine, source, finished=False, interrupted=True)


def _step(engine: Engine, begun: bool) -> list[Finding]:
    """One look. A run that was seen before may be out of reach for a while: a problem, not the end."""
    try:
        return engine.step()
    except SinkError as error:
        if error.kind != "transient" or not begun:
            raise
        if str(error) not in engine.problems:
            engine.problems.append(str(error))
        return []


def _report(engine: Engine, source: Source, *, finished: bool, interrupted: bool = False) -> Report:
    engine.close()
    return Report(
        run=source.where,
        verdicts=engine.verdicts(finished=finished),
        finished=finished,
        interrupted=interrupted,
        rows=engine.rows,
        problems=tuple(engine.problems),
    )
