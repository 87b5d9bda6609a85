"""The process that judges one run by its rules, for the view.

The view sends a byte for each judgement that it needs, and the process returns a Judgement, or the text of an
error. Rules see each row once, so that a judgement of a long run costs as much as its new rows. The process
ends when the run has ended and was judged, or when the view closes the connection.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tdcore.view.answers.opened import Judgement

__all__ = ["Judge", "main"]

_NICE = 10  # lower priority than a training on the same machine


class Judge:
    """The rules of one run: those of its hook, or all rules that apply. Threads: one.

    Raises SinkKeyError if there is no run, RunCorrupt if run.json cannot be read.
    """

    def __init__(self, place: str) -> None:
        from tdcore.rules.engine import Engine
        from tdcore.rules.run_rules import choose_rules
        from tdcore.rules.run_source import RunSource

        self._place = place
        self._source = RunSource(place)
        self._source.begun()
        chosen = choose_rules(None, self._source.sink)
        self._engine = Engine(self._source, chosen.rules, write_findings=False, rules_of_run=chosen.asked > 0)
        self._engine.left_out, self._engine.asked = tuple(chosen.left_out), chosen.asked
        self._last: Judgement | None = None

    def judge(self) -> Judgement:
        """Judge the new rows, and return the verdicts on all rows so far."""
        from tdcore.rules.diagnosis import diagnose
        from tdcore.rules.runner import Report
        from tdcore.view.answers.opened import Judgement

        engine = self._engine
        engine.step()
        finished = self._source.finished()
        if not engine.changed and self._last is not None and self._last.report.finished == finished:
            return self._last
        report = Report(
            run=self._place,
            verdicts=engine.verdicts(finished=finished),
            finished=finished,
            rows=engine.rows,
            problems=tuple(engine.problems),
            left_out=engine.left_out,
            not_recorded=self._source.not_recorded(),
        )
        self._last = Judgement(
            report=report, diagnosis=diagnose(self._place, report=report), rows=report.rows
        )
        return self._last


def main(arguments: Sequence[str]) -> int:
    """Entry point of the process. arguments: a JSON object with `place` and the descriptor `fd`."""
    from tdcore.errors import TdcoreError

    job = json.loads(arguments[0])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the view, which closes the connection
    with suppress(OSError):
        os.nice(_NICE)
    judge: Judge | None = None
    with Connection(job["fd"]) as connection, suppress(EOFError, ConnectionError):
        while True:
            connection.recv_bytes()
            answer: Judgement | str
            try:
                judge = judge or Judge(job["place"])
                answer = judge.judge()
            except TdcoreError as error:
                answer, judge = str(error), None
            except Exception as error:  # a bug of tdcore must not end the view
                answer, judge = f"{type(error).__name__}: {error}", None
            connection.send(answer)
            if judge is not None and not isinstance(answer, str) and answer.report.finished:
                break
    return 0
