"""tdcore report: the pictures of a run in one file."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tdcore.cli.output import console, human_bytes, shown
from tdcore.errors import ConfigError

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 the report was written. 2 wrong usage, or the file cannot be written. 3 the run cannot be "
    "read."
)


def command(
    run: Annotated[str, typer.Argument(help="A run, as a folder or as s3://bucket/prefix.")],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="The file; - is the standard output.",
            show_default="report.html, or - for Markdown",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 -- the name of the option
        str | None, typer.Option(help="html or md.", show_default="html, or md if the file ends with .md")
    ] = None,
) -> None:
    """Write the pictures of a run into one HTML file that opens without a server, or a summary in Markdown.

    Examples:

      [bold]tdcore report runs/demo -o report.html[/]

      [bold]tdcore report runs/demo --format md >> $GITHUB_STEP_SUMMARY[/]
    """
    from tdcore.view.report import make_report, write_report

    if format not in (None, "html", "md"):
        raise ConfigError(f"--format is {format!r}; it can be html or md")
    if out == "-" or (out is None and format == "md"):
        sys.stdout.buffer.write(make_report(run, format="md" if format == "md" else "html"))
        sys.stdout.buffer.flush()
        return
    path = write_report(run, out or "report.html", format=format)  # type: ignore[arg-type]  # checked above
    console().print(f"wrote {shown(path)} ({human_bytes(os.path.getsize(path))})", soft_wrap=True)
