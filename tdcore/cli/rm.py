"""tdcore rm: remove a run or one of its attempts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdcore.cli.output import console, human_bytes
from tdcore.sinks import shown_place

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 removed. 1 not removed: a process may write the run, or you answered no. 2 wrong usage. "
    "3 there is no run."
)
_SHOWN = 8  # files that are listed


def command(
    run: Annotated[str, typer.Argument(help="A run, as a folder or as s3://bucket/prefix.")],
    attempt: Annotated[int | None, typer.Option(help="Remove only this attempt.", min=0)] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Remove the run even if a process may be writing it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove a run: only the files that tdcore wrote. Links are not followed.

    Examples:

      [bold]tdcore rm runs/demo[/]                    asks for confirmation

      [bold]tdcore rm runs/demo --attempt 0 --yes[/]  one attempt of several
    """
    from rich.markup import escape

    from tdcore.errors import ConfigError
    from tdcore.maintenance.remove import remove_run, writers

    out = console()
    where = shown_place(run)
    what = where if attempt is None else f"attempt {attempt} of {where}"
    busy = writers(run, attempt)
    if busy and not force:
        out.print(
            f"[red]not removed[/]: {escape('; '.join(busy))} may still write; --force removes the run anyway"
        )
        raise typer.Exit(1)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(
                f"rm asks for confirmation before it removes {what}, and stdin is not a terminal; add --yes"
            )
        if not typer.confirm(f"Remove {what}?"):
            raise typer.Exit(1)
    removed = remove_run(run, attempt)
    size = f" ({human_bytes(removed.bytes)})" if removed.bytes else ""
    out.print(f"removed {escape(what)}: {removed.files:,} files{size}")
    if removed.kept:
        more = f" and {len(removed.kept) - _SHOWN:,} more" if len(removed.kept) > _SHOWN else ""
        out.print(f"kept files that tdcore did not write:  {escape(', '.join(removed.kept[:_SHOWN]))}{more}")
