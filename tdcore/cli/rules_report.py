"""tdcore rules report: the profiler report of a run."""

from __future__ import annotations

from typing import Annotated

import typer

from tdcore.cli.output import console, print_json
from tdcore.errors import ConfigError

__all__ = ["EXIT_CODES", "report_command"]

EXIT_CODES = "Exit codes: 0 no issue. 1 an issue was found. 2 wrong usage. 3 the run cannot be read."


def report_command(
    path: Annotated[str, typer.Argument(help="Folder of the run, or s3://bucket/prefix.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FOLDER", help="Folder of the report.")
    ] = "rule-output",
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="RULE_NAME=VALUE",
            help="Parameter of a rule, such as StepOutlier_stddev=4. May be repeated.",
        ),
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, and write no files.")
    ] = False,
) -> None:
    """Judge a run by the rules about machines and times of steps, and write a report as HTML and JSON.

    The report also has the use of the machines, and the shares of the phases. Nothing is sent anywhere.

    Examples:

      [bold]tdcore rules report runs/demo[/]

      [bold]tdcore rules report runs/demo -o reports -p StepOutlier_stddev=4 -p BatchSize_patience=500[/]
    """
    from tdcore.rules.report import profiler_report

    parameters = dict(_pair(text) for text in parameter or ())
    report = profiler_report(path, **parameters)
    if json_output:
        print_json(report.to_json())
    else:
        page = report.write(output)
        out = console()
        for verdict in report.verdicts:
            out.print(f"{verdict.code} {verdict.rule}: {verdict.text}", markup=False)
        out.print(f"Report: {page}", markup=False)
    raise typer.Exit(1 if report.has_issues else 0)


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"{text!r} is not a parameter; write -p RULE_NAME=VALUE")
    return name.strip(), value.strip()
