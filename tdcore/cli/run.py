"""Entry of `tdcore run` in the list of commands. cli.main calls launch/run.py to run the command."""

from __future__ import annotations

import typer

__all__ = ["SETTINGS", "command"]

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command(context: typer.Context) -> None:
    """Run a training script without changes and record its training.

    Example: [bold]tdcore run --out runs/demo train.py --lr 0.1[/]
    """
    from tdcore.launch.run import main

    main(context.args)
