"""The command `tdcore`. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the command line; ends the process with its exit code."""
    if sys.argv[1:2] == ["run"]:  # the user's script runs in this process: nothing else is loaded
        from tdcore.launch.run import main as run_script

        run_script(sys.argv[2:])
        return
    from tdcore.cli.app import main as run

    run()
