"""How findings and verdicts are printed for people: what was found, one row per rule, what is missing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tdcore.cli.output import console

if TYPE_CHECKING:
    from tdcore.rules.base import Finding, Verdict
    from tdcore.rules.runner import Report

__all__ = ["print_findings", "print_lacking", "print_report"]

_STEPS_SHOWN, _TENSORS_SHOWN = 3, 8
_COLOURS = {  # in the order in which they are shown
    "issue": "red",
    "error": "red",
    "not evaluable": "yellow",
    "in progress": "cyan",
    "no issue": "green",
}


def print_findings(findings: list[Finding], steps: int | None = None) -> None:
    """By rule and step; at most so many steps of each rule."""
    out = console()
    by_step: dict[tuple[str, int, str, int], list[Finding]] = {}
    for finding in findings:
        by_step.setdefault((finding.rule, finding.attempt, finding.worker, finding.step), []).append(finding)
    shown: Counter[str] = Counter()
    for (rule, attempt, worker, step), found in by_step.items():
        shown[rule] += 1
        if steps is not None and shown[rule] > steps:
            continue
        where = f" of attempt {attempt}" if attempt else ""
        out.print(f"[bold red]{rule}[/] at step {step}{where}, {worker}:")
        for finding in found[:_TENSORS_SHOWN]:
            out.print(f"  {finding.tensor or 'the run'}: {finding.why}", markup=False)
        if len(found) > _TENSORS_SHOWN:
            out.print(f"  ... and {len(found) - _TENSORS_SHOWN:,} more")
    for rule, count in shown.items():
        if steps is not None and count > steps:
            out.print(f"[bold red]{rule}[/] at {count - steps:,} more steps; --json lists them")


def print_lacking(verdict: Verdict) -> None:
    """A rule of a run that goes on cannot be evaluated as the run is configured."""
    console().print(f"[yellow]{verdict.rule}[/] is not evaluable so far: {_escaped(verdict.reason)}")


def print_report(report: Report, *, with_findings: bool) -> None:
    """The verdicts, gravest first; under them what rules would need to be evaluable, and problems."""
    from rich import box
    from rich.table import Table

    from tdcore.rules.base import Status
    from tdcore.rules.need import as_code
    from tdcore.rules.planning import merged

    lacking = [verdict for verdict in report.verdicts if verdict.status is Status.NOT_EVALUABLE]
    out = console()
    if with_findings:
        print_findings(report.findings, _STEPS_SHOWN)
    table = Table(title=report.run, title_justify="left", box=box.SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("code", no_wrap=True)
    table.add_column("rule", overflow="fold")
    table.add_column("verdict", overflow="fold")
    order = list(_COLOURS)
    for verdict in sorted(report.verdicts, key=lambda each: order.index(each.status.value)):
        colour = _COLOURS[verdict.status.value]
        text = f"[{colour}]{_escaped(verdict.text.removesuffix(f' Add {verdict.fix}'))}[/]"
        if verdict.findings:
            text += f"\n{_escaped(verdict.findings[0].do)}"
        table.add_row(verdict.code, verdict.rule, text)
    out.print(table)
    needed = merged(capture for verdict in lacking for capture in verdict.captures)
    if needed:
        out.print("\nWhat the rules that are not evaluable need to be captured (`tdcore rules plan`):")
        for capture in needed:
            out.print(f"  {as_code(capture)}", markup=False, soft_wrap=True)
    if report.interrupted:
        out.print("interrupted; the run goes on")
    for each in report.not_recorded:
        out.print(f"[yellow]not recorded: {_escaped(each)}[/]")
    for problem in (*report.left_out, *report.problems):
        out.print(f"[yellow]{_escaped(problem)}[/]")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
