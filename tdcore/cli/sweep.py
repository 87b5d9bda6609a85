"""tdcore rules sweep: judge many runs by the same rules, in parallel."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from tdcore.cli.long_table import LongTable, Styled
from tdcore.cli.output import console, print_json, shown
from tdcore.cli.tables import Name
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Verdict
    from tdcore.rules.sweep import SweepEntry, SweepReport

__all__ = ["EXIT_CODES", "TaskEngine", "command"]

EXIT_CODES = (
    "Exit codes: the code of the worst run. 1 an issue was found. 3 a rule could not be evaluated or "
    "failed, or a run cannot be read. 4 no issue so far, and a run has not ended. 0 no issue. 2 wrong usage."
)


class TaskEngine(str, Enum):
    """Where tasks run."""

    processes = "processes"
    ray = "ray"
    dask = "dask"
    serial = "serial"


def command(
    places: Annotated[
        list[str],
        typer.Argument(
            help='Runs, folders or s3:// prefixes with runs below them, or patterns: "runs/lr-*".'
        ),
    ],
    rule: Annotated[
        list[str],
        typer.Option(
            "--rule",
            "-r",
            metavar="NAME[:k=v,...]",
            help="A rule: a name or code of the list, file.py::Class or module:Class. May be repeated.",
        ),
    ],
    engine: Annotated[
        TaskEngine,
        typer.Option(help="Where the tasks run: one per run, or several for one large run."),
    ] = TaskEngine.processes,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Number of tasks at a time; default: one for each CPU."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of a Ray or Dask cluster that already exists."),
    ] = None,
    attempt: Annotated[
        str | None, typer.Option(help="Number of an attempt, or all; default: the newest attempt.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Also judge the newest steps: the runs will not continue.")
    ] = False,
    no_write: Annotated[
        bool, typer.Option("--no-write", help="Do not store findings in the runs' findings/ folders.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the reports as JSON.")] = False,
) -> None:
    """Judge many runs by the same rules, in parallel.

    Examples:

      [bold]tdcore rules sweep runs -r vanishing_gradient -r exploding_tensor[/]

      [bold]tdcore rules sweep "runs/lr-*" s3://bucket/sweep -r exploding_tensor --jobs 8 --json[/]
    """
    from tdcore.rules.sweep import sweep

    if attempt is not None and attempt != "all" and not attempt.isdecimal():
        raise ConfigError(f"--attempt must be a number or all, got {attempt!r}")
    report = sweep(
        places,
        rule,
        engine=engine.value,
        workers=jobs,
        cluster=cluster,
        attempt=int(attempt) if attempt is not None and attempt.isdecimal() else attempt,
        ended=ended,
        write_findings=not no_write,
        on_run=None if json_output else _SweepProgress(),
    )
    if json_output:
        print_json(report.to_json())
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


class _SweepProgress:
    """Number of finished runs, printed only on a terminal."""

    def __init__(self) -> None:
        self.done = 0

    def __call__(self, entry: SweepEntry) -> None:
        self.done += 1
        out = console()
        if out.is_terminal:
            out.print(f"{self.done} runs judged", end="\r")


def _print(report: SweepReport) -> None:
    from tdcore.sinks import shown_place

    out = console()
    verdicts = [verdict for each in report.reports for verdict in each.verdicts]
    parts = {rule for verdict in verdicts for rule in verdict.combined}
    shown_ones = (each for each in verdicts if each.asked or each.rule not in parts)
    names = list(dict.fromkeys(each.rule for each in shown_ones))
    table = LongTable()
    for column in ("run", *names):
        table.add_column(column, justify="left" if column == "run" else "right", overflow="fold")
    for entry in report.entries:
        by_rule = {} if entry.report is None else {each.rule: each for each in entry.report.verdicts}
        table.add_row(Name(shown_place(entry.place)), *(_cell(by_rule.get(name)) for name in names))
    out.print(table)
    for entry in report.entries:
        if entry.error:
            out.print(f"[red]{shown(shown_place(entry.place))}: {shown(entry.error, 1000)}[/]")
    out.print(report.summary)


def _cell(verdict: Verdict | None) -> Styled:
    """Number of findings, or the status of the rule."""
    if verdict is None:
        return Styled("-", "red")
    cells = {
        "no issue": Styled("0", "green"),
        "issue": Styled(f"{verdict.finding_count:,}", "red"),
        "error": Styled("error", "red"),
        "not evaluable": Styled("n/e", "yellow"),
        "does not apply": Styled("n/a", "dim"),
        "in progress": Styled("0 so far", "cyan"),
    }
    return cells[verdict.status.value]
