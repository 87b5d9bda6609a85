"""The commands of `tdcore` and their help. An error is printed on stderr and sets the exit code.

0  success; rules: no issue     2  wrong usage: an argument, a rule's name or parameter
1  rules: an issue was found    3  the run cannot be read; rules: not evaluable, or a rule failed
4  rules: no issue so far, and the run has not ended
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tdcore.cli import (
    convert,
    diagnose,
    doctor,
    export,
    ls,
    merge,
    profile,
    report,
    rm,
    rules,
    run,
    show,
    sweep,
    trace,
    upload,
    view,
)
from tdcore.cli.output import encode_anything
from tdcore.text.quoting import quoted_lines

__all__ = ["app", "main"]

EXIT_CODES = """Exit codes: 0 success. 2 wrong usage. 3 the run cannot be read."""

app = typer.Typer(
    name="tdcore",
    help="Inspect training runs that tdcore has recorded, and judge them by rules.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", context_settings=run.SETTINGS)(run.command)
app.command("ls", epilog=EXIT_CODES)(ls.command)
app.command("show", epilog=EXIT_CODES)(show.command)
app.command("view", epilog=view.EXIT_CODES)(view.command)
app.command("report", epilog=report.EXIT_CODES)(report.command)
app.command("trace", epilog=EXIT_CODES)(trace.command)
app.command("export", epilog=export.EXIT_CODES)(export.command)
app.command("profile", epilog=profile.EXIT_CODES)(profile.command)
app.command("diagnose", epilog=diagnose.EXIT_CODES)(diagnose.command)
rules.app.command("sweep", epilog=sweep.EXIT_CODES)(sweep.command)
app.add_typer(rules.app, name="rules")
app.command("rm", epilog=rm.EXIT_CODES)(rm.command)
app.command("upload", epilog=upload.EXIT_CODES)(upload.command)
app.command("merge", epilog=merge.EXIT_CODES)(merge.command)
app.command("convert", epilog=convert.EXIT_CODES)(convert.command)
app.command(
    "doctor",
    epilog="Exit codes: 0 capture works here. 3 capture does not work here.",
)(doctor.command)


@app.command(
    "demo",
    epilog="Exit codes: 0 both trainings had the expected result. 1 not. 3 the demo could not run.",
)
def demo(
    out: Annotated[
        str | None,
        typer.Option(help="Folder for the two runs, or s3://bucket/prefix.", show_default="runs/demo"),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Train a faulty network until rules find the fault, then a correct one (needs torch, scikit-learn).

    Example: [bold]tdcore demo --out runs/demo[/]
    """
    from tdcore.cli.demo import run_demo

    raise typer.Exit(run_demo(out, json_output))


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        from tdcore._version import __version__

        print(__version__)
        raise typer.Exit(0)


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    from tdcore.errors import ConfigError, TdcoreError

    encode_anything()
    try:
        app()
    except ConfigError as error:
        _fail(error, 2)
    except TdcoreError as error:
        _fail(error, 3)
    except BrokenPipeError:  # the reader of the pipe has closed it, such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(error: Exception, code: int) -> None:
    print(f"tdcore: {quoted_lines(error)}", file=sys.stderr)
    sys.exit(code)
