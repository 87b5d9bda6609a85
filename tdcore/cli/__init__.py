"""The command `tdcore`. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the command line; ends the process with its exit code."""
    from tdcore.cli.app import main as run

    run()
