"""A small training whose step times are read after its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import tdcore as td
from tdcore.format.step_times import PHASES
from tdcore.hooks.pytorch import Hook

__all__ = ["Rows", "TimedTraining"]

Rows = list[dict[str, Any]]


class TimedTraining:
    """A model with its hook in `folder`, and the rows of its run. options: further options of the hook."""

    def __init__(self, folder: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.folder = folder
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.hook = Hook(
            folder,
            save_config=td.SaveConfig(save_interval=3),
            ring=td.RingConfig(ring_bytes=1 << 20, slots=1024, names_bytes=1 << 18),
            flusher="thread",
            **options,
        )
        self.hook.register_module(self.model)

    def rows(self, **chosen: Any) -> Rows:
        self.hook.close()
        rows: Rows = td.create_trial(self.folder).steps_time(**chosen).to_pylist()
        for row in rows:
            assert sum(row[f"{phase}_ns"] for phase in PHASES) == row["duration_ns"]
        return rows
