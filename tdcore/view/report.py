"""write_report: the pictures of a run in one file, to attach to a ticket or to keep with a build."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Literal

from tdcore.errors import ConfigError
from tdcore.sinks import place_text, shown_place
from tdcore.view.answers import OpenRun
from tdcore.view.html import html_report
from tdcore.view.markdown import markdown_report
from tdcore.view.recording import record

__all__ = ["Format", "make_report", "write_report"]

Format = Literal["html", "md"]
_FORMATS = ("html", "md")


def write_report(
    run: str | os.PathLike[str],
    path: str | os.PathLike[str] = "report.html",
    *,
    format: Format | None = None,  # noqa: A002 -- the name of the option of the command
) -> Path:
    """Write a report of a run: one file that opens in a browser without a server, or a summary in Markdown.

    All rules that apply judge the run. Nothing is written to the run. An existing file is replaced.

    Args:
        run: A folder or s3://bucket/prefix.
        path: The file.
        format: "html" or "md". None: "md" if the name of the file ends with ".md", else "html".

    Returns:
        The path of the file.

    Raises:
        RunNotFound: There is no run.
        RunError, SinkError: The run cannot be read.
        ConfigError: The format is unknown, or the file cannot be written.
    """
    target = Path(path)
    chosen = format or ("md" if target.suffix.lower() == ".md" else "html")
    if not target.parent.is_dir() or target.is_dir():  # before the rules run
        reason = "it is a folder" if target.is_dir() else f"the folder {target.parent} does not exist"
        raise ConfigError(f"the report cannot be written to {target}: {reason}; give another file")
    _replace(target, make_report(run, format=chosen))
    return target


def make_report(run: str | os.PathLike[str], *, format: Format = "html") -> bytes:  # noqa: A002
    """The report as the bytes of a file. See write_report."""
    if format not in _FORMATS:
        raise ConfigError(f"format is {format!r}; it is {' or '.join(map(repr, _FORMATS))}")
    place = place_text(run)
    name = shown_place(place).rstrip("/").rpartition("/")[2] or "run"
    with closing(OpenRun(name, place)) as opened:
        opened.judge()
        if format == "md":
            return markdown_report(opened).encode()
        return html_report(f"{name} · tdcore", record(opened))


def _replace(target: Path, data: bytes) -> None:
    """Write the file completely or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            temporary.write_bytes(data)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {target}: {error.strerror or error}; give another file"
        ) from error
