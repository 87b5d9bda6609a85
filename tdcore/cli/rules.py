"""tdcore rules: judge one run or many runs by rules, list and explain rules, plan captures for them."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tdcore.cli import rules_report, sweep
from tdcore.cli.output import print_json
from tdcore.cli.rules_list import explain_command, list_command
from tdcore.cli.rules_output import LiveFindings, print_lacking, print_report
from tdcore.cli.rules_plan import plan_command
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from tdcore.actions import Action
    from tdcore.rules.config_file import RulesConfig

__all__ = ["app"]

app = typer.Typer(
    help="Judge runs by rules; list and explain rules; plan the captures that rules need.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_RUN_EXIT_CODES = (
    "Exit codes: 0 no issue. 1 an issue was found. 2 wrong usage. 3 a rule could not be evaluated or failed, "
    "or the run cannot be read. 4 no issue so far, and the run has not ended."
)


@app.command("run", epilog=_RUN_EXIT_CODES)
def run_command(
    path: Annotated[
        str,
        typer.Argument(help="Folder of the run, or s3://bucket/prefix; with --live it need not exist yet."),
    ],
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            "-r",
            metavar="NAME[:k=v,...]",
            help="A rule: a name or code of the list, file.py::Class, module:Class, or all. May be repeated. "
            "Default: the rules of --config, else the rules of the run's hook, else all.",
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="YAML or JSON file with rules, actions and options; options given here have priority.",
        ),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Follow the run while it is written, until the first issue or its end."),
    ] = False,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Follow the run to its end, even after an issue.")
    ] = False,
    on_fire: Annotated[
        list[str] | None,
        typer.Option(
            "--on-fire",
            metavar="ACTION[:k=v,...]",
            help="Action for findings: stop (the training), log and others. May be repeated.",
        ),
    ] = None,
    attempt: Annotated[
        str | None, typer.Option(help="Number of an attempt, or all; default: the newest and later attempts.")
    ] = None,
    start_step: Annotated[
        int | None, typer.Option(min=0, metavar="STEP", help="The first global step that is judged.")
    ] = None,
    end_step: Annotated[
        int | None, typer.Option(min=1, metavar="STEP", help="The first global step that is not judged.")
    ] = None,
    ended: Annotated[
        bool,
        typer.Option("--ended", help="Also judge the newest step, because the run will not continue."),
    ] = False,
    start_timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Maximum time to wait for the run.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Maximum time to follow the run.")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File with the state of the rules; the next call with it continues."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            help="Judge an ended run by several tasks; the number of tasks at a time.",
        ),
    ] = None,
    engine: Annotated[
        sweep.TaskEngine | None, typer.Option(help="Where these tasks run; default: processes.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Address of a Ray or Dask cluster that already exists."),
    ] = None,
    no_write: Annotated[
        bool, typer.Option("--no-write", help="Do not store findings in the run's findings/ folder.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also list each rule that could not judge the run, with the reason."
        ),
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Judge a run by rules: now, or while it is written.

    Examples:

      [bold]tdcore rules run runs/demo[/]                             all rules that apply

      [bold]tdcore rules run runs/demo -r vanishing_gradient -r exploding_tensor[/]

      [bold]tdcore rules run runs/demo -r vanishing_gradient:threshold=1e-6 --live --on-fire stop[/]

      [bold]tdcore rules run s3://bucket/demo -r vanishing_gradient --live[/]

      [bold]tdcore rules run runs/demo -r my_rules.py::SpikyLoss:factor=3 --json[/]

      [bold]tdcore rules run s3://bucket/huge --jobs 8[/]             by eight processes

      [bold]tdcore rules run runs/demo --config rules.yaml --live --state demo.state[/]
    """
    from tdcore.rules import run

    given = _from_file(config)
    options = {
        **given.options,
        **_given(
            live=live or None,
            until_end=until_end or None,
            attempt=_attempt(attempt),
            start_step=start_step,
            end_step=end_step,
            ended=ended or None,
            start_timeout=_seconds(start_timeout),
            timeout=_seconds(timeout),
            write_findings=False if no_write else None,
            state=state,
            workers=jobs,
            engine=None if engine is None else engine.value,
            cluster=cluster,
        ),
    }
    following = bool(options.get("live") or options.get("until_end"))
    live_findings = LiveFindings()
    if following and not json_output:
        options |= {"on_findings": live_findings, "on_lacking": print_lacking}
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # like Ctrl-C: the report is still printed
    try:
        report = run(
            path,
            [*(rule or ()), *given.rules] or None,
            actions=[*_actions(on_fire or []), *given.actions],
            **options,
        )
    finally:
        signal.signal(signal.SIGTERM, before)
    if json_output:
        print_json(report.to_json())
    else:
        live_findings.print_again()
        print_report(report, with_findings=not following, verbose=verbose)
    raise typer.Exit(report.exit_code)


app.command("sweep", epilog=sweep.EXIT_CODES)(sweep.command)
app.command("plan")(plan_command)
app.command("list")(list_command)
app.command("explain")(explain_command)
app.command("report", epilog=rules_report.EXIT_CODES)(rules_report.report_command)


def _from_file(path: str | None) -> RulesConfig:
    from tdcore.rules.config_file import RulesConfig, load_rules_config

    return RulesConfig() if path is None else load_rules_config(path)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def _seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _actions(specs: list[str]) -> list[Action]:
    from tdcore.actions import load_action

    return [load_action(spec) for spec in dict.fromkeys(specs)]


def _attempt(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdecimal():
        raise ConfigError(f"--attempt must be a number or all, got {text!r}")
    return int(text)
