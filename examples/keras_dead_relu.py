"""Train a Keras network with dead ReLU units and a repaired network, and print the findings of the rules.

    python examples/keras_dead_relu.py runs/keras

The faulty network starts with biases far below zero, so its ReLU units are zero for every input and get no
gradient. The repaired network starts with zero biases. docs/keras.md explains the hook.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import tdcore as td
from tdcore.hooks.keras import Hook
from tdcore.rules import run

RULES = ["dead_relu", "loss_not_decreasing"]


def network(bias: float) -> Any:
    """A classifier of points in a plane."""
    start = keras.initializers.Constant(bias)
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(32, bias_initializer=start, name="hidden"),
            layers.ReLU(name="relu"),
            layers.Dense(2, activation="softmax", name="scores"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def main(place: str) -> None:
    """Train both networks and judge their runs."""
    points = np.random.default_rng(0).uniform(-1, 1, (512, 2)).astype(np.float32)
    inside = (np.hypot(*points.T) < 0.6).astype(np.int64)
    for name, bias in (("faulty", -10.0), ("repaired", 0.0)):
        keras.utils.set_random_seed(0)
        folder = str(Path(place) / name)
        with Hook(folder, save_config=td.SaveConfig(save_interval=5), rules=RULES) as hook:
            network(bias).fit(points, inside, batch_size=64, epochs=10, verbose=0, callbacks=[hook])
        report = run(folder, RULES)
        print(f"{name}:")
        for verdict in report.verdicts:
            print(f"  {verdict.rule}: {verdict.text}")
        for finding in report.findings:
            print(f"    {finding.at} {finding.tensor}: {finding.why}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/keras")
