"""Output of findings, of verdicts (one row per rule), and of missing captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tdcore.cli.output import console, shown

if TYPE_CHECKING:
    from tdcore.actions.base import NoticeKey
    from tdcore.rules.base import Finding, Verdict
    from tdcore.rules.finding_groups import FindingGroup
    from tdcore.rules.runner import Report

__all__ = ["LiveFindings", "print_findings", "print_lacking", "print_report"]

_GROUPS_SHOWN, _TENSORS_SHOWN = 4, 4
_MAX_CHARS = 4000  # maximum length of a reason
_COLOURS = {  # in the order in which they are shown
    "issue": "red",
    "error": "red",
    "not evaluable": "yellow",
    "does not apply": "dim",
    "in progress": "cyan",
    "no issue": "green",
}


def print_findings(findings: Sequence[Finding], groups: int | None = None) -> None:
    """Print findings in groups. groups: maximum number of groups per rule."""
    from tdcore.rules.finding_groups import grouped

    printed: Counter[str] = Counter()
    for group in grouped(findings):
        printed[group.first.rule] += 1
        if groups is None or printed[group.first.rule] <= groups:
            _print_group(group)
    for rule, count in printed.items():
        if groups is not None and count > groups:
            console().print(f"[bold red]{rule}[/]: {count - groups:,} more groups; --json lists them")


def _print_group(group: FindingGroup) -> None:
    """Print the place and first step of a group, then its first findings without repeating the place."""
    out, first = console(), group.first
    where = f" of attempt {first.attempt}" if first.attempt else ""
    tensors = f", in {len(group.tensors):,} tensors" if len(group.tensors) > _TENSORS_SHOWN else ""
    out.print(f"[bold red]{first.rule}[/] at {first.at}{where}, {first.worker}{tensors}:")
    for each in group.findings[:_TENSORS_SHOWN]:
        later = f"at {each.at}" if each.at != first.at else ""
        again = "; ".join(filter(None, (later, each.again)))
        again = f" [dim]({again})[/]" if again else ""
        out.print(f"  {shown(each.tensor or 'the run')}: {shown(each.why, _MAX_CHARS)}{again}")
    more = len(group.findings) - _TENSORS_SHOWN
    if more > 0:
        times = f" [dim]({group.count:,} times in all, last at {group.last.last_at})[/]"
        out.print(f"  ... and {more:,} more{times if group.count > len(group.findings) else ''}")


class LiveFindings:
    """Output of the findings of a followed run as they begin; findings that continued are listed at the end.

    A finding is repeated if only its step differs: rule, attempt, worker, tensor and kind are equal.
    """

    def __init__(self) -> None:
        self._printed: dict[NoticeKey, Finding] = {}
        self._newest: dict[NoticeKey, Finding] = {}

    def __call__(self, findings: list[Finding]) -> None:
        """Print the new findings of one poll in order of steps, without findings that continued."""
        from tdcore.actions.base import notice_key

        new: list[Finding] = []
        for finding in findings:
            key = notice_key(finding)
            if key not in self._printed:
                self._printed[key] = finding
                new.append(finding)
            self._newest[key] = finding
        if new:
            print_findings(new)

    def print_again(self) -> None:
        """Print the counts of findings that continued after they were printed.

        There is one line for each rule, attempt and worker.
        """
        out = console()
        groups: dict[tuple[str, int, str], list[NoticeKey]] = {}
        for key, finding in self._newest.items():
            if finding != self._printed[key]:
                groups.setdefault((key[0], key[1], key[2]), []).append(key)
        for (rule, attempt, worker), keys in groups.items():
            newest = max((self._newest[key] for key in keys), key=lambda finding: finding.last_step or 0)
            times = sum(self._newest[key].count - self._printed[key].count for key in keys)
            often = f"{times:,} time{'s' * (times > 1)}" + (f" in {len(keys):,} tensors" if keys[1:] else "")
            where = f" of attempt {attempt}" if attempt else ""
            out.print(f"[bold red]{rule}[/] again {often}, last at {newest.last_at}{where}, {worker}")


def print_lacking(verdict: Verdict) -> None:
    """Print that a rule cannot be evaluated with the configuration of the run, or does not apply."""
    how = "is not evaluable so far"
    if verdict.status.value == "does not apply":
        how = "does not apply"
    console().print(f"[yellow]{verdict.rule}[/] {how}: {shown(verdict.reason, _MAX_CHARS)}")


def print_report(report: Report, *, with_findings: bool, verbose: bool = False) -> None:
    """Print the verdicts, most serious first, then the captures that rules need, and problems.

    Rules that run only because all rules run, and that could not judge the run, are printed in one line for
    each of the two reasons, unless `verbose`.
    """
    from rich import box
    from rich.table import Table

    from tdcore.rules.base import Status
    from tdcore.rules.planning import merged
    from tdcore.rules.requirements import as_code

    folding = (Status.NOT_EVALUABLE, Status.NOT_APPLICABLE)
    folded = [each for each in report.verdicts if not each.asked and not verbose and each.status in folding]
    printed = [verdict for verdict in report.verdicts if verdict not in folded]
    lacking = [verdict for verdict in printed if verdict.status is Status.NOT_EVALUABLE]
    out = console()
    if with_findings:
        print_findings(report.findings, _GROUPS_SHOWN)
    table = Table(
        title=shown(report.run), title_justify="left", box=box.SIMPLE, pad_edge=False, show_edge=False
    )
    table.add_column("code", no_wrap=True)
    table.add_column("rule", overflow="fold")
    table.add_column("verdict", overflow="fold")
    order = list(_COLOURS)
    for verdict in sorted(printed, key=lambda each: order.index(each.status.value)):
        colour = _COLOURS[verdict.status.value]
        text = f"[{colour}]{shown(verdict.text.removesuffix(f' Add {verdict.fix}'), _MAX_CHARS)}[/]"
        if verdict.findings:
            text += f"\n{shown(verdict.findings[0].do, _MAX_CHARS)}"
        table.add_row(verdict.code, verdict.rule, text)
    if printed:
        out.print(table)
    _print_folded(folded)
    for verdict in printed:
        _print_summary(verdict)
    needed = merged(capture for verdict in lacking for capture in verdict.captures)
    if needed:
        out.print("\nThe rules that are not evaluable need this capture (`tdcore rules plan`):")
        for capture in needed:
            out.print(f"  {as_code(capture)}", markup=False, soft_wrap=True)
    if report.interrupted:
        out.print("interrupted; the run continues")
    for each in report.not_recorded:
        out.print(f"[yellow]not recorded: {shown(each, _MAX_CHARS)}[/]")
    for problem in (*report.left_out, *report.problems):
        out.print(f"[yellow]{shown(problem, _MAX_CHARS)}[/]")


def _print_summary(verdict: Verdict) -> None:
    """Print the tables of a summary. The results of combined rules are in the table of verdicts."""
    from rich import box
    from rich.table import Table

    from tdcore.text.numbers import number_text

    tables = {} if verdict.combined else verdict.summary
    for title, rows in tables.items():
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        console().print(f"\n{verdict.rule}: {shown(title)}")
        table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
        table.add_column("", overflow="fold")
        for name in names:
            table.add_column(name, justify="right", overflow="fold")
        for row, line in rows.items():
            table.add_row(shown(row), *(number_text(line.get(name)) for name in names))
        console().print(table)


def _print_folded(verdicts: Sequence[Verdict]) -> None:
    """Print a line with the rules that are not evaluable, and a line with the rules that do not apply."""
    out = console()
    for status, words in (
        ("not evaluable", "not evaluable here (--verbose shows what each needs)"),
        ("does not apply", "does not apply to this run (--verbose shows why)"),
    ):
        names = [each.rule for each in verdicts if each.status.value == status]
        if names:
            out.print(f"[{_COLOURS[status]}]{words}[/]: {', '.join(map(shown, names))}")
