"""tdcore diagnose: the causes of faults of a run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from tdcore.cli.output import console, print_json, shown
from tdcore.sinks import shown_place

if TYPE_CHECKING:
    from rich.table import Table

    from tdcore.rules.diagnosis import Diagnosed, Diagnosis

__all__ = ["EXIT_CODES", "command", "print_diagnosis"]

EXIT_CODES = "Exit codes: 0 no cause was found. 1 a cause was found. 2 wrong usage. 3 the run cannot be read."
_TENSORS = 4  # number of tensors that are printed for each cause


def command(
    run: Annotated[str, typer.Argument(help="A run, as a folder or as s3://bucket/prefix.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the diagnosis as JSON.")] = False,
) -> None:
    """Name at most three causes of the faults of a run, each with evidence, a change and a check.

    The command judges the run by all rules that apply, and searches the recorded data for signs of known
    faults. It finds most causes if the inputs of the loss and the outputs of modules were recorded:
    Hook(rules="default").

    Examples:

      [bold]tdcore diagnose runs/demo[/]

      [bold]tdcore diagnose s3://bucket/demo --json[/]
    """
    from tdcore.rules.diagnosis import diagnose

    diagnosis = diagnose(run)
    if json_output:
        print_json({"run": shown_place(run), **diagnosis.to_json()})
    else:
        print_diagnosis(run, diagnosis)
    raise typer.Exit(1 if diagnosis.causes else 0)


def print_diagnosis(run: str, diagnosis: Diagnosis) -> None:
    """Print each cause as a small table."""
    out = console()
    count = len(diagnosis.causes)
    where = shown(shown_place(run))
    if not count:
        out.print(f"{where}: no known cause was found", soft_wrap=True)
        for rule, findings in diagnosis.unexplained.items():
            out.print(
                f"  {shown(rule)} has {findings:,} finding{'s' * (findings > 1)}: "
                f"tdcore rules run {shown(shlex.quote(run))} -r {rule}",
                soft_wrap=True,
            )
        return
    out.print(f"{where}: {count} cause{'s' * (count > 1)}, the most likely first", soft_wrap=True)
    for number, cause in enumerate(diagnosis.causes, 1):
        mode, step = cause.since
        since = f"{mode} step {step}" + (f" (epoch {cause.epoch})" if cause.epoch is not None else "")
        out.print(f"\n[bold]{number}. {shown(cause.cause)}[/] ({cause.confidence}), from {since} on")
        out.print(_lines_of(cause))


def _lines_of(cause: Diagnosed) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column()
    for at, evidence in enumerate(cause.evidence[:3]):
        grid.add_row("   seen" if at == 0 else "", shown(evidence.why, 600))
    if cause.tensors:
        more = len(cause.tensors) - _TENSORS
        names = ", ".join(cause.tensors[:_TENSORS]) + (f" and {more} more" if more > 0 else "")
        grid.add_row("   in", shown(names, 600))
    if cause.by_products:
        grid.add_row("   explains", shown(", ".join(cause.by_products)))
    grid.add_row("   change", shown(cause.change, 600))
    grid.add_row("   check", shown(cause.check, 600))
    return grid
