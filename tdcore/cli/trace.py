"""tdcore trace: one timeline of a run, for Perfetto and other viewers of Chrome traces."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from tdcore.cli.output import console, shown
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.trial import Trial

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(help="Folder of the run, or s3://bucket/prefix.")],
    out: Annotated[
        str, typer.Option("--out", "-o", help="File of the trace; *.gz is compressed; - is stdout.")
    ] = "trace.json",
    attempt: Annotated[int | None, typer.Option(min=0, help="Only this attempt; default: all.")] = None,
) -> None:
    """Write a timeline of saved steps, findings and metrics of the machine; open it at ui.perfetto.dev.

    Example: [bold]tdcore trace runs/demo -o trace.json.gz[/]
    """
    from tdcore.trial import create_trial

    with closing(create_trial(run, attempt=attempt)) as trial:
        if out == "-":
            _write(trial, attempt, sys.stdout)
            return
        with _file(Path(out)) as file:
            count = _write(trial, attempt, file)
        console().print(
            f"{shown(out)}: {count:,} events, {Path(out).stat().st_size:,} bytes. "
            "Open it at https://ui.perfetto.dev, which reads the file in the browser, without an upload."
        )


@contextmanager
def _file(path: Path) -> Iterator[IO[str]]:
    """A text file that replaces `path` at the end of the block, and is removed after an exception.

    A path that is not a regular file, such as /dev/null or a pipe, is written and not replaced.
    """
    target = path.resolve()
    special = target.exists() and not (target.is_file() or target.is_dir())
    written = target if special else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with gzip.open(written, "wt") if path.suffix == ".gz" else written.open("w") as file:
            yield file
        if not special:
            written.replace(target)
    except OSError as error:
        raise ConfigError(f"--out is {str(path)!r}, which cannot be written: {error.strerror}") from error
    finally:
        if not special:
            written.unlink(missing_ok=True)


def _write(trial: Trial, attempt: int | None, file: IO[str]) -> int:
    """Write the trace, one event per line. Return the number of events."""
    from tdcore.timeline import trace_events

    count = 0
    file.write('{"displayTimeUnit": "ms",\n')
    file.write(f'"otherData": {json.dumps(_about(trial))},\n"traceEvents": [')
    for event in trace_events(trial, attempt=attempt):
        file.write((",\n" if count else "\n") + json.dumps(event, allow_nan=False))
        count += 1
    file.write("\n]}\n")
    return count


def _about(trial: Trial) -> dict[str, Any]:
    """Run id, status, and the data that is missing in the run."""
    from tdcore.trial.missing_text import missing_lines

    about: dict[str, Any] = {"run_id": trial.run_id, "status": trial.status}
    missing = list(missing_lines(trial.missing(), len(trial.modes())))
    if missing:
        about["missing"] = missing
    return about
