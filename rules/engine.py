"""Engine: passes complete steps to rules, and their findings to actions and to findings/.

Each rule gets each captured tensor exactly once. A rule about system samples or times of steps gets each of
these rows once, and no tensors. All rules share one read of the index. A rule that raises an exception gets
the verdict `error` and is not called again; the other rules continue. Live and offline runs use the same
code: call `step` once, or repeatedly while the run is written (rules/runner.py). Threads: one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.compute as pc

from tdcore.actions.base import notice_key
from tdcore.actions.dispatcher import CLOSE_TIMEOUT, ActionDispatcher
from tdcore.errors import SinkError
from tdcore.format import layout
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules.base import Finding, Rule, Verdict, judges_tensors
from tdcore.rules.columns import Columns
from tdcore.rules.recordings import recorded_tables
from tdcore.rules.rule_attributes import reads_of
from tdcore.rules.rule_run import RuleRun, labelled
from tdcore.rules.source import COLUMNS, RowBatch, Source
from tdcore.rules.verdicts import SeenRows, combine_verdicts, make_verdict
from tdcore.rules.window import Window

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.sinks import Sink

__all__ = ["MAX_FINDINGS", "Engine"]

MAX_FINDINGS = 1000  # stored per rule, and created in one poll; all findings are counted
# Columns that the engine reads itself, and those that identify a row in a finding.
_ENGINE_COLUMNS = (
    "attempt", "worker", "mode", "mode_step", "step", "seq", "name", "kind", "origin", "call", "status",
    "time_ns",
)  # fmt: skip
FindingKey: TypeAlias = "tuple[str, int, str, int, str, str]"


class Engine:
    """Checks one run with a set of rules.

    Args:
        source: The rows of the run.
        rules: Instances; a second instance of a class gets a number in its label.
        actions: Get the findings.
        sink: The run, for findings/ and for actions; None: nothing is written.
        write_findings: False: findings/ is not written.
        max_findings: Number of findings that are stored per rule. All findings are counted.
        clock_ns: Time of day, for rules about elapsed time.
        rules_of_run: The run names the rules, not the user, so that their patterns are run with the limits
            for patterns of a run (tdcore/format/run_patterns.py).
    """

    def __init__(
        self,
        source: Source,
        rules: Iterable[Rule],
        *,
        actions: Sequence[Action] = (),
        sink: Sink | None = None,
        write_findings: bool = True,
        max_findings: int = MAX_FINDINGS,
        clock_ns: Callable[[], int] = time.time_ns,
        rules_of_run: bool = False,
    ) -> None:
        self.source = source
        self._run_patterns = RunPatterns() if rules_of_run else None
        self.problems: list[str] = []  # failures of actions and of writing findings; the rules continue
        self.left_out: tuple[str, ...] = ()  # rules that could not be loaded, with the reason
        self.asked: int | None = None  # number of rules, the first ones, that the user named; None: all
        given = list(rules)
        self._runs = labelled(given)
        self._given = len(given)  # these runs come first; the others are rules that they combine
        self._dispatcher = ActionDispatcher(actions)
        self._sink = sink  # for actions
        self._findings_sink = sink if write_findings else None
        self._max_findings = max_findings
        self._clock_ns = clock_ns
        self._seen = SeenRows()
        self._ended: frozenset[tuple[int, str]] = frozenset()
        self._delivered: dict[FindingKey, int] = {}  # to actions, with the number of steps then
        self._pending: list[Finding] = []  # not delivered yet
        self.news: list[Finding] = []  # findings that the last step() began or continued
        self.before_acting: Callable[[], None] = lambda: None  # called before actions get new findings
        self.changed = False  # whether the last step() checked new rows
        self._untold: dict[str, list[FindingKey]] = {}  # by action, as of the last step()
        self._order = {run.label: number for number, run in enumerate(self._runs)}
        self._columns = _columns_of([run.rule for run in self._runs])

    def step(self, *, everything: bool = False) -> list[Finding]:
        """Check the steps that became complete, and the new samples and times of steps, since the last call.

        `news` has the findings that these steps began or continued, each with all its steps so far.

        Args:
            everything: Also check the newest steps, although they may be incomplete (for a run that does not
                continue).

        Returns:
            The findings of these steps, one for each step, in order of steps; at most max_findings per rule.

        Raises:
            RunCorrupt: The run is damaged.
            SinkError: The run cannot be read. The next call continues at the same place.
        """
        found: list[Finding] = []
        self.news = []
        batch = self.source.next(self._columns, everything=everything)
        changed = self._check_batch(batch, found)
        while batch.more:
            batch = self.source.next(self._columns, everything=everything)
            changed |= self._check_batch(batch, found)
            self.news = list({finding.key: finding for finding in self.news}.values())  # the newest of each
        recorded = self._check_recorded(batch, found)
        found.sort(key=self._in_order)
        self.changed = bool(changed or recorded or self.news or self._pending)
        self._publish()
        return found

    def _publish(self) -> None:
        """Write the findings of `news`, and pass them to actions."""
        self.news.sort(key=self._in_order)
        self._pending += self.news
        self._write_findings()
        self._dispatcher.try_again(self.source, self._sink)
        self._act()
        self._take_problems()
        for remark in getattr(self.source, "remarks", list)():
            self._problem(remark)
        untold = self._dispatcher.untold()
        self.changed, self._untold = self.changed or untold != self._untold, untold

    def _in_order(self, finding: Finding) -> tuple[int, int, int]:
        """Sort key of findings: attempt, step, and the order of the rules."""
        return (finding.attempt, finding.step, self._order[finding.rule])

    def only(self, labels: Collection[str]) -> None:
        """Check only the rules with these labels. Call it before the first `step`."""
        self._runs = [run for run in self._runs if run.label in labels]
        self._columns = _columns_of([run.rule for run in self._runs])

    def _check_batch(self, batch: RowBatch, found: list[Finding]) -> bool:
        """Check the rows of a batch; add to `found` and `news`. Return whether rows or ends are new."""
        rows = batch.table.num_rows
        newly_ended = batch.ended - self._ended
        self._ended = batch.ended
        runs = self._runs
        if not rows and not newly_ended:
            runs = [run for run in runs if getattr(run.rule, "each_look", False)]
        columns = Columns(batch.table)
        self._seen.add(columns)
        for run in runs:
            if judges_tensors(run.rule):
                self._check(run, self._window(run, columns, batch), found)
        return bool(rows or newly_ended)

    def verdicts(self, *, finished: bool) -> tuple[Verdict, ...]:
        """The verdict of each rule. finished: whether the run has ended and all of its rows were checked."""
        asked = self._given if self.asked is None else self.asked
        found = {
            run.label: make_verdict(run, self.source, self._seen, finished=finished, asked=number < asked)
            for number, run in enumerate(self._runs)
        }
        for run in self._runs:
            if run.combined:
                found[run.label] = combine_verdicts(
                    found[run.label], [found[label] for label in run.combined]
                )
        return tuple(found.values())

    @property
    def rows(self) -> int:
        """Number of rows that were checked so far."""
        return self._seen.rows

    @property
    def labels(self) -> list[tuple[str, Rule]]:
        """Label and rule of each rule."""
        return [(run.label, run.rule) for run in self._runs]

    @property
    def runs(self) -> Sequence[RuleRun]:
        """The rules with their state."""
        return self._runs

    @property
    def has_findings(self) -> bool:
        """Whether there are findings, also of earlier starts."""
        return any(run.count for run in self._runs)

    def state(self) -> dict[str, Any]:
        """The live state (not a copy) of the engine without the state of the source, for rules/state.py."""
        return {
            "rows": self._seen.rows,
            "kinds": self._seen.kinds,
            "classes": self._seen.classes,
            "recorded": self._seen.recorded,
            "present": self._seen.present,
            "ended": self._ended,
            "delivered": dict(self._delivered),
            "untold": self._dispatcher.untold(),
            "judges": [run.state() for run in self._runs],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another engine with the same rules. Call it before the first `step`."""
        self._seen = SeenRows(
            rows=state["rows"],
            kinds=state["kinds"],
            classes=state["classes"],
            recorded=state.get("recorded", {}),
            present=state.get("present", {}),
        )
        self._ended = state["ended"]
        self._delivered = dict(state["delivered"])
        for run, saved in zip(self._runs, state["judges"], strict=True):
            run.restore(saved)
        findings = [finding for run in self._runs for finding in run.findings.values()]
        self._pending = [finding for finding in findings if self._is_news(finding)]
        by_key = {finding.key: finding for finding in findings}
        untold = {
            action: [by_key[key] for key in keys if key in by_key]
            for action, keys in state.get("untold", {}).items()
        }
        told = (notice_key(by_key[key]) for key in self._delivered if key in by_key)
        self._dispatcher.restore(told, untold)

    def close(self) -> None:
        """Wait for actions, and delete old files in findings/ of rules that have no findings now."""
        self.finish_actions()
        if self._findings_sink is None or not (self.rows or any(self._seen.recorded.values())):
            return
        self._write_findings(everything=True)
        for run in self._runs:
            if not run.count:
                try:
                    self._findings_sink.delete(layout.findings_key(run.label))
                except SinkError as error:
                    self._problem(f"old findings of {run.label} could not be removed: {error}")

    def finish_actions(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Wait for actions, at most `timeout`. The runner also calls it after the rules have failed."""
        self._dispatcher.try_again(self.source, self._sink, last=True)
        self._dispatcher.close(timeout)
        self._take_problems()

    @property
    def has_actions(self) -> bool:
        """Whether there are actions."""
        return bool(self._dispatcher.actions)

    def _check_recorded(self, batch: RowBatch, found: list[Finding]) -> int:
        """Check new system samples and times of steps with the rules that judge them; return their number."""
        number = 0
        no_rows = Columns(batch.table.slice(0, 0))
        for recording, table in recorded_tables(self.source, [run.rule for run in self._runs]):
            rows = recording.rows(table)
            number += len(rows)
            self._seen.add_recorded(recording.field, rows)
            for run in self._runs:
                if recording.columns_of(run.rule):
                    self._check(run, self._window(run, no_rows, batch, **{recording.field: rows}), found)
        for run in self._runs:
            if getattr(run.rule, "each_look", False) and not judges_tensors(run.rule):
                self._check(run, self._window(run, no_rows, batch), found)
        return number

    def _check(self, run: RuleRun, window: Window, found: list[Finding]) -> None:
        """Check one window, unless the rule has failed; add to `found` and `news`."""
        if not run.error:
            of_window, changed = run.check(window, self._max_findings)
            found += of_window
            self.news += changed

    def _window(self, run: RuleRun, columns: Columns, batch: RowBatch, **recorded: Any) -> Window:
        """The window of a rule. recorded: `samples` or `step_times`."""
        training = self.source.training() if recorded else None
        return Window(
            columns=columns,
            memory=run.memory,
            ended=batch.ended,
            members=self.source.members,
            payload=batch.payload,
            room=self._max_findings,
            coverage=run.coverage,
            now_ns=self._now_ns(batch),
            run_patterns=self._run_patterns,
            notes=self.source.notes,
            epoch=self.source.epoch,
            world_size=0 if training is None else training.world_size,
            positions=None if recorded else batch.positions,
            **recorded,
        )

    def _now_ns(self, batch: RowBatch) -> int:
        """Time of day of the poll; if more rows follow, the time of the newest row of the batch."""
        if batch.more and batch.table.num_rows:
            return int(pc.max(batch.table.column("time_ns")).as_py())
        return self._clock_ns()

    def _write_findings(self, *, everything: bool = False) -> None:
        """Write the findings that must be written now; everything: all findings that have changed."""
        if self._findings_sink is None:
            return
        for run in self._runs:
            if not (run.must_write or (everything and run.unwritten)):
                continue
            lines = "".join(json.dumps(f.to_json(), allow_nan=False) + "\n" for f in run.findings.values())
            try:
                self._findings_sink.put(layout.findings_key(run.label), [lines.encode()])
                run.unwritten, run.written = False, run.occurrences
            except SinkError as error:
                self._problem(f"findings of {run.label} could not be written: {error}")

    def _act(self) -> None:
        """Pass each finding to each action when the finding begins, and at each poll that continues it."""
        found = [f for f in {f.key: f for f in self._pending}.values() if self._is_news(f)]
        self._pending = []
        if not found:
            return
        new = any(finding.key not in self._delivered for finding in found)  # others: at the next save
        if self._dispatcher.actions and new:
            self.before_acting()
        self._dispatcher.give(found, self.source, self._sink)
        self._delivered.update((finding.key, finding.count) for finding in found)

    def _is_news(self, finding: Finding) -> bool:
        """Whether the actions do not have the finding yet, or do not have its newest step."""
        return finding.count > self._delivered.get(finding.key, 0)

    def _take_problems(self) -> None:
        for problem in self._dispatcher.take_problems():
            self._problem(problem)

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


def _columns_of(rules: Sequence[Rule]) -> list[str]:
    """The columns that the engine and these rules read."""
    of_tensors = [rule for rule in rules if judges_tensors(rule)]
    declared = [reads_of(rule) for rule in of_tensors]
    common = (
        COLUMNS if None in declared else [*_ENGINE_COLUMNS, *(c for each in declared for c in each or ())]
    )
    return list(dict.fromkeys([*common, *(c for rule in rules for c in getattr(rule, "columns", ()))]))
