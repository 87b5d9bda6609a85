"""Modes: whether the training script trains, evaluates or predicts when a tensor is captured.

As in the older library: `from tdcore import modes` and `modes.TRAIN`.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["ModeKeys", "modes"]


class ModeKeys(Enum):
    """The values are stored in records and must not change; the names are stored in the index."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


modes = ModeKeys
