"""The command `tdcore`. Each command imports the modules that it needs when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the command line; ends the process with its exit code."""
    if sys.argv[1:2] == ["run"]:  # the user's script runs in this process, so no other module is loaded
        from tdcore.launch.run import main as run_script

        run_script(sys.argv[2:])
        return
    from tdcore.cli.app import main as run

    run()
