"""The report that `tdcore demo` prints at its end: both trainings in one table, findings and next steps."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from tdcore.cli.output import human_bytes, shown
from tdcore.cli.tables import plain_table
from tdcore.rules.diagnosis import Diagnosed
from tdcore.text.step_text import step_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one of the two trainings."""

    name: str
    path: str
    steps: int
    seconds: float
    test_accuracy: float | None
    stopped: str | None
    captured_tensors: int
    captured_steps: int
    captured_bytes: int
    capture_seconds: float
    drops: int
    verdicts: list[dict[str, Any]]
    causes: tuple[Diagnosed, ...] = ()

    @property
    def findings(self) -> list[dict[str, Any]]:
        """All findings of all rules, in the order of steps."""
        found = [finding for verdict in self.verdicts for finding in verdict["findings"]]
        return sorted(found, key=lambda finding: int(finding["step"]))


def print_report(console: Console, outcomes: Sequence[Outcome], report: str, good: bool) -> None:
    """Print the report.

    Args:
        console: The terminal.
        outcomes: Results of both trainings, the faulty one first.
        report: File with the pictures of the faulty training.
        good: Whether both trainings have the expected result.
    """
    console.print()
    console.print(_table(outcomes))
    for outcome in outcomes:
        console.print(_findings(outcome))
        if outcome.causes:
            console.print(_diagnosis(outcome))
    _print_where_next(console, outcomes)
    _print_pictures(console, report)
    if not good:
        console.print(
            "[bold red]A training did not have the expected result; please report this "
            "with the output of `tdcore doctor`.[/]"
        )


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = plain_table(title="What was captured, and what it cost")
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.name, justify="right")
    lines: list[tuple[str, list[str]]] = [
        ("training steps", [f"{one.steps:,}" for one in outcomes]),
        ("ended", ["stopped by a rule" if one.stopped else "by itself" for one in outcomes]),
        ("test accuracy", [_percent(one.test_accuracy) for one in outcomes]),
        (
            "tensors x steps captured",
            [f"{one.captured_tensors:,} x {one.captured_steps:,}" for one in outcomes],
        ),
        ("bytes captured", [_bytes(one.captured_bytes) for one in outcomes]),
        ("capture cost, training thread", [f"{one.capture_seconds * 1e3:,.1f} ms" for one in outcomes]),
        (
            "  per captured step",
            [f"{one.capture_seconds / max(one.captured_steps, 1) * 1e6:,.0f} us" for one in outcomes],
        ),
        ("  share of the training time", [_percent(one.capture_seconds / one.seconds) for one in outcomes]),
        ("drops", [f"{one.drops:,}" for one in outcomes]),
        ("findings", [f"{len(one.findings):,}" for one in outcomes]),
    ]
    for label, values in lines:
        table.add_row(label, *values)
    return table


def _findings(outcome: Outcome) -> Panel:
    if not outcome.findings:
        verdicts = ", ".join(f"{verdict['rule']}: {verdict['verdict']}" for verdict in outcome.verdicts)
        return Panel(
            verdicts or "no rule reported", title=f"{outcome.name}: nothing found", title_align="left"
        )
    first = outcome.findings[0]
    same = [one for one in outcome.findings if one["rule"] == first["rule"] and one["step"] == first["step"]]
    lines = [f"[bold]{first['rule']}[/] at {_at(first)}: {len(same)} tensors"]
    lines += [f"  {one['tensor']}" for one in same[:8]]
    if len(same) > 8:
        lines.append(f"  ... and {len(same) - 8} more")
    lines += [f"why: {first['why']}", f"do:  {first['do']}"]
    if outcome.stopped:
        lines.append(f"the training was stopped: {outcome.stopped}")
    return Panel("\n".join(lines), title=f"{outcome.name}: found", title_align="left")


def _diagnosis(outcome: Outcome) -> Panel:
    lines = []
    for one in outcome.causes:
        mode, step = one.since
        lines += [
            f"[bold]{one.cause}[/] ({one.confidence}), from {mode} step {step} on",
            f"seen:   {one.evidence[0].why}",
            f"change: {one.change}",
            f"check:  {one.check}",
        ]
    return Panel("\n".join(lines), title=f"{outcome.name}: diagnosis", title_align="left")


def _print_where_next(console: Console, outcomes: Sequence[Outcome]) -> None:
    faulty, mended = outcomes[0].path, outcomes[-1].path
    tdcore, python = _command("tdcore"), _command("python")
    console.print("[bold]Where to look next[/]")
    for command, why in (
        (f"{tdcore} view {shlex.quote(faulty)}", "pictures, in a browser"),
        (f"{tdcore} show {shlex.quote(faulty)}", "every tensor, with a line of its history"),
        (f"{tdcore} diagnose {shlex.quote(faulty)}", "the cause, and what to change"),
        (f"{tdcore} ls {shlex.quote(mended)}", "the contents of the run"),
        (f"{tdcore} rules run {shlex.quote(mended)} --rule dead_relu", "any rule, on the saved run"),
        (
            f'{python} -c "import tdcore as td; print(td.create_trial({mended!r}).stats())"',
            "the same in Python",
        ),
    ):
        console.print(f"  {command}   [dim]# {why}[/]", soft_wrap=True, highlight=False)


def _print_pictures(console: Console, report: str) -> None:
    size = human_bytes(os.path.getsize(report))
    console.print(
        f"\n[bold]Pictures of the faulty training:[/] {shown(os.path.relpath(report))} ({size}), "
        "one file for any browser",
        soft_wrap=True,
        highlight=False,
    )


def _command(name: str) -> str:
    """A command of this environment as typed in this shell: its name if it is on PATH, else its path."""
    here = Path(sys.executable).parent / name
    found = shutil.which(name)
    return name if found is not None and Path(found) == here else os.path.relpath(here)


def _at(finding: Mapping[str, Any]) -> str:
    return step_text(finding["step"], finding["mode"], finding["mode_step"])


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.1f} %"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:,.1f} {unit}"
