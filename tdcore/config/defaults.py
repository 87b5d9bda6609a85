"""Defaults of td.watch() and `tdcore run`. Constants, any thread."""

from __future__ import annotations

__all__ = ["COLLECTIONS", "SAVE_INTERVAL"]

SAVE_INTERVAL = 10  # steps
COLLECTIONS = ("weights", "biases", "gradients", "losses", "outputs")
