"""tdcore rules list, tdcore rules explain: the list of rules, and the documentation of one rule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tdcore.cli.output import console, print_json

__all__ = ["explain_command", "list_command"]


def list_command(
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the rules with their parameters and defaults.

    Example: [bold]tdcore rules list[/]
    """
    from rich import box
    from rich.table import Table

    from tdcore.rules import RULES
    from tdcore.rules.explain import explain

    found = [(code, rule.__name__, explain(rule)) for code, rule in RULES.items()]
    if json_output:
        print_json({"rules": [{"code": code, "rule": name, **asdict(text)} for code, name, text in found]})
        return
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("code", no_wrap=True)
    table.add_column("rule", overflow="fold")
    table.add_column("purpose and parameters")
    for code, name, text in found:
        parameters = ", ".join(f"{each.name}={each.default}" for each in text.parameters)
        table.add_row(code, name, f"{text.summary}\n[dim]{_escaped(parameters)}[/]")
    console().print(table)


def explain_command(rule: Annotated[str, typer.Argument(help="Name or code of a rule.")]) -> None:
    """Explain a rule: its purpose, its criterion, false alarms and advice.

    Example: [bold]tdcore rules explain TDC101[/]
    """
    from tdcore.rules.explain import explain
    from tdcore.rules.loading import find_rule, no_rule

    found = find_rule(rule)
    if found is None:
        raise no_rule(rule)
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


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
