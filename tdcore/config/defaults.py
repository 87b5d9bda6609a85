"""What td.watch() and `tdcore run` capture where nothing else is configured. Constants, any thread."""

from __future__ import annotations

__all__ = ["COLLECTIONS", "SAVE_INTERVAL"]

SAVE_INTERVAL = 10  # steps
COLLECTIONS = ("weights", "biases", "gradients", "losses", "outputs")
