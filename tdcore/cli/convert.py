"""tdcore convert: write a run with the data of a recording of smdebug."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tdcore.cli.output import console, human_bytes, print_json, shown

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 done. 2 wrong usage, or NEW contains files. 3 the recording cannot be read, or the run "
    "cannot be written."
)


def command(
    old: Annotated[str, typer.Argument(help="Recording of smdebug, as a folder or as s3://bucket/prefix.")],
    new: Annotated[str, typer.Argument(help="Place of the run, which must not exist or must be empty.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a run with the data of a recording of smdebug, which is not changed.

    Example: [bold]tdcore convert old/recording runs/new[/]
    """
    from tdcore.compat.convert import convert

    found = convert(old, new)
    if json_output:
        print_json({"run": new, **asdict(found)})
        return
    console().print(
        f"[green]wrote {shown(new)}[/]: {found.steps:,} steps of {found.workers:,} workers, "
        f"{found.rows:,} rows, {human_bytes(found.bytes)} of values"
    )
