"""Engine: feeds rules with complete steps, keeps what they found, and hands it to actions and to findings/.

Each captured tensor is shown to each rule exactly once. All rules share one read of the index. A rule that
raises is set aside with a verdict `error`; the others go on. Live and offline runs use the same code: call
`step` once, or again and again while the run is written (rules/runner.py). Threads: one engine, one thread.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tdcore.actions.outbox import CLOSE_TIMEOUT, Outbox
from tdcore.config.collection_config import CollectionConfig
from tdcore.errors import SinkError
from tdcore.format import layout
from tdcore.format.run_patterns import RunPatterns
from tdcore.rules.applies import why_not_applicable
from tdcore.rules.base import Finding, Rule, Status, Verdict
from tdcore.rules.bounds import bounds_of, unbounded
from tdcore.rules.evaluable import lacking, unmatched
from tdcore.rules.need import Need
from tdcore.rules.source import COLUMNS, Batch, Source
from tdcore.rules.window import Columns, Coverage, Window

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.sinks import Sink

__all__ = ["MAX_FINDINGS", "Engine"]

MAX_FINDINGS = 1000  # kept per rule; all are counted
_LEFT_OUT = f"see the note {layout.LEFT_OUT_NOTE!r}"


class Engine:
    """Judges one run by a set of rules.

    source: where rows come from. rules: instances; the same class twice gets a number in its label. actions:
    what is to be done about findings. sink: for findings/ and what actions ask of the run; None: neither is
    written. write_findings: False leaves findings/ alone. max_findings: how many are kept per rule. clock_ns:
    time of day, for rules about the time that passes. rules_of_run: the run names the rules, and not the
    user, so that their patterns are searched with as those of a run (tdcore/format/run_patterns.py).
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
        self.problems: list[str] = []  # of actions and of writing findings; judging goes on
        self.left_out: tuple[str, ...] = ()  # what else it was asked to judge by, and why it does not
        self.asked: int | None = None  # how many of the rules, the first ones, were named; None: all
        self.rows = 0
        self._judges = _labelled(rules)
        self._outbox = Outbox(actions)
        self._sink = sink  # for actions
        self._findings_sink = sink if write_findings else None
        self._max_findings = max_findings
        self._clock_ns = clock_ns
        self._kinds: set[str] = set()
        self._classes: set[str] = set()  # of modules whose outputs were seen
        self._ended: frozenset[tuple[int, str]] = frozenset()
        self._delivered: dict[FindingKey, None] = {}  # what actions have seen, an ordered set
        self._pending: list[Finding] = []  # what they are to see
        self.before_acting: Callable[[], None] = lambda: None  # called when they are about to
        self.changed = False  # whether the last look had anything new
        self._untold: dict[str, list[FindingKey]] = {}  # by action, as of the last look
        self._columns = list(
            dict.fromkeys([*COLUMNS, *(c for j in self._judges for c in getattr(j.rule, "columns", ()))])
        )

    def step(self, *, everything: bool = False) -> list[Finding]:
        """Judges what became complete since the last call; returns what was found, in order of steps.

        everything: also the newest steps, although they may not be complete (for a run that will not go on).
        Raises RunCorrupt or SinkError when the run cannot be read; what was judged before stays judged.
        """
        batch = self.source.next(self._columns, everything=everything)
        rows = batch.table.num_rows
        newly_ended = batch.ended - self._ended
        self._ended = batch.ended
        judges = self._judges
        if not rows and not newly_ended:
            judges = [judge for judge in judges if getattr(judge.rule, "each_look", False)]
        self.rows += rows
        columns = Columns(batch.table)
        if rows:
            codes, texts = columns.codes("kind")
            self._kinds.update(filter(None, (texts[code] for code in np.unique(codes).tolist())))
            outputs = columns.where("kind", "output".__eq__)
            codes, texts = columns.codes("origin")
            self._classes.update(filter(None, (texts[code] for code in np.unique(codes[outputs]).tolist())))
        found: list[Finding] = []
        for judge in judges:
            found += self._judge(judge, columns, batch)
        found.sort(key=lambda finding: (finding.attempt, finding.step))
        self.changed = bool(rows or newly_ended or found or self._pending)
        self._pending += found
        self._write_findings()
        self._outbox.try_again(self.source, self._sink)
        self._act()
        self._take_problems()
        for remark in getattr(self.source, "remarks", list)():
            self._problem(remark)
        untold = self._outbox.untold()
        self.changed, self._untold = self.changed or untold != self._untold, untold
        return found

    def verdicts(self, *, finished: bool) -> tuple[Verdict, ...]:
        """Where each rule stands. finished: whether all that the run will ever hold was judged."""
        asked = len(self._judges) if self.asked is None else self.asked
        return tuple(
            self._verdict(judge, finished, asked=number < asked) for number, judge in enumerate(self._judges)
        )

    @property
    def labels(self) -> list[tuple[str, Rule]]:
        """The rules by the names they run under."""
        return [(judge.label, judge.rule) for judge in self._judges]

    @property
    def has_findings(self) -> bool:
        """Whether anything was found so far, in earlier starts too."""
        return any(judge.count for judge in self._judges)

    def state(self) -> dict[str, Any]:
        """All that the next `step` depends on, but for the source: for rules/state.py. Not a copy."""
        return {
            "rows": self.rows,
            "kinds": self._kinds,
            "classes": self._classes,
            "ended": self._ended,
            "delivered": list(self._delivered),
            "untold": self._outbox.untold(),
            "judges": [{name: getattr(judge, name) for name in _KEPT} for judge in self._judges],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over what another engine with the same rules has left. Before the first `step`."""
        self.rows, self._kinds, self._ended = state["rows"], state["kinds"], state["ended"]
        self._classes = state["classes"]
        self._delivered = dict.fromkeys(state["delivered"])
        for judge, kept in zip(self._judges, state["judges"], strict=True):
            for name in _KEPT:
                setattr(judge, name, kept[name])
        findings = [finding for judge in self._judges for finding in judge.findings]
        self._pending = [finding for finding in findings if finding.key not in self._delivered]
        by_key = {finding.key: finding for finding in findings}
        untold = {
            action: [by_key[key] for key in keys if key in by_key]
            for action, keys in state.get("untold", {}).items()
        }
        told = ((*key[:3], *key[4:]) for key in self._delivered)  # without their step
        self._outbox.restore(told, untold)

    def close(self) -> None:
        """Waits, for a while, until actions have told all. Clears findings/ of what these rules left when
        they ran before, where they found nothing now.
        """
        self.finish_actions()
        if self._findings_sink is None or not self.rows:
            return
        for judge in self._judges:
            if not judge.count:
                try:
                    self._findings_sink.delete(layout.findings_key(judge.label))
                except SinkError as error:
                    self._problem(f"old findings of {judge.label} could not be removed: {error}")

    def finish_actions(self, timeout: timedelta = CLOSE_TIMEOUT) -> None:
        """Waits, at most so long, until actions have told all. Also for when judging has failed."""
        self._outbox.try_again(self.source, self._sink, last=True)
        self._outbox.close(timeout)
        self._take_problems()

    @property
    def has_actions(self) -> bool:
        """Whether there is anything to do about findings."""
        return bool(self._outbox.actions)

    def _judge(self, judge: _Judge, columns: Columns, batch: Batch) -> list[Finding]:
        if judge.error:
            return []
        window = Window(
            columns=columns,
            memory=judge.memory,
            ended=batch.ended,
            members=self.source.members,
            payload=batch.payload,
            room=max(0, self._max_findings - judge.count),
            coverage=judge.coverage,
            now_ns=self._clock_ns(),
            run_patterns=self._run_patterns,
        )
        found: list[Finding] = []
        try:
            for finding in judge.rule.check(window):
                judge.count += 1
                if judge.count <= self._max_findings:
                    found.append(
                        finding if finding.rule == judge.label else replace(finding, rule=judge.label)
                    )
        except Exception as error:  # a rule is anybody's code: whatever it raises must not stop the others
            judge.error = _where_raised(error)
        judge.count += judge.coverage.unlisted
        judge.coverage.unlisted = 0
        found.sort(key=lambda finding: (finding.attempt, finding.step))
        judge.findings += found
        judge.unwritten = judge.unwritten or bool(found)
        if len(columns.table):
            newest = int(columns.ints("step").argmax())
            if columns.ints("step")[newest] >= judge.last_step:
                judge.last_step, judge.last_mode_step = (
                    int(columns.ints(name)[newest]) for name in ("step", "mode_step")
                )
                judge.last_mode = columns.text("mode", newest)
        return found

    def _verdict(self, judge: _Judge, finished: bool, *, asked: bool) -> Verdict:
        reason, fix = "", ""
        left_out = self._left_out(judge)
        captures: tuple[CollectionConfig, ...] = ()
        if judge.count:
            status, reason = Status.ISSUE, judge.error
        elif judge.error:
            status, reason = Status.ERROR, judge.error
        elif judge.coverage.judged == 0:
            try:
                need = judge.rule.needs()
                fix, captures = need.fix, need.captures
                lack = self._lack(judge, need, finished)
                if left_out or (finished and unmatched(need, self.source.capture())):
                    fix, captures = "", ()  # asking for them again would not help
                status = Status.NOT_EVALUABLE if finished or lack else Status.IN_PROGRESS
                reason = lack or self._lacks(judge, need.what)
                if left_out:
                    reason = f"{left_out:,} names that it may need were left out ({_LEFT_OUT}). {reason}"
                foreign = "" if left_out else self._foreign(judge, need)
                if foreign:
                    status, reason, fix, captures = Status.NOT_APPLICABLE, foreign, "", ()
            except Exception as error:  # as for check: the other rules have their verdicts
                status, reason = Status.ERROR, _where_raised(error)
        else:
            status = Status.NO_ISSUE if finished else Status.IN_PROGRESS
        return Verdict(
            rule=judge.label,
            code=judge.rule.code,
            status=status,
            parameters=_parameters(judge.rule),
            findings=tuple(judge.findings),
            finding_count=judge.count,
            judged=judge.coverage.judged,
            last_step=judge.last_step if judge.last_step >= 0 else None,
            last_mode=judge.last_mode,
            last_mode_step=judge.last_mode_step if judge.last_mode_step >= 0 else None,
            missing=dict(judge.coverage.missing)
            | ({f"names left out, {_LEFT_OUT}": left_out} if left_out else {}),
            reason=reason,
            fix=fix,
            captures=captures,
            asked=asked,
        )

    def _left_out(self, judge: _Judge) -> int:
        """How many names, of the kinds that the rule needs, the run could not record."""
        found = self.source.left_out()
        if found is None:
            return 0
        try:
            return found.of_kinds(judge.rule.needs().kinds)
        except Exception:  # a rule is anybody's code; its own verdict says what is wrong
            return found.names

    def _foreign(self, judge: _Judge, need: Need) -> str:
        """Why the rule does not apply to this run, once something of the run was seen; "" where it may."""
        if not self.rows:
            return ""
        capture = self.source.capture()
        names = () if capture is None else [each.name for each in capture.collections]
        classes = self._classes if "outputs" in names or "all" in names else ()
        seen = bool(judge.coverage.missing)
        return why_not_applicable(need, self.source.training(), classes, seen=seen)

    def _lack(self, judge: _Judge, need: Need, finished: bool) -> str:
        """What the run is not configured to capture, once something of it was seen; "" when that is open."""
        if not self.rows:
            return ""
        return lacking(need, self.source.capture(), seen=bool(judge.coverage.missing), ended=finished)

    def _lacks(self, judge: _Judge, what: str) -> str:
        """Why nothing could be judged: what was there and did not do, or what there is instead."""
        missing = judge.coverage.missing
        if missing:
            return (
                "; ".join(f"{why} ({count} times)" for why, count in missing.items()) + f". It needs {what}."
            )
        if not self.rows:
            return f"the run holds no tensors. It needs {what}."
        return f"the run does not hold {what}; it holds tensors of kind {', '.join(sorted(self._kinds))}."

    def _write_findings(self) -> None:
        if self._findings_sink is None:
            return
        for judge in self._judges:
            if not judge.unwritten:
                continue
            lines = "".join(
                json.dumps(finding.to_json(), allow_nan=False) + "\n" for finding in judge.findings
            )
            try:
                self._findings_sink.put(layout.findings_key(judge.label), [lines.encode()])
                judge.unwritten = False
            except SinkError as error:
                self._problem(f"findings of {judge.label} could not be written: {error}")

    def _act(self) -> None:
        """Hands each finding to each action once; the same finding again is no news."""
        found = list({f.key: f for f in self._pending if f.key not in self._delivered}.values())
        self._pending = []
        if not found:
            return
        if self._outbox.actions:
            self.before_acting()
        self._outbox.give(found, self.source, self._sink)
        self._delivered.update(dict.fromkeys(finding.key for finding in found))

    def _take_problems(self) -> None:
        for problem in self._outbox.take_problems():
            self._problem(problem)

    def _problem(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)


@dataclass(slots=True, kw_only=True)
class _Judge:
    """One rule at work. Only the engine touches it."""

    rule: Rule
    label: str
    memory: dict[Any, Any] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    findings: list[Finding] = field(default_factory=list)
    count: int = 0
    last_step: int = -1
    last_mode: str = ""
    last_mode_step: int = -1
    error: str = ""
    unwritten: bool = False


_KEPT = (
    "memory", "coverage", "findings", "count", "last_step", "last_mode", "last_mode_step", "error",
    "unwritten",
)  # fmt: skip
FindingKey: TypeAlias = "tuple[str, int, str, int, str, str]"


def _labelled(rules: Iterable[Rule]) -> list[_Judge]:
    judges: list[_Judge] = []
    taken: set[str] = set()
    for rule in rules:
        name = getattr(rule, "label", type(rule).__name__)
        label, number = name, 1
        while label in taken:
            number += 1
            label = f"{name}-{number}"
        taken.add(label)
        judges.append(_Judge(rule=rule, label=label))
    return judges


def _parameters(rule: Rule) -> Mapping[str, str]:
    """Parameters that differ from their defaults, and bounds, as text."""
    inner: object = unbounded(rule)
    if not is_dataclass(inner):
        return bounds_of(rule)
    values = ((f.name, getattr(inner, f.name), f.default) for f in fields(inner))
    return {name: str(value) for name, value, default in values if value != default} | bounds_of(rule)


def _where_raised(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
