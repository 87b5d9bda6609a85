"""Writes tests/data/run_v<version>: a small run of the current format, which is kept forever.

    python -m tests.make_kept_run    once per format version; a kept run is never written again

The readers of all later versions must read it: tests/test_format.py.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import nn

import tdcore as td
from tdcore.actions import RequestStop
from tdcore.format.layout import FORMAT_VERSION
from tdcore.hooks.pytorch import Hook
from tdcore.rules import VanishingGradient, run

FOLDER = Path(__file__).parent / "data"


def main() -> int:
    place = FOLDER / f"run_v{FORMAT_VERSION}"
    if place.exists():
        print(f"{place} exists: a kept run is never written again", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Hook(place, save_config=td.SaveConfig(save_interval=2), save_all=True, flusher="thread") as hook:
        hook.register_module(model)
        hook.register_loss(criterion)
        hook.save_scalar("learning rate", 0.1)
        for step in range(5):
            optimizer.zero_grad()
            criterion(model(torch.randn(2, 2)), torch.tensor([0, 1])).backward()
            if step == 2:
                model[0].bias.grad = None  # a row without a value
            optimizer.step()
        with torch.no_grad():
            criterion(model.eval()(torch.randn(2, 2)), torch.tensor([0, 1]))
        hook.flush(timedelta(seconds=30))
        run(place, [VanishingGradient(threshold=1.0)], actions=[RequestStop()])
    trial = td.create_trial(place)
    rows = trial.stats().select(["name", "step", "count", "l2"]).to_pylist()
    values = {name: np.asarray(trial.tensor(name).value(0)).tolist() for name in ("Sequential_0.weight",)}
    expected = {"steps": trial.steps(), "rows": rows, "values": values, "findings": len(findings(place))}
    (FOLDER / f"run_v{FORMAT_VERSION}.json").write_text(json.dumps(expected, indent=1) + "\n")
    return 0


def findings(place: Path) -> list[str]:
    return [line for file in sorted((place / "findings").glob("*")) for line in file.read_text().splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
