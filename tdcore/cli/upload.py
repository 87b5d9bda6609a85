"""tdcore upload: upload the data that a job has left in its spool."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcore.cli.output import console, human_bytes, print_json, shown

if TYPE_CHECKING:
    from tdcore.maintenance.upload import Uploaded
    from tdcore.sinks.spool import SpoolEntry

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 all objects are in the bucket. 1 some objects are left or damaged. 2 wrong usage. "
    "3 there is no spool."
)


def command(
    spool: Annotated[Path, typer.Argument(help="A spool, or a folder with spools below it.")],
    to: Annotated[
        str | None,
        typer.Option(help="s3:// URL instead of the job's URL, or the job's URL with other options."),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Upload the objects that a job left in its spool. Spools of running jobs are not changed.

    Examples:

      [bold]tdcore upload SPOOL[/]                     the folder in the job's log

      [bold]tdcore upload ~/.local/state/tdcore/spool[/]     all spools of this machine
    """
    from tdcore.maintenance.upload import upload

    if json_output:
        results = upload(spool, to=to)
        print_json({"spools": [asdict(result) for result in results]})
    else:
        results = _upload_shown(spool, to)
    raise typer.Exit(1 if any(result.left or result.damaged for result in results) else 0)


def _upload_shown(spool: Path, to: str | None) -> list[Uploaded]:
    """Upload with a progress line, and a line for each spool at the end."""
    from tdcore.maintenance.upload import upload

    out = console()
    count = size = 0
    with out.status("looking for spools") as status:

        def sent(folder: Path, entry: SpoolEntry) -> None:
            nonlocal count, size
            count, size = count + 1, size + entry.size
            status.update(f"{count} objects, {human_bytes(size)} sent: {shown(entry.key)}")

        results = upload(spool, to=to, sent=sent)
    for result in results:
        _print(result)
    return results


def _print(result: Uploaded) -> None:
    out = console()
    text = f"{result.objects} objects ({human_bytes(result.bytes)})"
    if result.to:
        text += f" to {result.to}"
    if result.damaged:
        text += f"; {result.damaged} are damaged and were moved aside"
    if result.left:
        text += f"; {result.left} are left"
    else:
        text += "; nothing is left"
    if result.why:
        text += f": {result.why}"
    colour = "red" if result.left or result.damaged else "green"
    out.print(f"[{colour}]{shown(result.spool)}[/]: {shown(text, 1000)}")
