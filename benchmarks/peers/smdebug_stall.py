"""Run in the environment of requirements/peer-smdebug.txt: the older library's stall per saved step, as
JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import smdebug.pytorch as smd
import torch
from torch import nn

from benchmarks.models import ResNet18
from benchmarks.peers.loop import paired_stall, step_times


def main() -> None:
    steps = int(sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, criterion = ResNet18(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        hook = smd.Hook(out_dir=str(out), save_config=smd.SaveConfig(save_interval=2), save_all=True)
        hook.register_module(model)
        hook.register_loss(criterion)
        times = step_times(model, criterion, optimizer, steps)
        hook.close()
        written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    result = paired_stall(times, warm_up=4)
    result["bytes_per_saved_step"] = written / len(range(0, steps, 2))
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
