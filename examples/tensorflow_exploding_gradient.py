"""Trains a TensorFlow network whose gradients explode, and a repaired one, and prints what the rules find.

    python examples/tensorflow_exploding_gradient.py runs/tensorflow

The faulty network starts with weights that double the signal in each of its layers, and its learning rate is
too high. The repaired network starts with weights of the right size. The loop uses tf.GradientTape and no
Keras. docs/tensorflow.md explains the hook.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tdcore as td
from tdcore.hooks.tensorflow import Hook
from tdcore.rules import run

RULES = ["exploding_tensor", "loss_not_decreasing"]
SIZES = (2, 32, 32, 32, 2)


class Network(tf.Module):  # type: ignore[misc]  # tensorflow may not be installed
    """A classifier of points in a plane. gain: size of the first weights; 1 keeps the size of the signal."""

    def __init__(self, gain: float) -> None:
        super().__init__(name="network")
        numbers = np.random.default_rng(0)
        self.weights = [
            tf.Variable(gain * numbers.normal(0, (2 / one) ** 0.5, (one, two)).astype(np.float32), name="w")
            for one, two in itertools.pairwise(SIZES)
        ]

    def __call__(self, x: Any) -> Any:
        """The scores of some points."""
        for weight in self.weights[:-1]:
            x = tf.nn.relu(x @ weight)
        return x @ self.weights[-1]


def train(network: Network, hook: Hook, rate: float) -> None:
    """Train with a rate, by hand."""
    points = np.random.default_rng(0).uniform(-1, 1, (512, 2)).astype(np.float32)
    inside = (np.hypot(*points.T) < 0.6).astype(np.int64)

    @hook.capture_step  # in the place of @tf.function
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x)))
        gradients = tape.gradient(loss, network.weights)
        for gradient, weight in zip(gradients, network.weights, strict=True):
            weight.assign_sub(rate * gradient)

    for _ in range(10):
        for x, y in tf.data.Dataset.from_tensor_slices((points, inside)).batch(64):
            step(x, y)


def main(place: str) -> None:
    """Train both networks and judge their runs."""
    for name, gain, rate in (("faulty", 8.0, 10.0), ("repaired", 1.0, 0.1)):
        folder = str(Path(place) / name)
        with Hook(folder, save_config=td.SaveConfig(save_interval=2), rules=RULES) as hook:
            network = Network(gain)
            hook.register_model(network)
            train(network, hook, rate)
        report = run(folder, RULES)
        print(f"{name}:")
        for verdict in report.verdicts:
            print(f"  {verdict.rule}: {verdict.text}")
        for finding in report.findings:
            print(f"    {finding.at} {finding.tensor}: {finding.why}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/tensorflow")
