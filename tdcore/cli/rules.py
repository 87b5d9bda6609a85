"""tdcore rules: judge a run by rules, list the rules, explain one."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcore.cli.output import console, print_json
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.rules.base import Finding
    from tdcore.rules.runner import Report

__all__ = ["app"]

app = typer.Typer(
    help="Judge runs by rules; list and explain the rules.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_STEPS_SHOWN, _TENSORS_SHOWN = 3, 8
_RUN_EXIT_CODES = (
    "Exit codes: 0 no issue. 1 an issue was found. 2 wrong usage. 3 a rule could not be evaluated or failed, "
    "or the run cannot be read. 4 no issue so far, and the run has not ended."
)


@app.command("run", epilog=_RUN_EXIT_CODES)
def run_command(
    path: Annotated[
        str,
        typer.Argument(
            help="Folder of the run, or s3://bucket/prefix; with --live it need not be there yet."
        ),
    ],
    rule: Annotated[
        list[str],
        typer.Option(
            "--rule",
            "-r",
            metavar="NAME[:k=v,...]",
            help="A rule: a name or code of the list, file.py::Class or module:Class. Repeat for more.",
        ),
    ],
    live: Annotated[
        bool,
        typer.Option("--live", help="Follow the run while it is written, until the first issue or its end."),
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Follow the run to its end, whatever is found.")
    ] = False,
    on_fire: Annotated[
        list[str] | None,
        typer.Option(
            "--on-fire", metavar="ACTION", help="What to do about findings: stop (the training), log."
        ),
    ] = None,
    attempt: Annotated[
        str | None, typer.Option(help="A number, or all; default: the newest attempt and those that follow.")
    ] = None,
    ended: Annotated[
        bool,
        typer.Option("--ended", help="Judge the newest step too: the run will not go on (its host died)."),
    ] = False,
    start_timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="How long to wait for the run to begin.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="How long to follow the run at all.")
    ] = None,
    no_write: Annotated[
        bool, typer.Option("--no-write", help="Do not keep findings in the run's findings/ folder.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Judge a run by rules: now, or while it is written.

    Examples:

      [bold]tdcore rules run runs/demo -r vanishing_gradient -r exploding_tensor[/]

      [bold]tdcore rules run runs/demo -r vanishing_gradient:threshold=1e-6 --live --on-fire stop[/]

      [bold]tdcore rules run s3://bucket/demo -r vanishing_gradient --live[/]

      [bold]tdcore rules run runs/demo -r my_rules.py::SpikyLoss:factor=3 --json[/]
    """
    from tdcore.rules import run
    from tdcore.rules.loading import load_rule

    following = live or until_end
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # as Ctrl-C: the report is still printed
    try:
        report = run(
            path,
            [load_rule(spec) for spec in rule],
            live=live,
            until_end=until_end,
            actions=_actions(on_fire or []),
            attempt=_attempt(attempt),
            ended=ended,
            start_timeout=None if start_timeout is None else timedelta(seconds=start_timeout),
            timeout=None if timeout is None else timedelta(seconds=timeout),
            write_findings=not no_write,
            on_findings=_print_findings if following and not json_output else None,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    if json_output:
        print_json(report.to_json())
    else:
        _print_report(report, with_findings=not following)
    raise typer.Exit(report.exit_code)


@app.command("list")
def list_command(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the rules with their parameters and defaults.

    Example: [bold]tdcore rules list[/]
    """
    from rich.table import Table

    from tdcore.rules import RULES
    from tdcore.rules.explain import explain

    found = [(code, rule.__name__, explain(rule)) for code, rule in RULES.items()]
    if json_output:
        print_json({"rules": [{"code": code, "rule": name, **asdict(text)} for code, name, text in found]})
        return
    table = Table()
    for column in ("code", "rule", "what it finds", "parameters"):
        table.add_column(column, overflow="fold")
    for code, name, text in found:
        parameters = "\n".join(f"{each.name}={each.default}" for each in text.parameters)
        table.add_row(code, name, text.summary, parameters)
    console().print(table)


@app.command("explain")
def explain_command(rule: Annotated[str, typer.Argument(help="Name or code of a rule.")]) -> None:
    """Explain a rule: what it does, why it matters, how it decides, false alarms, what to do.

    Example: [bold]tdcore rules explain TDC101[/]
    """
    from tdcore.rules.explain import explain
    from tdcore.rules.loading import find_rule

    found = find_rule(rule)
    if found is None:
        raise ConfigError(f"there is no rule {rule!r}; `tdcore rules list` shows all of them")
    explanation = explain(found)
    out = console()
    out.print(f"[bold]{found.code} {found.__name__}[/]: {explanation.summary}")
    for title, text in explanation.sections.items():
        out.print(f"\n[bold]{title}[/]")
        out.print(text, markup=False)
        if title == "Decides by":
            out.print("\n[bold]Parameters[/]")
            for each in explanation.parameters:
                out.print(f"{each.name} = {each.default}: {each.text}", markup=False)


def _actions(names: list[str]) -> list[Any]:
    from tdcore.actions import LogFindings, StopTraining

    known = {"stop": StopTraining, "log": LogFindings}
    for name in names:
        if name not in known:
            raise ConfigError(f"--on-fire {name!r} is not an action; there are {', '.join(known)}")
    return [known[name]() for name in dict.fromkeys(names)]


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdecimal():
        raise ConfigError(f"--attempt must be a number or all, got {text!r}")
    return int(text)


def _print_findings(findings: list[Finding], steps: int | None = None) -> None:
    """By rule and step; at most so many steps of each rule."""
    out = console()
    by_step: dict[tuple[str, int, str, int], list[Finding]] = {}
    for finding in findings:
        by_step.setdefault((finding.rule, finding.attempt, finding.worker, finding.step), []).append(finding)
    shown: Counter[str] = Counter()
    for (rule, attempt, worker, step), found in by_step.items():
        shown[rule] += 1
        if steps is not None and shown[rule] > steps:
            continue
        where = f" of attempt {attempt}" if attempt else ""
        out.print(f"[bold red]{rule}[/] at step {step}{where}, {worker}:")
        for finding in found[:_TENSORS_SHOWN]:
            out.print(f"  {finding.tensor or 'the run'}: {finding.why}", markup=False)
        if len(found) > _TENSORS_SHOWN:
            out.print(f"  ... and {len(found) - _TENSORS_SHOWN:,} more tensors")
    for rule, count in shown.items():
        if steps is not None and count > steps:
            out.print(f"[bold red]{rule}[/] at {count - steps:,} more steps; --json lists them")


def _print_report(report: Report, *, with_findings: bool) -> None:
    from rich.table import Table

    out = console()
    if with_findings:
        _print_findings(report.findings, _STEPS_SHOWN)
    table = Table(title=report.run, title_justify="left")
    for column in ("rule", "verdict", "what to do"):
        table.add_column(column, overflow="fold")
    colours = {
        "no issue": "green",
        "issue": "red",
        "error": "red",
        "not evaluable": "yellow",
        "in progress": "cyan",
    }
    for verdict in report.verdicts:
        todo = verdict.findings[0].do if verdict.findings else verdict.fix
        table.add_row(
            f"{verdict.rule} ({verdict.code})",
            f"[{colours[verdict.status.value]}]{_escaped(_without_fix(verdict.text, verdict.fix))}[/]",
            _escaped(todo),
        )
    out.print(table)
    if report.interrupted:
        out.print("interrupted; the run goes on")
    for problem in report.problems:
        out.print(f"[yellow]{_escaped(problem)}[/]")


def _without_fix(text: str, fix: str) -> str:
    return text.removesuffix(f" Add {fix}")


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
