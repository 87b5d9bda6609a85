"""tdcore rules plan: the capture configuration that a set of rules needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tdcore.cli.output import print_json
from tdcore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdcore.config.collection_config import CollectionConfig

__all__ = ["plan_command"]


def plan_command(
    rule: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RULE[:k=v,...]...",
            help="Rules: names or codes of the list, file.py::Class or module:Class.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", metavar="FILE", help="Also use the rules of this file.")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="PATH", help="Folder or URL of the run, for the printed text.")
    ] = "runs/demo",
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the JSON that Hook.create_from_json_file reads.")
    ] = False,
) -> None:
    """Print the hook configuration that a set of rules needs.

    Examples:

      [bold]tdcore rules plan vanishing_gradient dead_relu[/]

      [bold]tdcore rules plan --config rules.yaml --json > hook.json[/]
    """
    from tdcore.config.hook_json import hook_document
    from tdcore.rules.config_file import load_rules_config
    from tdcore.rules.loading import load_rules, text_of
    from tdcore.rules.planning import plan, plan_as_code

    rules = load_rules(rule or [])
    if config is not None:
        rules += load_rules_config(config).rules
    if not rules:
        raise ConfigError("no rule was given; give at least one, or a --config file with rules")
    captures = plan(rules)
    if json_output:
        print_json(hook_document(captures, out))
        return
    print(_cost(captures))
    print(plan_as_code(captures, out, [text_of(each) for each in rules]), end="")


def _cost(captures: Sequence[CollectionConfig]) -> str:
    """A comment with the collections whose values are written, in addition to statistics."""
    values = [
        each.name
        for each in captures
        if each.reduction_config is None or each.reduction_config.save_raw_tensor
    ]
    if not values:
        return (
            "# Statistics only: the bytes per tensor and saved step do not depend on the size of the tensor."
        )
    return f"# Whole tensors are written for {', '.join(values)}, statistics for the others."
