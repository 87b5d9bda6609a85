"""Run in the environment of requirements/peer-smdebug-keras.txt: Keras on TensorFlow with smdebug.

smdebug_keras.py PAIRS      the trainings of benchmarks/keras.py, as JSON behind RESULT
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import smdebug.tensorflow as smd
from smdebug.trials import create_trial

from benchmarks.keras import BATCHES, INTERVALS, Training, one_thread_of_tensorflow, paired
from benchmarks.slowdown.costs import bootstrap

COLLECTIONS = ["weights", "biases", "gradients", "losses", "inputs", "outputs"]


def make_hook(folder: str, interval: int) -> Any:
    """A hook of smdebug that saves statistics."""
    reductions = smd.ReductionConfig(reductions=["min", "max", "mean", "variance"], norms=["l1", "l2"])
    return smd.KerasHook(
        out_dir=folder,
        save_config=smd.SaveConfig(save_interval=interval),
        include_collections=COLLECTIONS,
        reduction_config=reductions,
    )


def main() -> None:
    logging.disable(logging.CRITICAL)
    pairs = int(sys.argv[1])
    one_thread_of_tensorflow()
    training = Training()
    training.epoch([])
    step_s = min(training.epoch([])[0] for _ in range(3)) / BATCHES
    found: dict[str, Any] = {}
    names: list[str] = []
    for interval in INTERVALS:
        with tempfile.TemporaryDirectory() as folder:
            place = str(Path(folder) / "run")
            hook = make_hook(place, interval)
            training.epoch([hook])
            cpu, wall = paired(training, hook, pairs)
            hook.close()
            names = create_trial(place).tensor_names()
            found[f"interval {interval}"] = {"cpu": asdict(bootstrap(cpu)), "wall": asdict(bootstrap(wall))}
    packages = ("smdebug", "tensorflow-cpu", "keras", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    result = {"versions": versions, "step_cpu_s": step_s, "tensors": sorted(names), **found}
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
