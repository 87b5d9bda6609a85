"""Messages of the flusher for the user, on standard error."""

from __future__ import annotations

import sys

__all__ = ["print_message"]


def print_message(message: str) -> None:
    """Print one line. Never raises: standard error may be closed or full."""
    try:
        print(f"tdcore flusher: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return
