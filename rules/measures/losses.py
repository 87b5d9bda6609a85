"""Losses of training and validation: the rows that contain them, and the captures that rules about them need.

Plain functions; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from tdcore.config.collection_config import CollectionConfig
from tdcore.config.save_config import SaveConfig, SaveConfigMode
from tdcore.modes import ModeKeys
from tdcore.rules.columns import Mask
from tdcore.rules.requirements import STATISTICS, captures_of
from tdcore.rules.window import Window

__all__ = ["in_both_modes", "loss_captures"]

_SAVE = SaveConfig(
    save_interval=100,
    mode_save_configs={
        ModeKeys.TRAIN: SaveConfigMode(save_interval=10),
        ModeKeys.EVAL: SaveConfigMode(save_interval=1),
    },
)


def loss_captures(patterns: Sequence[str]) -> tuple[CollectionConfig, ...]:
    """Capture of the losses of every tenth TRAIN step and every EVAL step.

    patterns: regular expressions for names; empty: the collection `losses`.
    """
    return captures_of(() if patterns else ("losses",), patterns, save_config=_SAVE, keep=STATISTICS)


def in_both_modes(window: Window, patterns: Sequence[str]) -> Mask:
    """Rows of these losses in TRAIN and EVAL mode. patterns: as in loss_captures."""
    wanted = window.named(patterns) if patterns else window.in_collections(["losses"])
    return wanted & window.columns.where("mode", lambda mode: mode in ("TRAIN", "EVAL"))
