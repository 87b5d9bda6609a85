"""tdcore merge: merge the small files of a run whose writer has ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tdcore.cli.output import console, print_json

if TYPE_CHECKING:
    from tdcore.maintenance.merge_run import MergedFiles

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = "Exit codes: 0 done. 1 files of a worker were not merged. 2 wrong usage. 3 there is no run."


def command(
    run: Annotated[str, typer.Argument(help="Folder of the run.")],
    gone: Annotated[
        bool,
        typer.Option(
            "--gone", help="Confirm that the training on the other machine, which wrote the run, has ended."
        ),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge the small files of a run whose flusher was killed; files with a live writer are not changed.

    Example: [bold]tdcore merge runs/demo[/]
    """
    from tdcore.maintenance.merge_run import merge_run

    if json_output:
        results = merge_run(run, gone=gone)
        print_json({"run": run, "workers": [asdict(result) for result in results]})
    else:
        results = merge_run(run, gone=gone, done=_print)
    raise typer.Exit(1 if any(result.why for result in results) else 0)


def _print(result: MergedFiles) -> None:
    from rich.markup import escape

    who = f"{result.worker} of attempt {result.attempt}"
    text = f"{who}: {result.before} index files before, {result.after} now"
    if result.why:
        text = f"{who}: {result.before} index files before, {result.after} now; not merged: {result.why}"
    console().print(f"[{'red' if result.why else 'green'}]{escape(text)}[/]")
