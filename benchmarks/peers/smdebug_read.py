"""Run in the environment of requirements/peer-smdebug.txt: smdebug writes a run, and reads a run.

smdebug_read.py write FOLDER TENSORS ELEMENTS STEPS SECONDS     stops after STEPS steps, or SECONDS seconds
smdebug_read.py read FOLDER NAME

Values as in benchmarks/read.py: TENSORS arrays of ELEMENTS float32 at each step, all saved. In a training,
hooks on modules do the same; this script calls the hook directly, which costs less. A run is judged as by
smdebug's rule VanishingGradient: the mean of |g| of every gradient at every step is compared with a
threshold. The results are printed as JSON after RESULT.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import smdebug.pytorch as smd
import torch
from smdebug.trials import create_trial
from torch import nn

THRESHOLD = 1e-7


def write(folder: str, tensors: int, elements: int, most_steps: int, seconds: float) -> dict[str, float]:
    numbers = torch.from_numpy(np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32))
    names = [f"tensor_{i}" if i % 2 == 0 else f"gradient/tensor_{i}" for i in range(tensors)]
    hook = smd.Hook(out_dir=folder, save_config=smd.SaveConfig(save_interval=1), include_collections=["all"])
    hook.get_collection("all").include(".*")
    model = nn.Linear(1, 1)
    hook.register_module(model)
    start, step = time.perf_counter(), 0
    while step < most_steps and time.perf_counter() - start < seconds:
        at = step * 977 % (len(numbers) - tensors * elements)
        block = numbers[at : at + tensors * elements] * float(1.0 + np.sin(step) / 2)
        model(torch.zeros(1, 1))  # the hook counts a forward pass of its module as the next step
        for name, values in zip(names, block.reshape(tensors, elements), strict=True):
            hook._save_for_tensor(name, values)
        step += 1
    hook.close()
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {
        "steps": step,
        "write_s": time.perf_counter() - start,
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def read(folder: str, name: str) -> dict[str, float]:
    start = time.perf_counter()
    trial = create_trial(folder)
    opened = time.perf_counter()
    tensor = trial.tensor(name)
    values = [tensor.value(step) for step in tensor.steps()]
    asked = time.perf_counter()
    judged = small = 0
    for each in trial.tensor_names(collection="gradients"):
        tensor = trial.tensor(each)
        for step in tensor.steps():
            small += bool(tensor.reduction_value(step, "mean", abs=True) < THRESHOLD)
            judged += 1
    end = time.perf_counter()
    return {
        "open": opened - start,
        "open and one tensor": asked - start,
        "open and judge": end - asked + opened - start,
        "steps": len(values),
        "judged": judged,
        "found": small,
        "peak_mb": float(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024,
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    what, folder, *rest = sys.argv[1:]
    if what == "write":
        result = write(folder, int(rest[0]), int(rest[1]), int(rest[2]), float(rest[3]))
    else:
        result = read(folder, rest[0])
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
