"""Train a deep network of sigmoids and a repaired network with MXNet, and print the verdicts of the rules.

    python examples/mxnet_vanishing_gradient.py [folder for the runs]

The gradients of the first layers vanish, so the loss does not fall. With ReLU and a suitable initializer the
same network learns. The example takes about ten seconds, and needs NumPy 1.23, which MXNet 1.9 requires.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

import tdcore as td
from tdcore.hooks.mxnet import Hook
from tdcore.rules import run

RULES = ["vanishing_gradient", "loss_not_decreasing"]


def network(activation: str, init: Any) -> Any:
    """A classifier with ten layers of 16 units and three outputs."""
    net = gluon.nn.HybridSequential()
    for _ in range(10):
        net.add(gluon.nn.Dense(16, activation=activation))
    net.add(gluon.nn.Dense(3))
    net.initialize(init)
    return net


def train(place: Path, net: Any, steps: int = 300) -> None:
    """Train the network to find the largest of three sums of four features."""
    random = np.random.default_rng(0)
    criterion = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.003})
    with Hook(place, save_config=td.SaveConfig(save_interval=10), rules=RULES) as hook:
        hook.register_block(net)
        hook.register_loss(criterion)
        for _ in range(steps):
            x = random.normal(size=(64, 12))
            y = x.reshape(64, 3, 4).sum(axis=2).argmax(axis=1)
            with autograd.record():
                loss = criterion(net(nd.array(x)), nd.array(y))
            loss.backward()
            trainer.step(64)


def main() -> None:
    """Train both networks and judge their runs."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/mxnet")
    mx.random.seed(0)
    for name, net in (
        ("faulty", network("sigmoid", mx.init.Uniform(0.07))),
        ("repaired", network("relu", mx.init.Xavier(magnitude=2))),
    ):
        train(folder / name, net)
        print(name)
        for verdict in run(folder / name).verdicts:
            print(f"  {verdict.rule}: {verdict.text}")


if __name__ == "__main__":
    main()
