"""Modes: whether the training script trains, evaluates or predicts when a tensor is captured.

Scripts for smdebug use the same names: `from tdcore import modes` and `modes.TRAIN`.
"""

from __future__ import annotations

from enum import Enum

__all__ = ["ModeKeys", "modes"]


class ModeKeys(Enum):
    """Mode of a step. Records store the values, which must not change; the index stores the names."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4


modes = ModeKeys
