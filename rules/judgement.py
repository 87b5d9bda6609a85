"""The begin and the end of a judgement, by one task (rules/runner.py) or by many (rules/spread/).

Functions without state; the thread of the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from tdcore.actions.dispatcher import CLOSE_TIMEOUT
from tdcore.errors import RunNotFound
from tdcore.rules.engine import Engine
from tdcore.rules.run_report import Report
from tdcore.rules.run_source import RunSource
from tdcore.rules.source import Source
from tdcore.rules.state import StateFile

__all__ = ["check_there", "finishing_actions", "make_report", "no_run"]

_log = logging.getLogger("tdcore.rules")


def check_there(source: RunSource, attempt: int | str | None) -> None:
    """Raise RunNotFound if there is no run, or it has no such attempt."""
    if not source.begun():
        raise no_run(source)
    if isinstance(attempt, int) and attempt not in source.attempts:
        numbers = ", ".join(map(str, source.attempts)) or "none"
        raise RunNotFound(f"{source.where} has no attempt {attempt}; it has {numbers}")


def no_run(source: Source) -> RunNotFound:
    """The exception for a place without a run."""
    return RunNotFound(
        f"there is no run at {source.where}; give the out_dir of a hook, or use live=True (--live) to wait "
        "for the run"
    )


@contextmanager
def finishing_actions(engine: Engine) -> Iterator[None]:
    """After an exception in the block, deliver earlier findings to actions. Log failures of actions."""
    try:
        yield
    except BaseException as error:
        known = len(engine.problems)
        engine.finish_actions(
            CLOSE_TIMEOUT if isinstance(error, Exception) else timedelta()
        )  # Ctrl-C: do not wait
        for problem in engine.problems[known:]:
            _log.warning("tdcore: %s", problem)
        raise


def make_report(
    engine: Engine, source: Source, state_file: StateFile | None, *, finished: bool, interrupted: bool = False
) -> Report:
    """The report of an engine, after its actions have ended."""
    if state_file is not None:
        state_file.close()
    engine.close()
    if state_file is not None and engine.has_actions:
        state_file.acted()
    return Report(
        run=source.where,
        verdicts=engine.verdicts(finished=finished),
        finished=finished,
        interrupted=interrupted,
        rows=engine.rows,
        problems=tuple(engine.problems),
        left_out=engine.left_out,
        not_recorded=source.not_recorded(),
    )
