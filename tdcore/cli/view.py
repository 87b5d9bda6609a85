"""tdcore view: a local web application that shows runs while they are written."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tdcore.cli.output import console, shown
from tdcore.errors import ConfigError

__all__ = ["EXIT_CODES", "command"]

EXIT_CODES = (
    "Exit codes: 0 ended by Ctrl-C or SIGTERM. 2 wrong usage, or a package is missing. 3 the place cannot be "
    "read."
)
_PACKAGES = ("starlette", "uvicorn")


def command(
    place: Annotated[
        str,
        typer.Argument(
            help="A run, as a folder or as s3://bucket/prefix, or a folder or prefix with runs below it. It "
            "need not exist yet."
        ),
    ] = "runs",
    host: Annotated[
        str,
        typer.Option(help="Address of the interface. Others than 127.0.0.1 can be reached from the network."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the server.", show_default="a free port")
    ] = 0,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="Open the page in a browser, if there is a display."),
    ] = True,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="No buttons that stop a training or make it capture more.")
    ] = False,
    rules: Annotated[
        bool, typer.Option("--rules/--no-rules", help="Judge each run that is open in a page by its rules.")
    ] = True,
) -> None:
    """Show runs in a browser, also while they are written.

    Examples:

      [bold]tdcore view[/]                              all runs below the folder runs

      [bold]tdcore view runs/demo[/]                    one run

      [bold]tdcore view s3://bucket/runs --no-browser[/]     print the address only
    """
    _check_packages()
    from tdcore.view.server.serving import ServeOptions, is_loopback, serve

    out = console()
    if not is_loopback(host):
        print(
            f"tdcore: warning: with --host {host}, other machines can open the page if they have its "
            "address, and the connection is not encrypted. An SSH tunnel to 127.0.0.1 is safer.",
            file=sys.stderr,
        )

    def ready(address: str) -> None:
        from tdcore.sinks import shown_place

        out.print(f"tdcore view shows {shown(shown_place(place))} at", soft_wrap=True)
        print(f"  {address}")
        out.print("The page opens only with this address. Press Ctrl-C to end.", soft_wrap=True)
        waiting = _waiting_for(place)
        if waiting:
            out.print(shown(waiting), soft_wrap=True)
        sys.stdout.flush()

    serve(
        ServeOptions(
            place=place, host=host, port=port, can_write=not read_only, judges=rules, browser=browser
        ),
        ready,
    )


def _check_packages() -> None:
    """Raise ConfigError with the command that installs what is missing."""
    from importlib.util import find_spec

    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"tdcore view needs {' and '.join(missing)}; install it with: pip install 'tdcore-capture[view]'"
        )


def _waiting_for(place: str) -> str:
    """A sentence if there is no run yet in a folder; "" otherwise, and for a bucket."""
    from tdcore.sinks import is_remote
    from tdcore.view.server.run_list import RunList

    if is_remote(place) or RunList(place).scan():
        return ""
    return f"There is no run at {place} yet. The page shows it when it begins."
