"""make_verdict: the verdict of one rule on one run so far, with the reason if nothing could be judged.

Plain functions; the thread of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace

import numpy as np

from tdcore.config.collection_config import CollectionConfig
from tdcore.format import layout
from tdcore.rules.applicability import why_not_applicable
from tdcore.rules.base import (
    Rule,
    Status,
    Summary,
    Verdict,
    is_summary,
    judges_tensors,
    step_time_columns_of,
    system_columns_of,
)
from tdcore.rules.columns import Columns
from tdcore.rules.recordings import RecordedRows
from tdcore.rules.requirements import Need, unmatched_collections, why_not_evaluable
from tdcore.rules.rule_run import RuleRun, where_raised
from tdcore.rules.source import Source
from tdcore.rules.step_range import step_range_of, without_step_range

__all__ = ["SeenRows", "combine_verdicts", "make_verdict"]

_LEFT_OUT = f"see the note {layout.LEFT_OUT_NOTE!r}"

_SAMPLES = "the flusher takes them unless TDCORE_SYSTEM_INTERVAL is off"
_STEP_TIMES = (
    "hooks record them unless TDCORE_STEP_TIMES is off, and runs of earlier versions do not have them"
)
_PHASES = "the training has no such phase, or the hook of its framework does not record the phase"
_GPU_SAMPLES = 'they need an NVIDIA GPU, its driver and pip install "tdcore-capture[gpu]"'


@dataclass(slots=True, kw_only=True)
class SeenRows:
    """Summary of a run so far.

    Attributes:
        rows: Number of rows.
        kinds: Kinds of tensors.
        classes: Classes of modules with outputs.
        recorded: Numbers of system samples and of times of steps, by field of Window (rules/recordings.py).
        present: Their columns that have a value, by field of Window.
    """

    rows: int = 0
    kinds: set[str] = field(default_factory=set)
    classes: set[str] = field(default_factory=set)
    recorded: dict[str, int] = field(default_factory=dict)
    present: dict[str, set[str]] = field(default_factory=dict)

    def add(self, columns: Columns) -> None:
        """Add the rows of one table."""
        self.rows += len(columns.table)
        if not len(columns.table):
            return
        codes, texts = columns.codes("kind")
        self.kinds.update(filter(None, (texts[code] for code in np.unique(codes).tolist())))
        outputs = columns.where("kind", "output".__eq__)
        codes, texts = columns.codes("origin")
        self.classes.update(filter(None, (texts[code] for code in np.unique(codes[outputs]).tolist())))

    def join(self, other: SeenRows) -> None:
        """Add the rows of another part of the run."""
        self.rows += other.rows
        self.kinds |= other.kinds
        self.classes |= other.classes
        for kind, number in other.recorded.items():
            self.recorded[kind] = self.recorded.get(kind, 0) + number
            self.present[kind] = self.present.get(kind, set()) | other.present[kind]

    def add_recorded(self, kind: str, rows: RecordedRows) -> None:
        """Add system samples or times of steps. kind: the field of Window."""
        self.recorded[kind] = self.recorded.get(kind, 0) + len(rows)
        self.present[kind] = self.present.get(kind, set()) | rows.present


def make_verdict(run: RuleRun, source: Source, seen: SeenRows, *, finished: bool, asked: bool) -> Verdict:
    """The verdict of a rule.

    Args:
        run: The rule and its state.
        source: The run.
        seen: Summary of all rows that the rules have got.
        finished: Whether the run is complete and all its rows were checked.
        asked: Whether the user or the hook has named the rule.
    """
    reason, fix = "", ""
    summary = _summary(run)
    left_out = _left_out_names(run, source)
    captures: tuple[CollectionConfig, ...] = ()
    if run.count:
        status, reason = Status.ISSUE, run.error
    elif run.error:
        status, reason = Status.ERROR, run.error
    elif run.coverage.judged == 0 and not judges_tensors(run.rule):
        status = Status.NOT_EVALUABLE if finished else Status.IN_PROGRESS
        reason = _missing_recording_text(run, seen)
        foreign = why_not_applicable(run.rule.needs(), source.training(), (), seen=False)
        if foreign:
            status, reason = Status.NOT_APPLICABLE, foreign
    elif run.coverage.judged == 0:
        try:
            need = run.rule.needs()
            fix, captures = need.fix, need.captures
            lack = _configuration_problem(run, source, seen, need, finished)
            if left_out or (finished and unmatched_collections(need, source.capture())):
                fix, captures = "", ()  # it would not help to capture them again
            status = Status.NOT_EVALUABLE if finished or lack else Status.IN_PROGRESS
            reason = lack or _missing_text(run, seen, need.what)
            if left_out:
                reason = f"{left_out:,} names that the rule may need were left out ({_LEFT_OUT}). {reason}"
            foreign = "" if left_out else _why_not_applicable(run, source, seen, need)
            if foreign:
                status, reason, fix, captures = Status.NOT_APPLICABLE, foreign, "", ()
        except Exception as error:  # as in RuleRun.check: the other rules must still get their verdicts
            status, reason = Status.ERROR, where_raised(error)
    else:
        status = Status.NO_ISSUE if finished else Status.IN_PROGRESS
    return Verdict(
        rule=run.label,
        code=run.rule.code,
        status=status,
        parameters=_parameters(run.rule),
        findings=tuple(run.findings.values()),
        finding_count=run.count,
        occurrences=run.occurrences,
        judged=run.coverage.judged,
        last_step=run.last_step if run.last_step >= 0 else None,
        last_mode=run.last_mode,
        last_mode_step=run.last_mode_step if run.last_mode_step >= 0 else None,
        missing=_missing(run) | ({f"names left out, {_LEFT_OUT}": left_out} if left_out else {}),
        reason=reason,
        fix=fix,
        captures=captures,
        asked=asked,
        summary=summary,
    )


def combine_verdicts(own: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a rule that combines others.

    Args:
        own: The verdict of the rule alone, which has judged nothing.
        verdicts: The verdicts of the rules that it combines.
    """
    silent = (Status.NOT_EVALUABLE, Status.NOT_APPLICABLE)
    judging = [each for each in verdicts if each.status not in silent and not each.summary]
    statuses = {each.status for each in judging}
    order = (Status.ISSUE, Status.ERROR, Status.IN_PROGRESS, Status.NO_ISSUE)
    status = next((each for each in order if each in statuses), Status.NOT_EVALUABLE)
    reasons = {
        Status.ERROR: "; ".join(f"{each.rule}: {each.reason}" for each in judging if each.status is status),
        Status.NOT_EVALUABLE: "none of its rules can judge the run; their verdicts have the reasons.",
    }
    return replace(
        own,
        status=status,
        finding_count=sum(each.finding_count for each in verdicts),
        occurrences=sum(each.occurrences for each in verdicts),
        judged=sum(each.judged for each in judging),
        reason=reasons.get(status, ""),
        summary={"rules": {each.rule: _rule_row(each) for each in judging}} if judging else {},
        combined=tuple(each.rule for each in verdicts),
    )


def _rule_row(verdict: Verdict) -> dict[str, float | int | str]:
    return {"result": verdict.status.value, "findings": verdict.finding_count, "judged": verdict.judged}


def _summary(run: RuleRun) -> Summary:
    """The tables of a summary that has judged something; {} for other rules. An exception is its error."""
    summarize = getattr(run.rule, "summary", None) if is_summary(run.rule) else None
    if summarize is None or run.error or not run.coverage.judged:
        return {}
    try:
        found: Summary = summarize(run.memory)
    except Exception as error:  # a rule may be a user's code: the other rules must still get their verdicts
        run.error = where_raised(error)
        return {}
    return found


def _left_out_names(run: RuleRun, source: Source) -> int:
    """Number of names, of the kinds that the rule needs, that the run could not record."""
    found = source.left_out()
    if found is None:
        return 0
    try:
        return found.of_kinds(run.rule.needs().kinds)
    except Exception:  # a rule may be a user's code; its own verdict has the error
        return found.names


def _why_not_applicable(run: RuleRun, source: Source, seen: SeenRows, need: Need) -> str:
    """Why the rule does not apply to this run; "" if it may, or before the first row."""
    if not seen.rows:
        return ""
    capture = source.capture()
    names = () if capture is None else [each.name for each in capture.collections]
    classes = seen.classes if "outputs" in names or "all" in names else ()
    return why_not_applicable(need, source.training(), classes, seen=bool(run.coverage.missing))


def _configuration_problem(run: RuleRun, source: Source, seen: SeenRows, need: Need, finished: bool) -> str:
    """The needed tensors that the run does not capture, as text; "" if unknown, or before the first row."""
    if not seen.rows:
        return ""
    return why_not_evaluable(need, source.capture(), seen=bool(run.coverage.missing), ended=finished)


def _missing(run: RuleRun) -> dict[str, int]:
    """The reasons why rows could not be judged with the number of rows, the most frequent reason first."""
    return dict(sorted(run.coverage.missing.items(), key=lambda each: (-each[1], each[0])))


def _missing_text(run: RuleRun, seen: SeenRows, what: str) -> str:
    """Why nothing could be judged: the reasons for missing rows, or the tensors that the run has instead."""
    missing = _missing(run)
    if missing:
        return (
            "; ".join(f"{why} ({count} times)" for why, count in missing.items())
            + f". The rule needs {what}."
        )
    if not seen.rows:
        return f"the run contains no tensors. The rule needs {what}."
    return f"the run does not contain {what}; it contains tensors of kind {', '.join(sorted(seen.kinds))}."


def _missing_recording_text(run: RuleRun, seen: SeenRows) -> str:
    """Why a rule about times of steps or system samples could not judge the run."""
    timed, sampled = (seen.recorded.get(kind, 0) for kind in ("step_times", "samples"))
    for column in step_time_columns_of(run.rule):
        if not timed:
            return f"the run has no times of steps; {_STEP_TIMES}."
        if column not in seen.present["step_times"]:
            return f"the times of steps have no `{column}`; {_PHASES}."
    columns = () if getattr(run.rule, "samples_optional", False) else system_columns_of(run.rule)
    for column in columns:
        if not sampled:
            return f"the run has no system samples; {_SAMPLES}."
        if column.startswith("gpus.") and "gpus" not in seen.present["samples"]:
            return f"the run has no GPU samples; {_GPU_SAMPLES}."
        if column not in seen.present["samples"]:
            return f"the run has no values of `{column}` in its system samples."
    has = [f"{sampled:,} system samples"] if columns else []
    has += [f"{timed:,} times of steps"] if step_time_columns_of(run.rule) else []
    return f"the run has {' and '.join(has)}. The rule needs {run.rule.needs().what}."


def _parameters(rule: Rule) -> Mapping[str, str]:
    """Parameters that differ from their defaults, and the step range, as text."""
    inner: object = without_step_range(rule)
    if not is_dataclass(inner):
        return step_range_of(rule)
    values = ((f.name, getattr(inner, f.name), f.default) for f in fields(inner))
    return {name: str(value) for name, value, default in values if value != default} | step_range_of(rule)
